"""A semaphore whose size follows the engine's limit, which calls rather than wakes, and can wait for company."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

H = TypeVar("H")


class Slots(Generic[H]):
    """At most ``limit`` holders at once, first come, first served. Lowering the limit takes nobody's slot away.

    Who leaves calls the next one in, within the same turn of the event loop. With ``together`` above 1, slots that are
    left while nearly all are taken wait for each other: until so many are free, or :meth:`fill` is called.
    """

    def __init__(self, limit: int, on_slot: Callable[[H], None], on_gathering: Callable[[], None]) -> None:
        """``on_slot`` is called with each holder that gets a slot; it must not raise, and may leave at once.
        ``on_gathering`` is called when free slots begin to wait: see to it that :meth:`fill` is called sometime.
        """
        self.together = 1
        """So many free slots do not wait for more; 1: none waits."""
        self._on_slot = on_slot
        self._on_gathering = on_gathering
        self._gathering = False
        self._limit = limit
        self._held = 0
        self._queue: OrderedDict[H, None] = OrderedDict()
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
        """Those who wait."""
        return len(self._queue)

    def resize(self, limit: int) -> None:
        """Set another limit; who waits and fits gets in."""
        self._limit = limit
        self.fill()

    def enter(self, holder: H) -> None:
        """Wait for a slot, or get it at once, unless free slots wait for each other. Everyone waits once."""
        self._queue[holder] = None
        if not self._gathering:
            self._let_in()

    def withdraw(self, holder: H) -> bool:
        """Wait no longer; false for one who does not wait."""
        if holder not in self._queue:
            return False
        del self._queue[holder]
        return True

    def leave(self) -> None:
        """Give a slot back."""
        self._held -= 1
        if self._letting_in:
            return  # whoever has just been let in has left: the loop that did it goes on with the next
        if 0 < self._limit - self._held < self.together:
            self._begin_to_gather()
        else:
            self.fill()

    def fill(self) -> None:
        """Give out what is free, however few. Whoever comes later gets in at once, until slots begin to wait again."""
        self._gathering = False
        self._let_in()

    def _begin_to_gather(self) -> None:
        if not self._gathering:
            self._gathering = True
            self._on_gathering()

    def _let_in(self) -> None:
        if self._letting_in:
            return
        self._letting_in = True
        try:
            while self._queue and self._held < self._limit:
                holder, _ = self._queue.popitem(last=False)
                self._held += 1
                try:
                    self._on_slot(holder)
                except BaseException:
                    self._held -= 1
                    if self._queue:
                        self._begin_to_gather()  # the others' turn comes
                    raise
        finally:
            self._letting_in = False
