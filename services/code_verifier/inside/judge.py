"""The child that runs the tests. It alone has them; the program is on the other side of its channel.

Tests of kind assert run statement by statement in a namespace that looks up what it lacks in the candidate. A statement
that fails by an AssertionError of its own, or by an error of its own after the program supplied something, is a wrong
answer; the program's own exception is a runtime error; tests that fail by themselves, or that never use the program,
say nothing about it (``sandbox_error``).
"""

from __future__ import annotations

import ast
import builtins
import linecache
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

from . import compare, frames, values
from .encoding import is_plain
from .judge_peer import JudgePeer, Stop
from .mirrors import FromCandidate
from .values import Json

SPACE = "__main__"
FILE = "tests.py"


class Space(dict[str, Any]):
    """Globals of the tests: a name that is not there is the candidate's.

    A builtin's name is the builtin, not the candidate's global, but for those in ``shadowed``.
    """

    def __init__(self, peer: JudgePeer, shadowed: frozenset[str]) -> None:
        super().__init__()
        self._peer = peer
        self._shadowed = shadowed
        self._found: dict[str, Any] = {}

    def __missing__(self, name: str) -> Any:
        if name in self._found:
            return self._found[name]
        if name in _BUILTIN_NAMES and name not in self._shadowed:
            raise KeyError(name)
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


class Reporter:
    """Sends what is found, test by test."""

    def __init__(self, channel: frames.Channel, stop_at_first_failure: bool) -> None:
        self._channel = channel
        self._stop = stop_at_first_failure
        self.count = 0

    def test(self, run: Callable[[], tuple[str, str]]) -> bool:
        """Run one test and report it; whether to go on."""
        started = time.monotonic()
        status, reason = run()
        return self.result(status, reason, time.monotonic() - started)

    def result(self, status: str, reason: str, seconds: float) -> bool:
        """Report a test; whether to go on."""
        self._channel.send(frames.TEST, values.dumps([self.count, status, reason[:4000], seconds]))
        self.count += 1
        return status == "passed" or (not self._stop and status not in {"sandbox_error"})

    def done(self, status: str | None = None, reason: str = "") -> NoReturn:
        """The end: a status overrides the tests'."""
        self._channel.send(frames.DONE, values.dumps([status, reason[:4000]]))
        while True:
            self._channel.receive()


def main(channel: frames.Channel) -> NoReturn:
    """The child's life: read the tests, say ready, wait for the candidate, run."""
    _, payload = channel.receive()
    body = values.loads(payload)
    random.seed(0)
    reporter = Reporter(channel, body["stop"])
    if body["kind"] == "checker":
        check_outputs(channel, reporter, body["source"])
    peer = JudgePeer(channel, SPACE)
    if body["kind"] == "calls":
        channel.send(frames.READY, values.dumps([]))
        channel.receive()
        run_calls(peer, reporter, body)
    else:
        run_asserts(channel, peer, reporter, body)
    reporter.done()


def classify(peer: JudgePeer, run: Callable[[], object]) -> tuple[str, str]:
    """Run something of the tests' and put its end into words."""
    try:
        run()
    except Stop:
        return peer.found or ("sandbox_error", "stopped for no reason")
    except SystemExit as error:
        if peer.found is not None:
            return peer.found
        for cause in _causes(error):
            if isinstance(cause, Exception):
                return of_exception(peer, cause)
        return ("passed", "") if not error.code else ("wrong_answer", f"the tests exited with {error.code!r}")
    except BaseException as error:  # noqa: BLE001 - the tests may raise anything
        return peer.found or of_exception(peer, error)
    return peer.found or ("passed", "")


