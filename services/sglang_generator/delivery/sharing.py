"""What is packed for one engine serves all that need it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Shared(Generic[T]):
    """Values made on threads, by key, kept for as long as somebody holds them. Engines that take an update in step
    cost the memory of one; one that hangs holds nobody up."""

    def __init__(self) -> None:
        self._made: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        self._making: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key; raises what ``make`` raises."""
        made = self._made.get(key)
        if made is not None:
            return made
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(self._make(key, make))
        return await asyncio.shield(task)

    async def _make(self, key: Hashable, make: Callable[[], T]) -> T:
        try:
            made = await asyncio.to_thread(make)
        finally:
            del self._making[key]
        self._made[key] = made
        return made
