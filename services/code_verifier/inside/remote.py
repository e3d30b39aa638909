"""The judge's stand-ins for what stays in the candidate: functions, classes, instances, exceptions.

What a :class:`Remote` forwards can tell the candidate nothing about expected values: it is called, its attributes and
items are read and set, it is iterated, and two Remotes are compared or combined where both are the candidate's. It
never meets plain data in an operator: ``remote == 5`` is false, ``remote < 5`` and ``remote + 5`` are a TypeError,
``hash``, ``abs``, ``float``, ``in`` are the judge's own business. ``type(remote)`` and ``isinstance(remote, list)`` do
not lie.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn, Protocol, TypeVar


class Asking(Protocol):
    """What a stand-in needs of the judge's side."""

    def request(self, operation: str, *operands: object) -> Any: ...

    def end(self, status: str, reason: str) -> NoReturn: ...


class Remote:
    """Something of the candidate's, made by :class:`JudgePeer` only."""

    __slots__ = ("_gristmill_kind", "_gristmill_peer", "_gristmill_ref")

    def __init__(self, peer: Asking, ref: int, kind: str) -> None:
        put = object.__setattr__
        put(self, "_gristmill_peer", peer)
        put(self, "_gristmill_ref", ref)
        put(self, "_gristmill_kind", kind)

    def __mro_entries__(self, bases: tuple[object, ...]) -> NoReturn:
        peer: Asking = self._gristmill_peer
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
        row = _exactly(self, tuple, "next")
        if not row:
            raise StopIteration
        return row[0]

    def __contains__(self, value: object) -> bool:
        return any(item is value or item == value for item in self)

    def __len__(self) -> int:
        return _exactly(self, int, "len")

    def __bool__(self) -> bool:
        return _exactly(self, bool, "bool")

    def __str__(self) -> str:
        return _exactly(self, str, "str")

    def __repr__(self) -> str:
        return _exactly(self, str, "repr")

    def __hash__(self) -> int:
        return hash(self._gristmill_ref)

    def __instancecheck__(self, value: object) -> bool:
        return type(value) in STAND_INS and _exactly(self, bool, "isinstance", value)

    def __subclasscheck__(self, value: object) -> bool:
        return type(value) is Remote and _exactly(self, bool, "issubclass", value)

    def __enter__(self) -> Any:
        return _ask(self, "enter")

    def __exit__(self, *_exception: object) -> None:
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

    def send(self, _value: object) -> NoReturn:
        raise StopIteration(_ask(self, "await"))

    def __next__(self) -> NoReturn:  # what asyncio calls in place of send(None)
        raise StopIteration(_ask(self, "await"))

    def throw(self, *exception: Any) -> NoReturn:
        raise exception[0]

    def close(self) -> None:
        """Nothing is held here."""

    def __await__(self) -> Generator[Any, Any, Any]:
        return _ask(self, "await")
        yield


collections.abc.Coroutine.register(RemoteCoroutine)
STAND_INS = frozenset((Remote, RemoteCoroutine))


def _ask(remote: Remote, operation: str, *operands: object) -> Any:
    return remote._gristmill_peer.request(operation, remote, *operands)


_T = TypeVar("_T")


def _exactly(remote: Remote, kind: type[_T], operation: str, *operands: object) -> _T:
    """An answer that can be of one type only."""
    value = _ask(remote, operation, *operands)
    if type(value) is not kind:
        peer: Asking = remote._gristmill_peer
        peer.end("runtime_error", f"the program's side answered {operation} with a {type(value).__name__}")
    return value


def _forward(name: str, reflected: bool = False) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        if type(other) not in STAND_INS:
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
