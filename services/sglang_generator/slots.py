"""A semaphore whose size follows the engine's limit, which calls rather than wakes, and can wait for company."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

Turn: TypeAlias = Callable[[], None]
"""Called when its holder has a slot; it must not raise, and may leave at once."""


class Slots:
    """At most ``limit`` holders at once, first come, first served. Lowering the limit takes nobody's slot away.

    Who leaves calls the next one in, within the same turn of the event loop; with ``together`` above 1 the last of so
    many calls all of them in.
    """

    def __init__(self, limit: int, held_back: Callable[[], None]) -> None:
        """``held_back`` is called when turns wait though slots are free: see to it that :meth:`fill` is called."""
        self.together = 1
        """Fewest free slots that are given out."""
        self._held_back = held_back
        self._limit = limit
        self._held = 0
        self._queue: OrderedDict[Turn, None] = OrderedDict()
        self._letting_in = False

    @property
    def limit(self) -> int:
        """Holders at once."""
        return self._limit

    @property
    def held(self) -> int:
        """Holders now."""
        return self._held

    @property
    def waiting(self) -> int:
        """Turns that wait."""
        return len(self._queue)

    def resize(self, limit: int) -> None:
        """Set another limit; who waits and fits gets in."""
        self._limit = limit
        self._let_in()

    def enter(self, turn: Turn) -> None:
        """Wait for a slot, or get it at once. Every turn waits once."""
        self._queue[turn] = None
        self._let_in()

    def withdraw(self, turn: Turn) -> bool:
        """Wait no longer; false if the turn does not wait."""
        if turn not in self._queue:
            return False
        del self._queue[turn]
        return True

    def leave(self) -> None:
        """Give a slot back."""
        self._held -= 1
        self._let_in()

    def fill(self) -> None:
        """Give out what is free, however few that are."""
        self._let_in(1)

    def _let_in(self, together: int | None = None) -> None:
        if self._letting_in:
            return  # a turn that is being called has left: the loop below goes on with the next
        free = self._limit - self._held
        if 0 < free < (self.together if together is None else together) and self._queue:
            self._held_back()
            return
        self._letting_in = True
        try:
            while self._queue and self._held < self._limit:
                turn, _ = self._queue.popitem(last=False)
                self._held += 1
                try:
                    turn()
                except BaseException:
                    self._held -= 1
                    raise
        finally:
            self._letting_in = False