def of_exception(peer: JudgePeer, error: BaseException) -> tuple[str, str]:
    """Status and reason of an exception that left a test."""
    where = _place(error)
    text = _text(error)
    if isinstance(error, FromCandidate):
        status = "memory_limit" if isinstance(error, MemoryError) else "runtime_error"
        there = f" ({error._gristmill_where} of the program)" if error._gristmill_where else ""
        return status, f"{text}{there}{where}"
    if isinstance(error, AssertionError):
        return "wrong_answer", f"{text}{where}"
    if isinstance(error, NameError) and getattr(error, "name", None) in peer.missing:
        return "runtime_error", f"the program does not define {error.name!r}{where}"
    if isinstance(error, values.Uncarried):
        return "sandbox_error", f"the tests pass what cannot be carried: {error}{where}"
    if not peer.heard:
        return "sandbox_error", f"the tests failed by themselves: {text}{where}"
    if isinstance(error, MemoryError):
        return "memory_limit", f"the tests ran out of memory over what the program gave{where}"
    return "wrong_answer", f"the tests failed on what the program gave: {text}{where}"


def _text(error: BaseException) -> str:
    try:
        said = str(error)
    except BaseException as second:  # noqa: BLE001 - KeyError(remote), say, asks the candidate for its repr
        said = f"(no text: {type(second).__name__})"
    return f"{type(error).__name__}: {said[:4000]}" if said else type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = 0
    found = error.__context__
    while found is not None and seen < 50:
        yield found
        found = found.__context__
        seen += 1


def _place(error: BaseException) -> str:
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is None:
        return ""
    return f" at line {line} of the tests: {linecache.getline(FILE, line).strip()[:500]}"


def run_asserts(channel: frames.Channel, peer: JudgePeer, reporter: Reporter, body: dict[str, Any]) -> None:
    """Tests of kind assert."""
    source = body["source"]
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    try:
        tree = ast.parse(source, FILE)
        steps = [(node, _compiled(tree, node)) for node in tree.body]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reporter.done("sandbox_error", f"the tests do not compile: {type(error).__name__}: {error}")
    space = Space(peer, _shadowed(tree, body["entry_point"]))
    space.update({"__name__": SPACE, "__builtins__": builtins, "__file__": FILE})
    sys.modules[SPACE] = _Module(space)
    channel.send(frames.READY, values.dumps(_imports(tree)))
    channel.receive()
    if body["prelude"]:
        _prelude(space, body["prelude"], body["entry_point"])
    _run_steps(peer, reporter, space, steps)


def _run_steps(peer: JudgePeer, reporter: Reporter, space: Space, steps: list[tuple[ast.stmt, types.CodeType]]) -> None:
    asserts = any(isinstance(node, ast.Assert) for node, _ in steps)
    for node, code in steps:
        heard = peer.calls

        # The body of a class looks up its globals in the dictionary itself, past Space.__missing__.
        peer.look_up(_names_in_classes(node), space)

        def run(code: types.CodeType = code) -> None:
            exec(code, space)  # noqa: S102

        if isinstance(node, ast.Assert):
            if not reporter.test(lambda: classify(peer, run)):
                return
            continue
        started = time.monotonic()
        status, reason = classify(peer, run)
        if status != "passed" or (not asserts and peer.calls > heard):
            took = time.monotonic() - started
            if not reporter.result(status, reason, took) or status != "passed":
                return
    if not peer.heard:
        for run_test in _hidden_tests(space):
            if not reporter.test(partial(classify, peer, run_test)):
                return
    if not peer.heard:
        reporter.done("sandbox_error", "the tests never used the program")
    if not reporter.count:
        reporter.result("passed", "", 0.0)


def _names_in_classes(node: ast.stmt) -> list[str]:
    classes = (inner for inner in ast.walk(node) if isinstance(inner, ast.ClassDef))
    return [name.id for inner in classes for name in ast.walk(inner) if isinstance(name, ast.Name)]


def _hidden_tests(space: Space) -> Iterator[Callable[[], object]]:
    """Tests in the manner of pytest and unittest, for sources that define them and call none."""
    unittest = sys.modules.get("unittest")  # the tests have imported it, if they use it
    for name, value in list(space.items()):
        if name.startswith("test") and isinstance(value, types.FunctionType) and not value.__code__.co_argcount:
            yield value
        elif isinstance(value, type) and unittest is not None and issubclass(value, unittest.TestCase):
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(value):
                yield test.debug


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


