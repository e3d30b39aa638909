"""The child that holds the program's functions: loads the source, then does what the judge asks.

Everything here runs in one process with the program, which may patch, read or break all of it. So nothing here is
trusted: a program that does so changes only what it says, and what it says is only data to the judge. The comparison of
``builtins`` is a courtesy (a clear reason), not a defence.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import linecache
import operator
import random
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from . import derived, frames, values
from .decoding import Decoder
from .encoding import Encoder, Writer
from .given import Given, GivenIterator
from .peer import FIRST_FUNCTION, MISSING, SEVERAL, SHARED, SHARED_SIZE, TAMPERED, Peer
from .surroundings import Surrounded
from .values import Json, Malformed

if TYPE_CHECKING:
    import asyncio

NAME = "candidate"
SOON_S, SMALL = 0.05, 1 << 20
FAILED = b'["err"'
_OPERATORS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in (
        *("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
        *("matmul", "and_", "or_", "xor", "lshift", "rshift"),
        *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor"),
        *("neg", "pos", "invert", "abs"),
    )
}
_kind_of: dict[type, str] = {
    types.FunctionType: "function",
    types.BuiltinFunctionType: "function",
    types.MethodType: "function",
    types.CoroutineType: "coroutine",
}


class Tampered(Exception):
    """The program replaced a builtin."""


class Missing(Exception):
    """The program does not define a name."""


_OWN: dict[type[BaseException], str] = {Tampered: TAMPERED, Missing: MISSING}


class CandidatePeer(Peer):
    """The program's side.

    Args:
        space: the program's module.
    """

    def __init__(self, channel: frames.Channel, space: types.ModuleType) -> None:
        super().__init__(channel)
        self._space = space
        self._active = 0
        self._stands = False
        self._given: dict[int, Given] = {}
        self._followed: dict[int, tuple[object, list[Any] | bytes]] = {}
        self._check = builtins_check()
        self._surrounded = Surrounded(vars(space))
        self._loop: asyncio.AbstractEventLoop | None = None

    def ask(self, operation: str, *operands: object) -> Any:
        """A callback, allowed while the judge waits for an answer."""
        if not self._active:
            raise RuntimeError("the tests' function was called after the call had ended")
        return self.request(operation, *operands)

    def answer(self, payload: bytes) -> None:
        self._active += 1
        message = values.loads(payload)
        several = type(message) is list and bool(message) and message[0] == SEVERAL
        self.hand_over(self._answers(message[1]) if several else self.answer_to(message))

    def _answers(self, requests: list[Json]) -> bytes:
        """Answers as far as they come soon, are small, and none is an exception: the judge asks for the rest again."""
        until = time.monotonic() + SOON_S
        answers: list[bytes] = []
        size = 0
        for request in requests:
            self._stands = False
            answer = self.answer_to(request)
            if size + len(answer) > frames.MESSAGE_LIMIT - len(requests) - 2:
                error = values.Uncarried(f"values of {size + len(answer)} bytes, more than {frames.MESSAGE_LIMIT}")
                answer = values.dumps(["err", self.describe(self.encoder(), error), [], None])
            answers.append(answer)
            size += len(answer)
            if size > SMALL or time.monotonic() > until or answer.startswith(FAILED):
                break
            # Calls behind a name that is no function's are of something else. What stays here may change with the next
            # call, and the tests look at it before they make that.
            if answer != FIRST_FUNCTION if request[1] == "name" else self._stands:
                break
        return b"[" + b",".join(answers) + b"]"

    def hand_over(self, data: bytes) -> None:
        with self._turn:
            self._active -= 1
            super().hand_over(data)

    def export(self, value: object) -> Json:
        self._stands = True
        if type(value) is Given:
            return ["w", value._ref]
        if type(value) is GivenIterator:
            return self.export(value._given)
        kind = type(value)
        if isinstance(value, types.ModuleType) and value is sys.modules.get(value.__name__):
            return ["p", value.__name__, self.number(value)]
        if issubclass(kind, type):
            if issubclass(value, BaseException):  # type: ignore[arg-type]
                return ["x", self.exception_class(value)]  # type: ignore[arg-type]
            return ["o", self.number(value), "class"]
        if issubclass(kind, Exception) and not issubclass(kind, BaseExceptionGroup):
            return ["X", *self.described(value)]  # type: ignore[arg-type]
        known = _kind_of.get(kind)
        if known is not None:
            return ["o", self.number(value), known]
        described = "object" if kind.__hash__ is object.__hash__ else "valued"
        return ["o", self.number(value), described, self.number(kind), str(kind.__name__)]

    def export_derived(self, encoder: Encoder, value: object, writer: Writer) -> Json:
        plain = writer(encoder, value)
        kind = type(value)
        names = derived.own_names(kind)
        if names is None or (type(plain) is list and plain[0] == "r"):
            return plain
        self._stands = True
        number = self.number(value)
        if values.is_mutable(value):
            held = values.holding(value)
            self._followed.pop(number, None)
            if len(held) <= SHARED_SIZE:
                self._followed[number] = (value, held)
                if len(self._followed) > SHARED:
                    del self._followed[next(iter(self._followed))]
        return ["S", plain, number, names, self.number(kind), str(kind.__name__)]

    def news(self, encoder: Encoder) -> list[Json]:
        found: list[Json] = []
        for number, (value, held) in self._followed.items():
            if not values.same_contents(held, value):
                self._followed[number] = (value, values.holding(value))
                found.append([number, "s", encoder.change(value)])
        return found

    def described(self, error: Exception) -> list[Json]:
        """Number, class, text and arguments of an exception that is passed on as a value."""
        try:
            text = str(error)
        except Exception as second:  # noqa: BLE001 - a liar's __str__ may do anything
            text = f"(no text: {type(second).__name__})"
        encoder, args = self.encoder(), BaseException.args.__get__(error)  # type: ignore[attr-defined]
        simple = all(type(arg) in values.SCALARS for arg in args)
        shown = [encoder.encode(arg) for arg in (args if simple else (text,))]
        return [self.number(error), self.exception_class(type(error)), encoder.encode(text[:20_000]), shown]

    def exception_class(self, kind: type[BaseException]) -> Json:
        """A builtin's name, or number, name, bases and module."""
        if vars(builtins).get(kind.__name__) is kind:
            return kind.__name__
        bases = [self.exception_class(base) for base in kind.__bases__ if issubclass(base, BaseException)]
        return [self.number(kind), _OWN.get(kind) or str(kind.__name__), bases, str(kind.__module__)]

    def resolve(self, value: list[Any]) -> object:
        tag = value[0]
        if tag == "w":
            return self.owned(value[1])
        if tag == "o":
            return self._given.setdefault(value[1], Given(self, value[1], value[2:]))
        if tag == "v":
            return getattr(builtins, value[1])
        if tag == "j":
            found: Any = sys.modules.get(value[1]) or __import__(value[1], fromlist=["*"])
            for name in value[2].split("."):
                found = getattr(found, name)
            return found
        raise Malformed(f"tag {tag!r}")

    def describe(self, encoder: Encoder, error: BaseException) -> Json:
        own = vars(error).get("_gristmill_own") if type(error).__module__ == "builtins" else None
        try:
            text = str(error)
        except Exception as second:  # noqa: BLE001 - a liar's __str__ may do anything
            text = f"(no text: {type(second).__name__})"
        try:
            args: Json = encoder.encode(error.args)
        except values.Uncarried:
            args = encoder.encode((text[:1000],))
        where = ""
        frame = traceback.extract_tb(error.__traceback__)
        for entry in reversed(frame):
            if entry.filename == f"{NAME}.py":
                where = f"line {entry.lineno}, in {entry.name}"
                break
        parts = error.exceptions[:100] if isinstance(error, BaseExceptionGroup) else ()
        described = [self.exception_class(type(error)), self.number(error), encoder.encode(text[:20_000]), args, where]
        described.append([self.describe(encoder, part) for part in parts])
        return described if type(own) is not int else [*described, own]  # the tests' own, back again

    def restore(self, _decoder: Decoder, described: Json) -> BaseException:
        if described[0] is None:
            own: BaseException = self.owned(described[1])
            return own
        kind = getattr(builtins, str(described[0]), RuntimeError)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            kind = RuntimeError
        error: Any = kind(described[1])
        error._gristmill_own = described[2]
        restored: BaseException = error
        return restored

    def share(self, operation: str, value: object) -> int | None:
        # An attribute, an item or a global that the tests may change: ``node.children.append(...)``.
        return self.number(value) if operation in {"get", "item", "name"} and values.is_mutable(value) else None

    def perform(self, operation: str, operands: tuple[Any, ...]) -> object:
        result = self._do(operation, operands)
        self._check()
        flush()
        return result

    def _do(self, operation: str, operands: tuple[Any, ...]) -> object:
        match operation, operands:
            case "call", (target, args, kwargs):
                return target(*args, **kwargs)
            case "name", (name,):
                try:
                    return vars(self._space)[name]
                except KeyError:
                    raise Missing(name) from None
            case "get", (target, name):
                return getattr(target, name)
            case "set", (target, name, value):
                setattr(target, name, value)
                return None
            case "del", (target, name):
                delattr(target, name)
                return None
            case "item", (target, key):
                return target[key]
            case "setitem", (target, key, value):
                return operator.setitem(target, key, value)
            case "delitem", (target, key):
                return operator.delitem(target, key)
            case "update", (target, value):
                values.replace(target, values.flat(value))
                return None
            case "iter", (target,):
                return iter(target)
            case "next", (target,):
                try:
                    return (next(target),)
                except StopIteration:
                    return ()
            case "contains", (target, value):
                return value in target
            case "isinstance", (kind, value):
                return isinstance(value, kind)
            case "issubclass", (kind, value):
                return issubclass(value, kind)
            case "await", (target,):
                return self._await(target)
            case "enter", (target,):
                return type(target).__enter__(target)
            case "exit", (target,):
                return type(target).__exit__(target, None, None, None) and None
            case "surround", (text, output, functions):
                self._surrounded.enter(text, output, functions)
                return None
            case "unsurround", _:
                return self._surrounded.leave()
            case "seed", (seed,):
                random.seed(seed)
                return None
            case "recursion", (int(limit),):
                sys.setrecursionlimit(max(limit, sys.getrecursionlimit()))
                return None
            case "operator1", (target, name):
                return _OPERATORS[name](target)
            case "round", (target, digits):
                return round(target) if digits is None else round(target, digits)
            case "operator", (name, *rest):
                return _OPERATORS[name](*rest)
            case _, (target,):
                return _UNARY[operation](target)
        raise Malformed(f"operation {operation!r}")

    def _await(self, target: Any) -> object:
        import asyncio  # late: slow to import, seldom needed

        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def wait() -> object:
            return await target

        return self._loop.run_until_complete(wait())

    def serve(self) -> NoReturn:
        """Answer until killed."""
        while True:
            kind, payload = self._channel.receive()
            if kind == frames.ASK:
                self.answer(payload)
            elif kind == frames.GO:
                bring_imports(self._space, values.loads(payload))


