"""The accounts of a run: which groups are settled, and how their samples ended.

They travel in the checkpoint, so that a resumed trainer neither trains on a sample twice nor loses one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gristmill.messages import RejectionReason
from grpo_trainer.ordinals import Ordinals

MAX_OPEN_IDS = 65536
"""Groups settled without knowing all their samples that are remembered; older ones are forgotten first."""


@dataclass(slots=True)
class Counters:
    """Samples by how they ended, as ``policies`` states them."""

    trained: int = 0
    rejected: int = 0
    filtered: int = 0
    failed: int = 0
    duplicates: int = 0

    def add(self, why: RejectionReason, samples: int) -> None:
        """Count samples that were not trained on."""
        match why:
            case "stale" | "incomplete" | "invalid":
                self.rejected += samples
            case "zero_variance":
                self.filtered += samples
            case "failed":
                self.failed += samples
            case "duplicate":
                self.duplicates += samples


@dataclass(slots=True)
class Account:
    """Settled ordinals, and samples by how they ended."""

    settled: Ordinals = field(default_factory=Ordinals)
    counters: Counters = field(default_factory=Counters)
    open_ids: dict[int, set[int]] = field(default_factory=dict)
    """Settled groups of which not every sample is known to be accounted for: indices that are."""

    def open_up(self, ordinal: int) -> set[int]:
        """Indices accounted for in a settled group of which more samples may turn up."""
        known = self.open_ids.setdefault(ordinal, set())
        while len(self.open_ids) > MAX_OPEN_IDS:
            del self.open_ids[next(iter(self.open_ids))]
        return known

    def copy(self) -> Account:
        """A copy that shares nothing."""
        return Account(
            settled=Ordinals(self.settled.intervals()),
            counters=replace(self.counters),
            open_ids={ordinal: set(indices) for ordinal, indices in self.open_ids.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return {
            "settled": self.settled.intervals(),
            "counters": {name: getattr(self.counters, name) for name in Counters.__slots__},
            "open_ids": {str(ordinal): sorted(indices) for ordinal, indices in self.open_ids.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Account:
        """Undo :meth:`to_json`."""
        return cls(
            settled=Ordinals((int(start), int(end)) for start, end in values["settled"]),
            counters=Counters(**values["counters"]),
            open_ids={int(ordinal): set(indices) for ordinal, indices in values["open_ids"].items()},
        )
