"""Admission by credit: a group starts only when its ordinal is within ``admit_until``.

Credit travels with a policy version, and counts only once that version is delivered: a group admitted by the
credit of version v is therefore sampled by v or a later version, which is what makes ``max_staleness = 0`` strict.
"""

from __future__ import annotations

import asyncio
import time


class Admission:
    """Credit of one run; one event loop. With ``enabled`` false everything is admitted at once."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._delivered = -1
        self._until = 0
        self._offers: dict[int, int] = {}
        self._waiters: dict[asyncio.Future[None], int] = {}

    @property
    def admit_until(self) -> int:
        """Largest ordinal that may start now."""
        return self._until

    @property
    def waiting(self) -> int:
        """Groups that wait for credit."""
        return len(self._waiters)

    def offer(self, version: int, admit_until: int) -> None:
        """Credit that came with a record of ``version``."""
        if version <= self._delivered:
            self._raise_to(admit_until)
        else:
            self._offers[version] = max(admit_until, self._offers.get(version, 0))

    def delivered(self, version: int) -> None:
        """``version`` is current on an engine: the credit of it and of all before counts."""
        self._delivered = max(self._delivered, version)
        for offered in [known for known in self._offers if known <= self._delivered]:
            self._raise_to(self._offers.pop(offered))

    async def wait(self, ordinal: int) -> float:
        """Wait for credit; returns the seconds it took."""
        if not self._enabled or ordinal <= self._until:
            return 0.0
        started = time.monotonic()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = ordinal
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)
        return time.monotonic() - started

    def _raise_to(self, admit_until: int) -> None:
        if admit_until <= self._until:
            return
        self._until = admit_until
        for waiter, ordinal in sorted(self._waiters.items(), key=lambda item: item[1]):
            if ordinal <= admit_until and not waiter.done():
                waiter.set_result(None)
