"""A set of ordinals 1, 2, 3, ... kept as intervals.

Groups settle nearly in order, so the set is a handful of intervals however long the run: memory and
checkpoints stay small.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Ordinals:
    """Set of positive integers as sorted, disjoint, non-adjacent closed intervals."""

    __slots__ = ("_count", "_ends", "_starts")

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        """Raises ValueError when the intervals overlap, touch, are out of order or start below 1."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._count = 0
        previous = -1
        for start, end in intervals:
            if start < 1 or end < start or start <= previous + 1:
                raise ValueError(f"({start}, {end}) is no interval that can follow one ending at {previous}")
            self._starts.append(start)
            self._ends.append(end)
            self._count += end - start + 1
            previous = end

    def add(self, ordinal: int) -> bool:
        """Add an ordinal; False when it was there already.

        Raises:
            ValueError: ``ordinal`` is below 1.
        """
        if ordinal < 1:
            raise ValueError(f"ordinals count from 1, not {ordinal}")
        at = bisect_right(self._starts, ordinal) - 1
        if at >= 0 and ordinal <= self._ends[at]:
            return False
        joins_left = at >= 0 and self._ends[at] == ordinal - 1
        joins_right = at + 1 < len(self._starts) and self._starts[at + 1] == ordinal + 1
        if joins_left and joins_right:
            self._ends[at] = self._ends.pop(at + 1)
            del self._starts[at + 1]
        elif joins_left:
            self._ends[at] = ordinal
        elif joins_right:
            self._starts[at + 1] = ordinal
        else:
            self._starts.insert(at + 1, ordinal)
            self._ends.insert(at + 1, ordinal)
        self._count += 1
        return True

    def __contains__(self, ordinal: int) -> bool:
        at = bisect_right(self._starts, ordinal) - 1
        return at >= 0 and ordinal <= self._ends[at]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for start, end in self.intervals():
            yield from range(start, end + 1)

    @property
    def low_watermark(self) -> int:
        """Largest ``n`` such that 1..n are all in the set; 0 when 1 is not."""
        return self._ends[0] if self._starts and self._starts[0] == 1 else 0

    def missing(self, until: int) -> Iterator[int]:
        """Ordinals in 1..until that are not in the set, rising."""
        expected = 1
        for start, end in zip(self._starts, self._ends, strict=True):
            if start > until:
                break
            yield from range(expected, start)
            expected = end + 1
        yield from range(expected, until + 1)

    def intervals(self) -> list[tuple[int, int]]:
        """The closed intervals, rising."""
        return list(zip(self._starts, self._ends, strict=True))