_UNARY: dict[str, Callable[[Any], object]] = {
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "hash": hash,
    "float": float,
    "int": int,
    "complex": complex,
}


def builtins_check() -> Callable[[], None]:
    """A function that raises :class:`Tampered` once a builtin is not what it is now."""
    now = vars(builtins)
    held = dict(now)
    held.pop("_", None)

    def check() -> None:
        for name, value in held.items():
            if now.get(name, check) is not value:
                raise Tampered(f"builtins.{name} was replaced")

    return check


def bring_imports(space: types.ModuleType, imports: list[list[str | None]]) -> None:
    """The tests' imports, for a program that relies on them; its own names stay."""
    for module, name, alias in imports:
        scratch: dict[str, object] = {}
        source = f"import {module}" if name is None else f"from {module} import {name}"
        if alias:
            source += f" as {alias}"
        try:
            exec(source, scratch)  # noqa: S102
        except Exception:  # noqa: BLE001, S112 - the judge says so if it matters
            continue
        scratch.pop("__builtins__", None)
        for key, value in scratch.items():
            vars(space).setdefault(key, value)


def compiled(source: str, filename: str) -> types.CodeType:
    """The program's code; raises :class:`SyntaxError` for whatever the compiler says against it."""
    try:
        return compile(source, filename, "exec", dont_inherit=True)
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise SyntaxError(f"{type(error).__name__}: {error}") from None


