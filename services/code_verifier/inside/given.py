"""The candidate's stand-ins for what the tests pass and is not plain: functions, iterators, objects of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Asking(Protocol):
    """What a stand-in needs of the candidate's side."""

    def ask(self, operation: str, *operands: object) -> Any: ...


class Given:
    """Something of the tests, passed as an argument: calling it runs the tests' code, where it is."""

    __slots__ = ("_peer", "_ref")

    def __init__(self, peer: Asking, ref: int) -> None:
        self._peer = peer
        self._ref = ref

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._peer.ask("call", self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._peer.ask("get", self, name)

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
        return hash(self._ref)

    def __str__(self) -> str:
        return str(self._peer.ask("str", self))

    def __repr__(self) -> str:
        return str(self._peer.ask("repr", self))


def _forwarded(name: str) -> Callable[[Given, object], Any]:
    def method(self: Given, other: object) -> Any:
        return self._peer.ask("operator", name, self, other)

    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod"):
    setattr(Given, f"__{_name}__", _forwarded(_name))


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
