"""Tests of kind assert: Python source, run statement by statement.

Its namespace looks up what it lacks in the candidate. Each top-level assert is a test; where there is none, each
statement that uses the program; where none does, the ``test_*`` functions and ``unittest`` classes that are defined.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import linecache
import re
import sys
import time
import types
from functools import partial
from typing import Any

from . import foresight, frames, surroundings, values
from .collecting import Unread, uncalled_tests
from .encoding import is_plain
from .judge_peer import JudgePeer
from .remote import Remote
from .reporting import FILE, Reporter, classify
from .values import Json

SPACE = "__main__"


class Space(dict[str, Any]):
    """Globals of the tests: a name that is not there is the candidate's.

    A builtin's name is the builtin, not the candidate's global, but for those in ``shadowed``; so are the modules of
    the standard library in ``modules``, which the tests use without importing them.
    """

    def __init__(self, peer: JudgePeer, shadowed: frozenset[str], modules: dict[str, types.ModuleType]) -> None:
        super().__init__()
        self._modules = modules
        self._peer = peer
        self._shadowed = shadowed
        self._found: dict[str, Any] = {}

    def __missing__(self, name: str) -> Any:
        if name in self._found:
            return self._found[name]
        if name in _BUILTIN_NAMES and name not in self._shadowed:
            raise KeyError(name)
        if name in self._modules:
            return self._modules[name]
        value = self._peer.name(name)
        if type(value).__name__ != "module" and not is_plain(value):
            self._found[name] = value
        return value


_BUILTIN_NAMES = frozenset(vars(builtins)) | {"__builtins__", "__name__"}


class _Module(types.ModuleType):
    """``sys.modules["__main__"]`` of the tests, for those that look themselves up (unittest)."""

    def __init__(self, space: Space) -> None:
        super().__init__("__main__")
        object.__setattr__(self, "_space", space)

    def __getattr__(self, name: str) -> Any:
        try:
            return dict.__getitem__(object.__getattribute__(self, "_space"), name)
        except KeyError:
            raise AttributeError(name) from None

    def __dir__(self) -> list[str]:
        return list(object.__getattribute__(self, "_space"))


def run_asserts(channel: frames.Channel, peer: JudgePeer, reporter: Reporter, body: dict[str, Any]) -> None:
    """Tests of kind assert."""
    source = body["source"]
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    try:
        tree = ast.parse(source, FILE)
        steps = [(node, _compiled(tree, node)) for node in tree.body]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reporter.done("sandbox_error", f"the tests do not compile: {type(error).__name__}: {error}")
    unseen = surroundings.unseen(tree)
    if unseen is not None:
        reporter.done("sandbox_error", unseen)
    peer.around.follow_seed()
    imports = _imports(tree)
    modules = _unimported(tree, body["entry_point"])
    peer.modules = frozenset(str(row[0]) for row in imports) | frozenset(modules)
    space = Space(peer, _shadowed(tree, body["entry_point"]), modules)
    space.update({"__name__": SPACE, "__builtins__": builtins, "__file__": FILE})
    sys.modules[SPACE] = _Module(space)
    channel.send(frames.READY, values.dumps(imports))
    channel.receive()
    if body["prelude"]:
        _prelude(space, body["prelude"], body["entry_point"])
    _run_steps(peer, reporter, space, steps, tree)


def _run_steps(
    peer: JudgePeer, reporter: Reporter, space: Space, steps: list[tuple[ast.stmt, types.CodeType]], tree: ast.Module
) -> None:
    asserts = any(isinstance(node, ast.Assert) for node, _ in steps)
    unread = Unread(peer)
    foreseen = 0
    for number, (node, code) in enumerate(steps):
        heard = peer.calls

        def prepare(node: ast.stmt = node, number: int = number) -> None:
            nonlocal foreseen
            if reporter.stops and number >= foreseen:
                foreseen = number + _foresee(peer, space, tree, number)
            # The body of a class looks up its globals in the dictionary itself, past Space.__missing__.
            peer.look_up(_names_in_classes(node), space)

        def run(code: types.CodeType = code) -> None:
            exec(code, space)  # noqa: S102

        started = time.monotonic()
        status, reason = classify(peer, prepare)
        if status == "passed":
            unread.watch()
            status, reason = classify(peer, run)
        if unread.found and status in {"passed", "wrong_answer"}:
            status, reason = unread.take()
        if isinstance(node, ast.Assert):
            if not reporter.result(status, reason, time.monotonic() - started):
                return
            continue
        if status != "passed" or (not asserts and peer.calls > heard):
            took = time.monotonic() - started
            if not reporter.result(status, reason, took) or status != "passed":
                return
    unread.watch()
    for run_test in uncalled_tests(space, [node for node, _ in steps]):
        if not reporter.test(partial(classify, peer, run_test)):
            return
    unread.settle()
    if unread.found and not reporter.result(*unread.take(), 0.0):
        return
    if not peer.heard:
        reporter.done("sandbox_error", "the tests never used the program")
    if not reporter.count:
        reporter.result("passed", "", 0.0)


def _foresee(peer: JudgePeer, space: Space, tree: ast.Module, number: int) -> int:
    """Have the calls done that are certain to come from statement ``number`` on; how many asserts that covers."""
    node = tree.body[number]
    checked = foresight.checked_by(node, tree)
    if checked is not None:
        name, calls = checked
        covered = 1
    else:
        called = foresight.called_first(node)
        if called is None:
            return 0
        name = called
        rest = tree.body[number:]
        calls = foresight.calls_of(rest, name)
        covered = next((n for n, statement in enumerate(rest) if not isinstance(statement, ast.Assert)), len(rest))
    if len(calls) < 2 or name in space:
        return covered
    try:
        function = space[name]
    except KeyError:
        return covered
    if type(function) is Remote and function._gristmill_kind == "function":
        peer.foresee(function, calls)
    return covered


def _names_in_classes(node: ast.stmt) -> list[str]:
    classes = (inner for inner in ast.walk(node) if isinstance(inner, ast.ClassDef))
    return [name.id for inner in classes for name in ast.walk(inner) if isinstance(name, ast.Name)]


def _compiled(tree: ast.Module, node: ast.stmt) -> types.CodeType:
    flags = 0
    for other in tree.body:
        if isinstance(other, ast.ImportFrom) and other.module == "__future__":
            for name in other.names:
                feature = getattr(__import__("__future__"), name.name, None)
                flags |= feature.compiler_flag if feature is not None else 0
    code: types.CodeType = compile(ast.Module([node], []), FILE, "exec", flags=flags, dont_inherit=True)
    return code


def _imports(tree: ast.Module) -> Json:
    found: list[list[str | None]] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            found += [[name.name, None, name.asname] for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level and node.module != "__future__":
            found += [[node.module, name.name, name.asname] for name in node.names]
    return found


_ODD_MODULES = frozenset(("__main__", "antigravity", "idlelib", "test", "this", "turtle", "turtledemo"))


def _unimported(tree: ast.Module, entry_point: str | None) -> dict[str, types.ModuleType]:
    """Modules of the standard library that the tests use without importing them: by their names, and for nothing that
    such a module does not have."""
    used: dict[str, set[str]] = {}
    bare: set[str] = set()
    attributes = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.setdefault(node.value.id, set()).add(node.attr)
        elif isinstance(node, ast.Name) and id(node) not in attributes:
            bare.add(node.id)
    own = _bound(tree) | bare | {(entry_point or "").partition(".")[0]}
    found: dict[str, types.ModuleType] = {}
    for name in sys.stdlib_module_names & used.keys() - own - _ODD_MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if all(hasattr(module, attribute) for attribute in used[name]):
            found[name] = module
    return found


def _bound(tree: ast.Module) -> set[str]:
    """Names that the tests bind, anywhere."""
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    found |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)}
    found |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    found |= {n.name for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and n.name}
    return found | {(n.asname or n.name).partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.alias)}


def _shadowed(tree: ast.Module, entry_point: str | None) -> frozenset[str]:
    """Builtin names that mean the candidate's function: the entry point, or, where the tests name nothing else that
    they do not define, the first such name that they call."""
    if entry_point is not None:
        return frozenset((entry_point.partition(".")[0],)) & _BUILTIN_NAMES
    stored = _bound(tree)
    free = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - stored
    if free - _BUILTIN_NAMES:
        return frozenset()
    # Every builtin that all of the tests call might be it; the least usual around a call is taken.
    calls = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    usual = {
        "abs",
        "set",
        "sorted",
        "list",
        "tuple",
        "len",
        "str",
        "round",
        "isinstance",
        "int",
        "float",
        "dict",
        "all",
    }
    return frozenset([name for name in calls if name not in usual][:1] or calls[:1])


def _prelude(space: Space, source: str, entry_point: str | None) -> None:
    """The problem's own code: imports, constants and whole functions, but for the one to be written."""
    for text in (source, source + "\n    pass\n"):  # a prompt may end with the head of what is to be written
        try:
            tree = ast.parse(text)
            break
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    else:
        return
    for node in tree.body:
        whole = isinstance(node, ast.FunctionDef) and node.name != entry_point and not _is_stub(node)
        if isinstance(node, ast.Import | ast.ImportFrom) or whole:
            _execute(node, space)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            _constant(node, space, source, entry_point)


