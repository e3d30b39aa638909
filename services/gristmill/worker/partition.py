"""One owned partition: what is buffered, what is being worked on, and what may be committed.

Two threads share it without a lock. The event loop owns the window, the buffer and the lanes; the poll thread
owns ``expected``, ``paused`` and the commit marks. Across that line go only single reads of ``full``,
``watermark``, ``closed`` and the two events.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from gristmill.topics import Topic
from gristmill.worker.stats import TopicStats
from gristmill.worker.window import Slot, Window


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what one partition may hold in this process."""

    concurrency: int
    """Handlers at work at once."""
    buffer_records: int
    """Records waiting for a handler."""
    buffer_bytes: int
    """Bytes of their values."""
    window_records: int
    """Records from the oldest unsettled one on: what a crash repeats at most."""


class Partition:
    """State of one partition for as long as this member owns it."""

    def __init__(self, topic: Topic, number: int, limits: Limits, stats: TopicStats, start: int | None) -> None:
        self.topic = topic
        self.number = number
        self.stats = stats
        self._limits = limits
        # Event loop:
        self.window = Window(start)
        self.buffer: deque[Slot] = deque()
        self.buffered_bytes = 0
        self.lanes: set[asyncio.Task[None]] = set()
        self.waits: set[asyncio.Timeout] = set()
        self.active = 0
        self.starting = False
        self.unsettled = 0
        self.full = False
        self.closed = False
        self.abandoned = False
        self.drained = threading.Event()
        # Poll thread:
        self.expected = start
        self.check_position = start is not None
        self.doubted: int | None = None
        self.paused = False
        self.committed = -1 if start is None else start
        self.sent = self.committed
        self.received_at = time.monotonic()
        self._behind_since: float | None = None
        self.repairs = 0

    @property
    def key(self) -> tuple[str, int]:
        """Topic name and partition number."""
        return self.topic.name, self.number

    def is_silent(self, now: float, lag: int, silence_s: float) -> bool:
        """Whether records have been due for so long that something must be wrong; for the poll thread.

        ``lag`` is of the last statistics, and may be of records that have been settled since: it must persist.
        """
        waits = not self.paused and not self.full and self.expected is not None and self.expected == self.watermark
        if not waits or lag <= 0:
            self._behind_since = None
            return False
        if self._behind_since is None:
            self._behind_since = now
        return now - max(self._behind_since, self.received_at) >= silence_s

    @property
    def watermark(self) -> int | None:
        """Offset to commit, None while nothing is known of this partition."""
        return self.window.watermark

    def accept(self, messages: list[Any]) -> None:
        """Take records from the consumer."""
        if self.closed:
            return
        slots = [Slot(message.offset(), message) for message in messages]
        self.window.extend(slots)
        self.buffer.extend(slots)
        self.buffered_bytes += sum(map(len, messages))
        self.stats.received += len(messages)
        self._update_full()

    def take(self) -> Slot:
        """The next record to handle; from here until it is settled, draining waits for it."""
        slot = self.buffer.popleft()
        self.buffered_bytes -= len(slot.message)
        self.unsettled += 1
        self.stats.in_flight += 1
        if self.full:
            self._update_full()
        return slot

    def may_start_lane(self) -> bool:
        """Whether another handler would find work. Lanes start one at a time, each when the last is under way."""
        return bool(self.buffer) and not self.starting and not self.closed and self.active < self._limits.concurrency

    def settle(self, slot: Slot) -> None:
        """Everything that comes of the record is acknowledged."""
        self.window.settle(slot)
        if self.abandoned:
            return
        self.unsettled -= 1
        self.stats.in_flight -= 1
        if self.full:
            self._update_full()
        if self.closed and not self.unsettled:
            self.drained.set()

    def give_back(self) -> None:
        """A handler has let go of its record, which stays unsettled for the next owner."""
        if self.abandoned:
            return
        self.unsettled -= 1
        self.stats.in_flight -= 1
        if self.closed and not self.unsettled:
            self.drained.set()

    def close(self) -> None:
        """Start nothing more; what is under way goes on."""
        self.closed = True
        for scope in self.waits:
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())
        self.buffer.clear()
        self.buffered_bytes = 0
        if not self.unsettled:
            self.drained.set()

    def cancel(self) -> None:
        """Give up what is under way. It stays unsettled, so it is never committed."""
        self.close()
        if self.abandoned:
            return
        self.abandoned = True
        for lane in self.lanes:
            lane.cancel()
        self.stats.in_flight -= self.unsettled
        self.unsettled = 0
        self.drained.set()

    def _update_full(self) -> None:
        """Full at the limits, free again at half of them, so that pausing does not flutter."""
        limits = self._limits
        share = 2 if self.full else 1
        self.full = (
            len(self.buffer) * share >= limits.buffer_records
            or self.buffered_bytes * share >= limits.buffer_bytes
            or len(self.window) * share >= limits.window_records
        )
