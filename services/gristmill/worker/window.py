"""Out-of-order work, in-order commits: the offsets of one partition between arrival and commit.

Invariant: :attr:`Window.watermark` is the offset to commit. Every record below it is settled, and it never goes
back, except by :meth:`Window.restart`.
"""

from __future__ import annotations

from collections import deque
from typing import Any


class Slot:
    """One record on its way: ``pending`` of its outputs are not acknowledged yet."""

    __slots__ = ("given_up", "message", "offset", "pending", "settled")

    def __init__(self, offset: int, message: Any = None) -> None:
        self.offset = offset
        self.message = message
        self.pending = 0
        self.settled = False
        self.given_up = False


class Window:
    """Slots in order of offset. Offsets may have gaps (compaction), so order of arrival is what counts."""

    __slots__ = ("_slots", "watermark")

    def __init__(self, watermark: int | None = None) -> None:
        self._slots: deque[Slot] = deque()
        self.watermark = watermark
        """Offset to commit; None until it is known."""

    def __len__(self) -> int:
        """Slots from the first unsettled one on."""
        return len(self._slots)

    def open(self, slot: Slot) -> None:
        """Add a record that has just arrived."""
        self._slots.append(slot)

    def extend(self, slots: list[Slot]) -> None:
        """Add records that have just arrived, in order."""
        self._slots.extend(slots)

    def settle(self, slot: Slot) -> None:
        """Mark a record as done with; its message is let go."""
        slot.settled = True
        slot.message = None
        slots = self._slots
        if slots and slots[0] is slot:
            while slots and slots[0].settled:
                slot = slots.popleft()
            self.watermark = slot.offset + 1

    def restart(self, offset: int) -> None:
        """Begin again at ``offset``, which may be lower: the log behind it was lost or made anew."""
        self._slots.clear()
        self.watermark = offset