def _execute(node: ast.stmt, space: Space) -> bool:
    try:
        exec(compile(ast.Module([node], []), "prompt.py", "exec", dont_inherit=True), space)  # noqa: S102
    except Exception:  # noqa: BLE001 - the name stays the candidate's
        return False
    return True


def _constant(node: ast.Assign | ast.AnnAssign | ast.AugAssign, space: Space, source: str, entry: str | None) -> None:
    """A constant of the problem's: a plain value, made of what the problem itself gives. What looks like a variable,
    because it begins as nothing, can be changed in place, or is declared ``global``, stays the program's."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    used = names - stored | (stored if isinstance(node, ast.AugAssign) else set())
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
    if not all(isinstance(target, ast.Name) for target in flat) or entry in stored:
        return
    if any(name not in space and name not in _BUILTIN_NAMES for name in used):
        return
    before = {name: space[name] for name in stored if name in space}
    done = _execute(node, space)
    for name in stored & space.keys():
        value = space[name]
        varies = not name.isupper() and (not value or values.is_mutable(value))
        if not done or not is_plain(value) or varies or re.search(rf"\bglobal\b[^\n]*\b{name}\b", source):
            del space[name]
            space.update({name: before[name]} if not done and name in before else {})


def _is_stub(node: ast.FunctionDef) -> bool:
    body = [n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return not body or all(isinstance(n, ast.Pass) for n in body)
