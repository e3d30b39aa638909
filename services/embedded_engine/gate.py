"""Who may enter the model: requests (many), weight updates (one, alone), and nobody while paused.

All of it lives on the server's event loop, so plain attributes suffice. An update that waits holds new
requests back (SGLang's writer preference); while paused an update does not wait at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Gate:
    """A writer-preferring lock with a pause switch."""

    def __init__(self) -> None:
        self.paused = False
        self.inside = 0
        self.blocked = 0
        self._updating = False
        self._updates_waiting = 0
        self._waiters: set[asyncio.Future[None]] = set()

    async def enter(self, given_up: Callable[[], bool]) -> bool:
        """Wait until a request may run; False when ``given_up`` became true first. Pair True with :meth:`leave`."""
        if not self._open():
            self.blocked += 1
            try:
                await self.until(lambda: given_up() or self._open())
            finally:
                self.blocked -= 1
        if given_up():
            return False
        self.inside += 1
        return True

    def leave(self) -> None:
        """A request has ended."""
        self.inside -= 1
        self.changed()

    @asynccontextmanager
    async def updating(self) -> AsyncIterator[None]:
        """Exclusive access; at once, and shared with paused requests, while paused."""
        if self.paused:
            yield
            return
        self._updates_waiting += 1
        try:
            await self.until(lambda: self.paused or (not self.inside and not self._updating))
        finally:
            self._updates_waiting -= 1
            self.changed()
        self._updating = True
        try:
            yield
        finally:
            self._updating = False
            self.changed()

    def pause(self) -> None:
        """Let no further request in."""
        self.paused = True
        self.changed()

    def resume(self) -> None:
        """Let requests in again."""
        self.paused = False
        self.changed()

    def changed(self) -> None:
        """Have every waiter look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; it is looked at after every :meth:`changed`."""
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def _open(self) -> bool:
        return not (self.paused or self._updating or self._updates_waiting)
