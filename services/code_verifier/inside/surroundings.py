"""What tests change around the program: streams, ``input`` and ``print``, the seed of ``random``, the
recursion limit.

Tests and program are different processes, so what the tests do to theirs does not reach the program by itself. These
things are carried along with each request, as far as the tests have replaced them. Others (patched functions of
modules, files, environment variables) are seen in the tests' source: such tests cannot be used, which is better than to
call a right program wrong.
"""

from __future__ import annotations

import ast
import builtins
import io
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from . import frames
from .peer import ProtocolError
from .values import Malformed

Around = tuple[str | None, bool, dict[str, object]]
"""Text of standard input, whether output is wanted, functions in place of builtins."""
_FUNCTIONS = ("input", "print")
_STREAMS = frozenset(("sys.stdin", "sys.stdout", "sys.stderr"))
_CARRIED = _STREAMS | {f"builtins.{name}" for name in _FUNCTIONS}
_FILES = frozenset(("write_text", "write_bytes", "NamedTemporaryFile", "TemporaryDirectory", "mkdtemp", "mkstemp"))
_PROCESS = frozenset(("os.chdir", "os.putenv", "os.environ.update", "os.environ.setdefault", "os.environ.pop"))


class Surroundings:
    """The judge's side: what is not as it was."""

    def __init__(self) -> None:
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._functions = {name: vars(builtins)[name] for name in _FUNCTIONS}
        self._told: dict[str, object] = {}

    def follow(self) -> None:
        """Take note of ``random.seed`` and ``sys.setrecursionlimit`` from now on."""
        seed, limit = random.seed, sys.setrecursionlimit

        def seeded(a: Any = None, version: int = 2) -> None:
            seed(a, version)
            self._told["seed"] = a

        def limited(most: int) -> None:
            limit(most)
            self._told["recursion"] = most

        random.seed, sys.setrecursionlimit = seeded, limited

    def told(self) -> dict[str, object]:
        """What the program has not been told of yet."""
        found = dict(self._told)
        self._told.clear()
        return found

    @property
    def changed(self) -> bool:
        """Whether anything is to be carried."""
        return bool(self._told) or self.now() is not None

    def now(self) -> Around | None:
        """What the program is to be given, unless all is as it was."""
        given, *wanted = (sys.stdin, sys.stdout, sys.stderr)
        functions = {name: f for name, was in self._functions.items() if (f := vars(builtins).get(name)) is not was}
        output = any(a is not b for a, b in zip(wanted, self._streams[1:], strict=True))
        text = None
        if given is not self._streams[0] and isinstance(given, io.StringIO):
            at = given.tell()
            text = given.read()
            given.seek(at)
        return (text, output, functions) if output or functions or text is not None else None

    def take(self, out: str, err: str, read: int) -> None:
        """What the program wrote, and how much it read."""
        for stream, text in ((sys.stdout, out), (sys.stderr, err)):
            if text:
                stream.write(text)
        if isinstance(sys.stdin, io.StringIO):
            sys.stdin.seek(sys.stdin.tell() + read)


class Surrounded:
    """The program's side: puts in place what it is given, and takes it away."""

    def __init__(self, space: dict[str, Any]) -> None:
        self._space = space
        self._held: list[tuple[Any, ...]] = []

    def enter(self, text: str | None, output: bool, functions: dict[str, object]) -> None:
        """Until :meth:`leave`."""
        names = [name for name in functions if name not in self._space]
        self._held.append((sys.stdin, sys.stdout, sys.stderr, names))
        if text is not None:
            sys.stdin = io.StringIO(text)
        if output:
            sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        for name in names:
            self._space[name] = functions[name]

    def leave(self) -> tuple[str, str, int]:
        """Output, error output, characters read."""
        now = sys.stdin, sys.stdout, sys.stderr
        *streams, names = self._held.pop()
        sys.stdin, sys.stdout, sys.stderr = streams
        for name in names:
            self._space.pop(name, None)
        out, err = (
            s.getvalue() if isinstance(s, io.StringIO) and s is not was else ""
            for s, was in zip(now[1:], streams[1:], strict=True)
        )
        return out, err, now[0].tell() if isinstance(now[0], io.StringIO) and now[0] is not streams[0] else 0


def unseen(nodes: list[ast.AST]) -> str | None:
    """Why a program cannot see what the tests prepare for it, if that is so."""
    imports = [node for node in nodes if isinstance(node, ast.Import)]
    modules = {name.asname or name.name for node in imports for name in node.names}
    told = (node for node in nodes if isinstance(node, ast.Assign | ast.Call))
    return next((why for node in told for why in _reasons(node, modules)), None)


def _reasons(node: ast.AST, modules: set[str]) -> Iterator[str]:
    match node:
        case ast.Assign(targets=targets):
            for target in targets:
                name = _dotted(target.value if isinstance(target, ast.Subscript) else target)
                owner = name.partition(".")[0]
                if name == "os.environ" or (
                    isinstance(target, ast.Attribute) and owner in modules and name not in _CARRIED and owner != name
                ):
                    yield f"the tests set {name}, which the program does not see{_line(node)}"
        case ast.Call(func=function, args=arguments):
            name = _dotted(function)
            last = name.rpartition(".")[2]
            first = arguments[0] if arguments else None
            if (last == "patch" or name.endswith("patch.dict")) and isinstance(first, ast.Constant):
                if first.value not in _CARRIED:
                    yield f"the tests patch {first.value!r}, which the program does not see{_line(node)}"
            elif name.endswith(("patch.object", "patch.dict")) and first is not None:
                if _dotted(first).partition(".")[0] in modules:
                    yield f"the tests patch {_dotted(first)}, which the program does not see{_line(node)}"
            elif last in _FILES or name in _PROCESS or (name == "open" and _writes(node)):
                yield f"the tests prepare by {name} what the program does not see{_line(node)}"


def _line(node: ast.AST) -> str:
    return f" (line {getattr(node, 'lineno', 0)})"


def _writes(call: ast.Call) -> bool:
    modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
    return any(isinstance(m, ast.Constant) and isinstance(m.value, str) and set(m.value) & set("wax") for m in modes)


def _dotted(node: ast.AST) -> str:
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, name):
            return f"{_dotted(value)}.{name}"
    return ""


Ask = Callable[..., Any]


def carried(around: Surroundings, ask: Ask, operation: str, operands: tuple[object, ...]) -> Any:
    """Make a request, with what the tests have changed around the program."""
    for what, value in around.told().items():
        ask(what, value)
    now = around.now()
    if now is None:
        return ask(operation, *operands)
    ask("surround", *now)
    try:
        result = ask(operation, *operands)
    except (Malformed, ProtocolError, frames.Closed):
        raise
    except Exception:
        _take(around, ask)
        raise
    _take(around, ask)
    return result


def _take(around: Surroundings, ask: Ask) -> None:
    match ask("unsurround", None):
        case (str(out), str(err), int(read)) if read >= 0:
            around.take(out, err, read)
        case _:
            raise Malformed("what a call wrote")