def _shadowed(tree: ast.Module, entry_point: str | None) -> frozenset[str]:
    """Builtin names that mean the candidate's function: the entry point, or, where the tests name nothing else that
    they do not define, the first such name that they call."""
    if entry_point is not None:
        return frozenset((entry_point.partition(".")[0],)) & _BUILTIN_NAMES
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    stored |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)}
    stored |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    stored |= {(n.asname or n.name).partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.alias)}
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
    """The problem's own code: imports and whole functions, but for the one to be written."""
    for text in (source, source + "\n    pass\n"):  # a prompt may end with the head of what is to be written
        try:
            tree = ast.parse(text)
            break
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    else:
        return
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.FunctionDef) and node.name != entry_point and not _is_stub(node)
        ):
            kept.append(node)
    for node in kept:
        try:
            exec(compile(ast.Module([node], []), "prompt.py", "exec", dont_inherit=True), space)  # noqa: S102
        except Exception:  # noqa: BLE001, S112 - the name stays the candidate's
            continue


def _is_stub(node: ast.FunctionDef) -> bool:
    body = [n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return not body or all(isinstance(n, ast.Pass) for n in body)


def run_calls(peer: JudgePeer, reporter: Reporter, body: dict[str, Any]) -> None:
    """Tests of kind call: JSON arguments, a JSON value."""
    names = body["entry_point"].split(".")
    try:
        cases = [(values.plain_json(c[0]), values.plain_json(c[1])) for c in body["cases"]]
    except values.Malformed as error:
        reporter.done("sandbox_error", f"a test is no JSON: {error}")
    if not all(isinstance(arguments, list) for arguments, _ in cases):
        reporter.done("sandbox_error", "the input of a call is a JSON array of arguments")

    def found() -> Any:
        try:
            target = peer.name(names[0])
        except KeyError:
            peer.end("runtime_error", f"the program does not define {names[0]!r}")
        for name in names[1:]:
            if getattr(target, "_gristmill_kind", "") == "class":
                target = target()
            target = getattr(target, name)
        return target

    for arguments, expected in cases:

        def run(arguments: list[Any] = arguments, expected: Any = expected) -> None:
            got = found()(*arguments)
            if not compare.equal(got, expected, body["tolerance"]):
                raise AssertionError(f"got {_short(got)}, expected {_short(expected)}")

        if not reporter.test(lambda: classify(peer, run)):
            return


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError, MemoryError):
        return f"a {type(value).__name__}"
    return text if len(text) <= 300 else text[:300] + "..."


def check_outputs(channel: frames.Channel, reporter: Reporter, source: str) -> NoReturn:
    """A checker of standard output: its ``check(input, output, expected)`` for every request of the host."""
    space: dict[str, Any] = {"__name__": "checker"}
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    try:
        exec(compile(source, FILE, "exec", dont_inherit=True), space)  # noqa: S102
        check = space["check"]
    except KeyError:
        reporter.done("sandbox_error", "the checker defines no check(input, output, expected)")
    except BaseException as error:  # noqa: BLE001 - a checker may raise anything
        reporter.done("sandbox_error", f"the checker failed: {type(error).__name__}: {error}")
    channel.send(frames.READY, values.dumps([]))
    while True:
        _, payload = channel.receive()
        given, output, expected = values.loads(payload)

        def run(given: str = given, output: str = output, expected: str = expected) -> tuple[str, str]:
            try:
                right = check(given, output, expected)
            except BaseException as error:  # noqa: BLE001 - over hostile output anything may happen
                return "wrong_answer", f"the checker: {type(error).__name__}: {error}"
            return ("passed", "") if right is True or right == 1 else ("wrong_answer", "the checker said no")

        reporter.test(run)
