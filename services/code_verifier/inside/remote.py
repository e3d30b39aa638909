"""The judge's stand-ins for what stays in the candidate: functions, classes, instances, exceptions.

What a :class:`Remote` forwards can tell the candidate nothing about expected values: it is called, its attributes and
items are read and set, it is iterated, and two Remotes are compared or combined where both are the candidate's. It
never meets plain data in an operator: ``remote == 5`` is false, ``remote < 5`` and ``remote + 5`` are a TypeError,
``hash``, ``abs``, ``float``, ``in`` are the judge's own business. ``type(remote)`` and ``isinstance(remote, list)`` do not lie.

An exception of the candidate is raised again as a fresh class below the nearest builtin one, which knows whose it is.
"""

from __future__ import annotations

import builtins
import collections.abc
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from . import frames
from .peer import Peer, ProtocolError
from .values import TYPES, Decoder, Encoder, Json, Malformed


class Unsupported(Exception):
    """The tests use the program in a way that cannot be carried."""


class Stop(BaseException):
    """Ends the tests: what was found stands already in :attr:`JudgePeer.found`."""


class Remote:
    """Something of the candidate's, made by :class:`JudgePeer` only."""

    __slots__ = ("_gristmill_kind", "_gristmill_peer", "_gristmill_ref")

    def __new__(cls, *args: object) -> Remote:  # noqa: PYI034
        if len(args) != 3 or not isinstance(args[0], JudgePeer):
            raise Unsupported("the tests derive a class from one of the program's")
        return object.__new__(cls)

    def __init__(self, peer: JudgePeer, ref: int, kind: str) -> None:
        put = object.__setattr__
        put(self, "_gristmill_peer", peer)
        put(self, "_gristmill_ref", ref)
        put(self, "_gristmill_kind", kind)

    def __mro_entries__(self, bases: tuple[object, ...]) -> NoReturn:
        peer: JudgePeer = self._gristmill_peer
        peer.end("sandbox_error", "the tests derive a class from one of the program's")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return _ask(self, "call", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in _READABLE:
            raise AttributeError(name)
        return _ask(self, "get", name)

    def __setattr__(self, name: str, value: object) -> None:
        _ask(self, "set", name, value)

    def __delattr__(self, name: str) -> None:
        _ask(self, "del", name)

    def __getitem__(self, key: object) -> Any:
        return _ask(self, "item", key)

    def __setitem__(self, key: object, value: object) -> None:
        _ask(self, "setitem", key, value)

    def __delitem__(self, key: object) -> None:
        _ask(self, "delitem", key)

    def __iter__(self) -> Iterator[Any]:
        found = _ask(self, "iter")
        return found if type(found) is Remote else iter(found)

    def __next__(self) -> Any:
        row = _ask(self, "next")
        if type(row) is not tuple:
            raise Malformed("an answer to next()")
        if not row:
            raise StopIteration
        return row[0]

    def __contains__(self, value: object) -> bool:
        return any(item is value or item == value for item in self)

    def __len__(self) -> int:
        return _exactly(int, _ask(self, "len"))

    def __bool__(self) -> bool:
        return _exactly(bool, _ask(self, "bool"))

    def __str__(self) -> str:
        return _exactly(str, _ask(self, "str"))

    def __repr__(self) -> str:
        return _exactly(str, _ask(self, "repr"))

    def __hash__(self) -> int:
        return hash(self._gristmill_ref)

    def __instancecheck__(self, value: object) -> bool:
        return type(value) in _STAND_INS and _exactly(bool, self._gristmill_peer.request("isinstance", value, self))

    def __subclasscheck__(self, value: object) -> bool:
        return type(value) is Remote and _exactly(bool, self._gristmill_peer.request("issubclass", value, self))

    def __enter__(self) -> Any:
        return _ask(self, "enter")

    def __exit__(self, *exception: object) -> None:
        # Never true: a context manager of the candidate does not swallow the tests' AssertionError.
        _ask(self, "exit")

    def __copy__(self) -> Any:
        return _ask(self, "copy")

    def __deepcopy__(self, memo: object) -> Any:
        return _ask(self, "deepcopy")


_READABLE = frozenset(("__name__", "__qualname__", "__doc__"))


class RemoteCoroutine(Remote):
    """A coroutine of the candidate's: awaiting it runs it there to its end."""

    __slots__ = ()

    def send(self, value: object) -> NoReturn:
        raise StopIteration(_ask(self, "await"))

    def throw(self, *exception: Any) -> NoReturn:
        raise exception[0]

    def close(self) -> None:
        """Nothing is held here."""

    def __await__(self) -> Iterator[Any]:
        return _ask(self, "await")
        yield


collections.abc.Coroutine.register(RemoteCoroutine)
_STAND_INS = frozenset((Remote, RemoteCoroutine))


def _ask(remote: Remote, operation: str, *operands: object) -> Any:
    return remote._gristmill_peer.request(operation, remote, *operands)


def _exactly(kind: type[Any], value: object) -> Any:
    if type(value) is not kind:
        raise Malformed(f"a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _forward(name: str, reflected: bool = False) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        if type(other) not in _STAND_INS:
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        return self._gristmill_peer.request("operator", name, *pair)

    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_name}__", _forward(_name))
for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
):
    setattr(Remote, f"__{_name}__", _forward(_name + "_" if _name in {"and", "or"} else _name))
    if _name not in {"lshift", "rshift"}:
        setattr(Remote, f"__i{_name}__", _forward("i" + _name))


