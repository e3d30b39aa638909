"""The judge's stand-ins for what stays in the candidate: functions, classes, instances, exceptions.

What a :class:`Remote` forwards can tell the candidate nothing about expected values: it is called, its attributes and
items are read and set, it is iterated, and two Remotes are compared or combined where both are the candidate's. It
never meets plain data in an operator: ``remote == 5`` is false, ``remote < 5`` and ``remote + 5`` are a TypeError.
Operators of one operand, and the conversions of what the tests themselves made by calling a class, say nothing of
anything else and are forwarded. ``isinstance(remote, list)`` does not lie; ``type(remote)`` is a class of ours with the
name of the candidate's.
"""

from __future__ import annotations

import collections.abc
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn, Protocol, TypeVar


class Asking(Protocol):
    """What a stand-in needs of the judge's side."""

    def request(self, operation: str, *operands: object) -> Any: ...

    def end(self, status: str, reason: str) -> NoReturn: ...


class Remote:
    """Something of the candidate's, made by :class:`JudgePeer` only."""

    __slots__ = ("_gristmill_kind", "_gristmill_made", "_gristmill_peer", "_gristmill_ref")
    _gristmill_class = -1

    def __init__(self, peer: Asking, ref: int, kind: str) -> None:
        put = object.__setattr__
        put(self, "_gristmill_peer", peer)
        put(self, "_gristmill_ref", ref)
        put(self, "_gristmill_kind", kind)
        put(self, "_gristmill_made", False)

    def __mro_entries__(self, bases: tuple[object, ...]) -> NoReturn:
        peer: Asking = self._gristmill_peer
        peer.end("sandbox_error", "the tests derive a class from one of the program's")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        made = ask(self, "call", args, kwargs)
        if self._gristmill_kind == "class" and stands_in(made):
            object.__setattr__(made, "_gristmill_made", True)
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in READABLE:
            raise AttributeError(name)
        if name == "difference" and sys._getframe(1).f_globals.get("__name__") == "unittest.case":
            raise AttributeError(name)  # assertSetEqual would have the program compare what it gave
        return read(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        ask(self, "set", name, value)

    def __delattr__(self, name: str) -> None:
        ask(self, "del", name)

    def __getitem__(self, key: object) -> Any:
        return ask(self, "item", key)

    def __setitem__(self, key: object, value: object) -> None:
        ask(self, "setitem", key, value)

    def __delitem__(self, key: object) -> None:
        ask(self, "delitem", key)

    def __iter__(self) -> Iterator[Any]:
        found = ask(self, "iter")
        return found if issubclass(type(found), Remote) else iter(found)

    def __next__(self) -> Any:
        row = exactly(self, tuple, "next")
        if not row:
            raise StopIteration
        return row[0]

    def __contains__(self, value: object) -> bool:
        if self._gristmill_made:
            return exactly(self, bool, "contains", value)
        return any(item is value or item == value for item in self)

    def __len__(self) -> int:
        return exactly(self, int, "len")

    def __bool__(self) -> bool:
        return exactly(self, bool, "bool")

    def __str__(self) -> str:
        return exactly(self, str, "str")

    def __repr__(self) -> str:
        return exactly(self, str, "repr")

    def __hash__(self) -> int:
        return exactly(self, int, "hash") if self._gristmill_kind == "valued" else hash(self._gristmill_ref)

    def __instancecheck__(self, value: object) -> bool:
        return stands_in(value) and exactly(self, bool, "isinstance", value)

    def __subclasscheck__(self, value: object) -> bool:
        return issubclass(type(value), Remote) and exactly(self, bool, "issubclass", value)

    def _is_class(self, kind: Any) -> bool:
        return bool(kind._gristmill_class == self._gristmill_ref)

    def __enter__(self) -> Any:
        return ask(self, "enter")

    def __exit__(self, *_exception: object) -> None:
        # Never true: a context manager of the candidate does not swallow the tests' AssertionError.
        ask(self, "exit")

    def __copy__(self) -> Any:
        return ask(self, "copy")

    def __deepcopy__(self, memo: object) -> Any:
        return ask(self, "deepcopy")

    def __float__(self) -> float:
        return _converted(self, float, "float")

    def __int__(self) -> int:
        return _converted(self, int, "int")

    def __complex__(self) -> complex:
        return _converted(self, complex, "complex")

    def __round__(self, digits: int | None = None) -> Any:
        if not self._gristmill_made:
            raise TypeError("what the program gave is no number")
        return ask(self, "round", digits)


READABLE = frozenset(("__name__", "__qualname__", "__doc__", "__dict__"))


class RemoteCoroutine(Remote):
    """A coroutine of the candidate's: awaiting it runs it there to its end."""

    __slots__ = ()

    def send(self, _value: object) -> NoReturn:
        raise StopIteration(ask(self, "await"))

    def __next__(self) -> NoReturn:  # what asyncio calls in place of send(None)
        raise StopIteration(ask(self, "await"))

    def throw(self, *exception: Any) -> NoReturn:
        raise exception[0]

    def close(self) -> None:
        """Nothing is held here."""

    def __await__(self) -> Generator[Any, Any, Any]:
        return ask(self, "await")
        yield


collections.abc.Coroutine.register(RemoteCoroutine)
CLASSES = 1000
STAND_INS: set[type] = {Remote, RemoteCoroutine}
"""Classes of stand-ins; more are added as the candidate's classes become known."""


documentation = property(lambda self: ask(self, "get", "__doc__"))
Remote.__doc__ = documentation  # type: ignore[assignment]


def named_class(base: type, ref: int, name: str) -> type:
    """A class of stand-ins for instances of one of the candidate's classes, with its name."""
    if len(STAND_INS) >= CLASSES:
        return base
    space = {"__slots__": (), "_gristmill_class": ref, "__module__": "candidate", "__doc__": documentation}
    made = type(name if name.isidentifier() else "object", (base,), space)
    STAND_INS.add(made)
    return made


def stands_in(value: object) -> bool:
    """Whether a value stands for something of the candidate's."""
    return type(value) in STAND_INS and object.__getattribute__(value, "_gristmill_ref") >= 0


_PLAIN = (str, bytes, bytearray, list, tuple, dict, set, frozenset, int, float, complex)
PREDICATES = frozenset(
    name for kind in _PLAIN for name in vars(kind) if name.startswith("is") or name in {"startswith", "endswith"}
)
"""Questions to plain values. What a function gave in place of one has no say in them."""
COMPARING = frozenset(("count", "difference", "index", "intersection", "symmetric_difference", "union"))
"""Methods of plain containers whose argument is what something is compared with."""


def read(value: Any, name: str) -> Any:
    """An attribute of a stand-in. Of what the tests made by calling a class it is whatever the program says."""
    if value._gristmill_made or value._gristmill_kind not in {"object", "valued"}:
        return ask(value, "get", name)
    if name in PREDICATES:
        raise AttributeError(f"what the program gave is no plain value, and has no {name}")
    found = ask(value, "get", name)
    if name not in COMPARING or not stands_in(found):
        return found

    def method(*args: object, **kwargs: object) -> Any:
        if len(args) == 1 and issubclass(type(args[0]), _PLAIN):
            raise AttributeError(f"what the program gave is no plain value: {name} would show it what is expected")
        return found(*args, **kwargs)

    return method


def ask(remote: Any, operation: str, *operands: object) -> Any:
    return remote._gristmill_peer.request(operation, remote, *operands)


_T = TypeVar("_T")


def exactly(remote: Any, kind: type[_T], operation: str, *operands: object) -> _T:
    """An answer that can be of one type only."""
    value = ask(remote, operation, *operands)
    if type(value) is not kind:
        peer: Asking = remote._gristmill_peer
        peer.end("runtime_error", f"the program's side answered {operation} with a {type(value).__name__}")
    return value


def _converted(remote: Remote, kind: type[_T], operation: str) -> _T:
    # A function that gives such an object in place of a number has not given the number.
    if not remote._gristmill_made:
        raise TypeError("what the program gave is no number")
    return exactly(remote, kind, operation)


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_PLAIN_TYPES = frozenset((*_PLAIN, bool, type(None)))


def _forward(name: str, reflected: bool = False) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        if name in {"eq", "ne"} and isinstance(other, type) and other in STAND_INS and self._is_class(other):
            return name == "eq"  # ``type(x) == Point``
        if name in _COMPARISONS and type(other) in _PLAIN_TYPES:
            # Not NotImplemented, which is true where the tests call the method by its name.
            if name in {"eq", "ne"}:
                return name == "ne"
            raise TypeError(f"{name} of what the program gave and a {type(other).__name__}")
        if not stands_in(other):
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        return self._gristmill_peer.request("operator", name, *pair)

    return method


UNARY = ("neg", "pos", "invert", "abs")
BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("matmul", "and_", "or_", "xor", "lshift", "rshift"),
)


def _forward_unary(name: str) -> Callable[[Remote], Any]:
    return lambda self: ask(self, "operator1", name)


for _name in _COMPARISONS:
    setattr(Remote, f"__{_name}__", _forward(_name))
for _name in UNARY:
    setattr(Remote, f"__{_name}__", _forward_unary(_name))
for _name in BINARY:
    setattr(Remote, f"__{_name.strip('_')}__", _forward(_name))
    if _name not in {"lshift", "rshift"}:
        setattr(Remote, f"__i{_name.strip('_')}__", _forward("i" + _name.strip("_")))
