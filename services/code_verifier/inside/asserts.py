"""Tests of kind assert: Python source, run statement by statement.

Its namespace looks up what it lacks in the candidate. Each top-level assert is a test; where there is none, each
statement that uses the program; where none does, the ``test_*`` functions and ``unittest`` classes that are defined.
"""

from __future__ import annotations

import ast
import builtins
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
from .syntax import BUILTIN_NAMES, Names, future_flags, imports_of, names_in_classes, nodes_of

SPACE = "__main__"


class Space(dict[str, Any]):
    """Globals of the tests: a name that is not there is the candidate's.

    A builtin's name is the builtin, not the candidate's global, but for those in ``shadowed``; so are the modules of
    the standard library in ``modules``, which the tests use without importing them. Nobody is asked before ``asks``.
    """

    def __init__(self, peer: JudgePeer, shadowed: frozenset[str], modules: dict[str, types.ModuleType]) -> None:
        super().__init__()
        self.asks = False
        self._modules = modules
        self._peer = peer
        self._shadowed = shadowed
        self._found: dict[str, Any] = {}

    def lacks(self, name: str) -> bool:
        """Whether a name is the candidate's, if anybody's."""
        return name not in self and name not in self._modules and (name not in BUILTIN_NAMES or name in self._shadowed)

    def __missing__(self, name: str) -> Any:
        if name in self._found:
            return self._found[name]
        if name in BUILTIN_NAMES and name not in self._shadowed:
            raise KeyError(name)
        if name in self._modules:
            return self._modules[name]
        if not self.asks:
            raise KeyError(name)
        value = self._peer.name(name)
        if type(value).__name__ != "module" and not is_plain(value):
            self._found[name] = value
        return value


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
        flags = future_flags(tree)
        steps = [(node, _compiled(node, flags)) for node in tree.body]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reporter.done("sandbox_error", f"the tests do not compile: {type(error).__name__}: {error}")
    names = Names(nodes_of(tree))
    unseen = surroundings.unseen(names.nodes)
    if unseen is not None:
        reporter.done("sandbox_error", unseen)
    peer.around.follow()
    imports = imports_of(tree)
    modules = names.unimported(body["entry_point"])
    peer.modules = frozenset(str(row[0]) for row in imports) | frozenset(modules)
    space = Space(peer, names.shadowed(body["entry_point"]), modules)
    space.update({"__name__": SPACE, "__builtins__": builtins, "__file__": FILE})
    sys.modules[SPACE] = _Module(space)
    if names.could_mean(body["prelude"], body["entry_point"]):
        _prelude(space, body["prelude"], body["entry_point"])
    opened = _open(peer, space, tree, names) if reporter.stops else 0
    channel.send(frames.READY, values.dumps(imports))
    if not opened:
        channel.receive()
    space.asks = True
    _run_steps(peer, reporter, space, steps, tree, names, opened)


def _run_steps(
    peer: JudgePeer,
    reporter: Reporter,
    space: Space,
    steps: list[tuple[ast.stmt, types.CodeType]],
    tree: ast.Module,
    names: Names,
    opened: int,
) -> None:
    asserts = any(isinstance(node, ast.Assert) for node, _ in steps)
    unread = Unread(peer)
    foreseen = opened
    for number, (node, code) in enumerate(steps):
        heard = peer.calls

        def prepare(node: ast.stmt = node, number: int = number) -> None:
            nonlocal foreseen
            if opened and not number:
                peer.opened()
            if reporter.stops and number >= foreseen:
                foreseen = number + _foresee(peer, space, tree, number)
            # The body of a class looks up its globals in the dictionary itself, past Space.__missing__.
            if names.classes:
                peer.look_up(names_in_classes(node), space)

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
    for run_test in uncalled_tests(space, names.nodes):
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
    """Have the calls done that are certain to come from statement ``number`` on; how many statements that covers."""
    found = foresight.calls_at(tree, number)
    if found is None:
        return 0
    name, calls, covered = found
    if len(calls) < 2 or name in space:
        return covered
    try:
        function = space[name]
    except KeyError:
        return covered
    if type(function) is Remote and function._gristmill_kind == "function":
        peer.foresee(function, calls)
    return covered


def _open(peer: JudgePeer, space: Space, tree: ast.Module, names: Names) -> int:
    """Send the tests' first request along, if it is certain; the first statement behind what it covers, or 0."""
    found = foresight.opening(tree)
    if found is None or found[0] in names.bound or not space.lacks(found[0]) or peer.around.changed:
        return 0
    name, calls, end = found
    try:
        peer.open(name, calls)
    except (values.Uncarried, RecursionError, MemoryError):
        return 0
    return end


def _compiled(node: ast.stmt, flags: int) -> types.CodeType:
    code: types.CodeType = compile(ast.Module([node], []), FILE, "exec", flags=flags, dont_inherit=True)
    return code


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
    inner = [n for n in nodes_of(node) if isinstance(n, ast.Name)]
    names = {n.id for n in inner}
    stored = {n.id for n in inner if isinstance(n.ctx, ast.Store)}
    used = names - stored | (stored if isinstance(node, ast.AugAssign) else set())
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
    if not all(isinstance(target, ast.Name) for target in flat) or entry in stored:
        return
    if any(name not in space and name not in BUILTIN_NAMES for name in used):
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