class FromCandidate:
    """Base of the stand-ins of exceptions: tells them from those of the tests."""

    _gristmill_error: Any = None
    _gristmill_text = ""
    _gristmill_where = ""

    def __str__(self) -> str:
        return self._gristmill_text if self._gristmill_error is not None else super().__str__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._gristmill_error is None:
            raise AttributeError(name)
        return getattr(self._gristmill_error, name)


class JudgePeer(Peer):
    """The tests' side.

    Attributes:
        found: status and reason that stand whatever the tests do next.
        heard: whether the candidate has supplied anything.
        calls: how often it was asked.
        missing: names that it does not define.
    """

    def __init__(self, channel: frames.Channel, module: str) -> None:
        super().__init__(channel)
        self._module = module
        self._remotes: dict[int, Remote] = {}
        self._classes: dict[int, type[BaseException]] = {}
        self.found: tuple[str, str] | None = None
        self.heard = False
        self.calls = 0
        self.missing: set[str] = set()

    def end(self, status: str, reason: str) -> NoReturn:
        """End the tests with a status that nothing can change."""
        if self.found is None:
            self.found = (status, reason)
        raise Stop

    def request(self, operation: str, *operands: object) -> Any:
        if self.found is not None:
            raise Stop
        self.calls += 1
        try:
            result = super().request(operation, *operands)
        except (Malformed, ProtocolError) as error:
            self.end("runtime_error", f"the program's side broke the protocol: {error}")
        except EOFError:
            self.end("runtime_error", "the program's side is gone")
        finally:
            self.heard = True
        return result

    def name(self, name: str) -> Any:
        """What the candidate's module calls ``name``; raises :class:`KeyError`."""
        try:
            return self.request("name", name)
        except NameError as error:
            if isinstance(error, FromCandidate):
                self.missing.add(name)
                raise KeyError(name) from None
            raise

    def export(self, value: object) -> Json:
        kind = type(value)
        if kind in _STAND_INS:
            return ["w", object.__getattribute__(value, "_gristmill_ref")]
        if issubclass(kind, FromCandidate) and value._gristmill_error is not None:  # type: ignore[attr-defined]
            return self.export(value._gristmill_error)  # type: ignore[attr-defined]
        if issubclass(kind, type) and issubclass(value, FromCandidate):  # type: ignore[arg-type]
            for ref, known in self._classes.items():
                if known is value:
                    return ["w", ref]
        found = _library_name(value)
        return found or ["o", self.number(value)]

    def resolve(self, value: list[Any]) -> object:
        match value:
            case ["w", number]:
                return self.owned(number)
            case ["o", int(ref), str(kind)]:
                found = self._remotes.get(ref)
                if found is None:
                    make = RemoteCoroutine if kind == "coroutine" else Remote
                    found = self._remotes[ref] = make(self, ref, kind)
                return found
            case ["x", described]:
                return self._exception_class(described)
            case ["p", str(module)] if module.partition(".")[0] in sys.stdlib_module_names:
                try:
                    return importlib.import_module(module)
                except ImportError as error:
                    raise Malformed(str(error)) from None
        raise Malformed("an unknown kind of value")

    def _exception_class(self, described: Json, depth: int = 0) -> type[BaseException]:
        if type(described) is str:
            kind = vars(builtins).get(described)
            if isinstance(kind, type) and issubclass(kind, BaseException):
                return kind
            raise Malformed("no such exception")
        match described:
            case [int(ref), str(name), list(bases)] if depth < 20 and len(bases) < 20:
                known = self._classes.get(ref)
                if known is None:
                    known = self._classes[ref] = _derive(
                        name, [self._exception_class(base, depth + 1) for base in bases] or [Exception]
                    )
                return known
        raise Malformed("an exception class")

    def restore(self, decoder: Decoder, described: Json) -> BaseException:
        match described:
            case [kind_json, int(ref), text_json, args_json, str(where)]:
                pass
            case _:
                raise Malformed("an exception")
        base = self._exception_class(kind_json)
        text = _exactly(str, decoder.decode(text_json))
        args = _exactly(tuple, decoder.decode(args_json))
        name = base.__name__
        if name == "Missing":
            return _instance(NameError, f"name {text!r} is not defined", args, self.resolve(["o", ref, "object"]), "")
        if name == "Tampered":
            self.end("runtime_error", f"tampered: {text}")
        if not issubclass(base, Exception):  # SystemExit, KeyboardInterrupt: it must not end the judge
            self.end("runtime_error", f"{name}: {text}"[:2000])
        if issubclass(base, (StopIteration, StopAsyncIteration)):
            base = RuntimeError
            text = f"{name}: {text}"
        error_remote = self.resolve(["o", ref, "object"])
        return _instance(base, text, args, error_remote, where)

    def describe(self, encoder: Encoder, error: BaseException) -> Json:
        if isinstance(error, FromCandidate) and error._gristmill_error is not None:
            return [None, self.export(error._gristmill_error)[1]]  # its own, back again
        name = next((k.__name__ for k in type(error).__mro__ if vars(builtins).get(k.__name__) is k), "Exception")
        return [name, str(error)[:1000]]

    def perform(self, operation: str, operands: tuple[Any, ...]) -> object:
        try:
            return self._do(operation, operands)
        except Stop:
            raise
        except AssertionError as error:
            if not isinstance(error, FromCandidate):
                # The candidate would get it, and could swallow it.
                self.end("wrong_answer", f"in the tests' function: AssertionError {error}"[:2000])
            raise

    def hand_over(self, data: bytes) -> None:
        if self.found is not None:
            raise Stop  # nothing of what ended the tests goes to the candidate
        super().hand_over(data)

    def _do(self, operation: str, operands: tuple[Any, ...]) -> object:
        match operation, operands:
            case "call", (target, tuple(args), dict(kwargs)) if self._is_given(target) and callable(target):
                return target(*args, **kwargs)
            case "iter", (target,) if self._is_given(target):
                return iter(target)
            case "next", (target,) if self._is_given(target):
                try:
                    return (next(target),)
                except StopIteration:
                    return ()
            case (("len" | "bool" | "str" | "repr"), (target,)) if self._is_given(target):
                return {"len": len, "bool": bool, "str": str, "repr": repr}[operation](target)
            case "item", (target, key) if self._is_instance(target):
                return target[key]
            case "get", (target, str(name)) if self._is_instance(target) and not name.startswith("_"):
                return getattr(target, name)
            case "set", (target, str(name), value) if self._is_instance(target) and not name.startswith("_"):
                return setattr(target, name, value)
        raise TypeError(f"{operation} is not possible with what the tests passed")

    def _is_given(self, value: object) -> bool:
        return id(value) in self._numbers

    def _is_instance(self, value: object) -> bool:
        # Only of the tests' own classes: attributes of functions, generators and modules lead to the tests.
        return self._is_given(value) and type(value).__module__ == self._module


