"""A semaphore whose size follows the engine's limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class Slots:
    """At most ``limit`` holders at once, first come, first served. Lowering the limit takes nobody's slot away."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Holders at once."""
        return self._limit

    @property
    def held(self) -> int:
        """Holders now."""
        return self._held

    def resize(self, limit: int) -> None:
        """Set another limit; who waits and fits gets in."""
        self._limit = limit
        self._let_in()

    async def __aenter__(self) -> None:
        if self._held < self._limit and not self._queue:
            self._held += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._queue.remove(turn)
            else:
                self._leave()  # it was let in at the moment it gave up
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._held -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._queue and self._held < self._limit:
            turn = self._queue.popleft()
            if not turn.cancelled():
                self._held += 1
                turn.set_result(None)
