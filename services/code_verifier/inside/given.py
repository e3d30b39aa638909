"""The candidate's stand-ins for what the tests pass and is not plain: functions, iterators, objects of their own."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Asking(Protocol):
    """What a stand-in needs of the candidate's side."""

    def ask(self, operation: str, *operands: object) -> Any: ...


class Given:
    """Something of the tests, passed as an argument: calling it runs the tests' code, where it is."""

    __slots__ = ("_peer", "_ref", "_shown")

    def __init__(self, peer: Asking, ref: int, shown: list[Any]) -> None:
        self._peer = peer
        self._ref = ref
        self._shown = shown

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._peer.ask("call", self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return self._told(name)
        return self._peer.ask("get", self, name)

    def _told(self, name: str) -> Any:
        """What the tests said of a function when they passed it."""
        if self._shown[0] != "function":
            raise AttributeError(name)
        _, own, qualified, doc, parameters = self._shown
        match name:
            case "__name__":
                return own
            case "__qualname__":
                return qualified
            case "__doc__":
                return doc
            case "__signature__":
                return _signature(parameters)
            case "__code__":
                positional = [p[0] for p in parameters if p[1] < _VARIABLE]
                only = [p[0] for p in parameters if p[1] == _ONLY_NAMED]
                return types.SimpleNamespace(
                    co_name=own,
                    co_argcount=len(positional),
                    co_kwonlyargcount=len(only),
                    co_varnames=(*positional, *only),
                )
        raise AttributeError(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in Given.__slots__:
            object.__setattr__(self, name, value)
        else:
            self._peer.ask("set", self, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(GivenIterator(self._peer, self._peer.ask("iter", self)))

    def __next__(self) -> Any:
        row = self._peer.ask("next", self)
        if not row:
            raise StopIteration
        return row[0]

    def __len__(self) -> int:
        return int(self._peer.ask("len", self))

    def __bool__(self) -> bool:
        return bool(self._peer.ask("bool", self))

    def __getitem__(self, key: object) -> Any:
        return self._peer.ask("item", self, key)

    def __hash__(self) -> int:
        return int(self._peer.ask("hash", self)) if self._shown[0] == "instance" else hash(self._ref)

    def __str__(self) -> str:
        return str(self._peer.ask("str", self))

    def __repr__(self) -> str:
        return str(self._peer.ask("repr", self))


def _forwarded(name: str) -> Callable[[Given, object], Any]:
    def method(self: Given, other: object) -> Any:
        if self._shown[0] != "instance":  # functions and the like: themselves and nothing else
            return (self is other) == (name == "eq") if name in {"eq", "ne"} else NotImplemented
        return self._peer.ask("operator", name, self, other)

    return method


_VARIABLE, _ONLY_NAMED = 2, 3


def _signature(parameters: list[list[Any]]) -> inspect.Signature:
    made = [
        inspect.Parameter(name, inspect._ParameterKind(kind), default=None if default else inspect.Parameter.empty)
        for name, kind, default in parameters
    ]
    return inspect.Signature(made)


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod"):
    setattr(Given, f"__{_name}__", _forwarded(_name))


Given.__doc__ = property(lambda self: self._told("__doc__") if self._shown[0] == "function" else None)  # type: ignore[assignment]


class GivenIterator:
    """An iterator of the tests."""

    def __init__(self, peer: Asking, given: Any) -> None:
        self._peer = peer
        self._given = given

    def __iter__(self) -> GivenIterator:
        return self

    def __next__(self) -> Any:
        row = self._peer.ask("next", self._given)
        if not row:
            raise StopIteration
        return row[0]