def _derive(name: str, bases: list[type[BaseException]]) -> type[BaseException]:
    own: list[type] = [] if any(issubclass(base, FromCandidate) for base in bases) else [FromCandidate]
    try:
        return types.new_class(name, (*own, *bases))
    except TypeError:  # builtin layouts that do not go together
        return types.new_class(name, (FromCandidate, Exception))


_raisable: dict[type[BaseException], type[BaseException]] = {}


def _instance(kind: type[BaseException], text: str, args: tuple[Any, ...], remote: object, where: str) -> BaseException:
    if not issubclass(kind, FromCandidate):
        made = _raisable.get(kind)
        if made is None:
            made = _raisable[kind] = _derive(kind.__name__, [kind])
        kind = made
    error: Any = kind.__new__(kind)
    error.args = args
    error._gristmill_text = text
    error._gristmill_error = remote
    error._gristmill_where = where
    result: BaseException = error
    return result


def _library_name(value: Any) -> Json | None:
    """How the candidate can find a function of the standard library by itself."""
    if isinstance(value, type) and vars(builtins).get(value.__name__) is value:
        return ["v", value.__name__]
    if not isinstance(value, types.BuiltinFunctionType | types.FunctionType | types.MethodDescriptorType | type):
        return None
    if isinstance(value, types.MethodDescriptorType):
        owner = value.__objclass__
        return ["j", "builtins", f"{owner.__name__}.{value.__name__}"] if owner in TYPES.values() else None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    if module.partition(".")[0] not in sys.stdlib_module_names or module == "__main__":
        return None
    found = getattr(sys.modules.get(module), name, None)
    return ["j", module, name] if found is value else None
