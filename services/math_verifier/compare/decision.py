"""What a comparison found, and which stage found it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

STAGES: Final = ("string", "exact", "structural", "numeric", "symbolic")
"""Cheapest first; a compound answer is decided by the costliest stage that one of its parts needed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """``equal`` is None where no stage could decide."""

    equal: bool | None
    stage: str
    reason: str = ""


def yes(stage: str) -> Decision:
    return Decision(True, stage)


def no(stage: str, reason: str = "") -> Decision:
    return Decision(False, stage, reason)


def unknown(stage: str, reason: str) -> Decision:
    return Decision(None, stage, reason)


def costliest(stages: Iterable[str], floor: str = "structural") -> str:
    """The costliest of ``stages``, at least ``floor``."""
    return max((floor, *stages), key=STAGES.index)


def every(decisions: Iterable[Decision]) -> Decision:
    """All equal: stops at the first that is not; unknown only if nothing differs."""
    seen: list[Decision] = []
    for decision in decisions:
        if decision.equal is False:
            return no(costliest([decision.stage]), decision.reason)
        seen.append(decision)
    stage = costliest(decision.stage for decision in seen)
    open_ = next((decision for decision in seen if decision.equal is None), None)
    return unknown(stage, open_.reason) if open_ else yes(stage)