def failure(error: BaseException) -> tuple[str, str]:
    """Status and reason of a program that raised."""
    if isinstance(error, MemoryError):
        return "memory_limit", "MemoryError"
    text = "".join(traceback.format_exception_only(error)).strip()
    return "runtime_error", text[-2000:]


def main(channel: frames.Channel) -> NoReturn:
    """The child's life: read what to load, load it, serve."""
    _, payload = channel.receive()
    body = values.loads(payload)
    source = body["source"]
    filename = f"{NAME}.py"
    try:
        code = compiled(source, filename)
    except SyntaxError as error:
        report(channel, "syntax_error", "".join(traceback.format_exception_only(error)).strip()[-2000:])
    space = types.ModuleType(NAME)
    space.__file__ = filename
    vars(space)["__builtins__"] = builtins
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[NAME] = sys.modules["__main__"] = space
    peer = CandidatePeer(channel, space)
    try:
        exec(code, vars(space))  # noqa: S102
        peer._check()
    except BaseException as error:  # noqa: BLE001 - a program may raise anything
        traceback.print_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        status, reason = failure(error)
        if isinstance(error, SystemExit):
            reason = f"the program ended itself while it was loaded: SystemExit: {error.code}"
        flush()
        report(channel, status, reason)
    flush()
    channel.send(frames.READY)
    peer.serve()


def flush() -> None:
    """Let out what the program printed, for the report."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def report(channel: frames.Channel, status: str, reason: str) -> NoReturn:
    """Say why there is nothing to call, and wait for the end."""
    channel.send(frames.FAILED, values.dumps([status, reason]))
    while True:
        channel.receive()
