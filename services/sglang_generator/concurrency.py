"""How many requests an engine should have in flight: additive increase, multiplicative decrease. No I/O here.

The controller looks at an engine about once a second. It raises the limit while the limit is what holds requests back
and the engine has no trouble with those that it has; it cuts the limit when requests pile up in the engine's own
queue, were retracted for lack of cache, or the cache is nearly full. Where the work itself is the bound (the trainer's
credit, the problems there are) the limit stays: what was never tried says nothing about the engine.

Never above the largest batch that a CUDA graph was captured for: beyond it SGLang falls to half its speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

Decision: TypeAlias = Literal["raised", "cut", "app_limited", "capped", "busy", "settling"]

STEP = 16
"""Additive increase."""
CUT = 0.75
"""Multiplicative decrease."""
KV_FULL = 0.92
"""Share of the cache in use from which the limit is cut."""
KV_BUSY = 0.82
"""Share of the cache in use from which the limit is not raised."""
WAITING_SHARE = 0.2
"""Share of the limit that may wait in the engine: what has just arrived waits for its prefill, and a short queue there
costs nothing, while too low a limit does."""
PATIENCE = 3
"""Looks in a row with more than that before the limit is cut: after a new version everything arrives at once."""
SETTLE = 3
"""Looks after a cut before the next: requests above the limit first have to finish."""


@dataclass(frozen=True, slots=True)
class Load:
    """An engine at one moment, and what waits for it here."""

    running: int
    waiting: int
    """In the engine's queue."""
    kv_usage: float
    """Share of the cache in use."""
    retracted: int
    """Requests that were put back for lack of cache since the last look."""
    held_back: bool
    """Whether requests wait here because of the limit."""


class Controller:
    """The limit of one engine."""

    def __init__(self, start: int, cap: int | None = None) -> None:
        self.cap = cap
        self._limit = start
        self._probing = True
        self._piled = 0
        self._settling = 0
        self.bound(cap)

    @property
    def limit(self) -> int:
        """Requests in flight."""
        return self._limit

    def bound(self, cap: int | None) -> None:
        """Set the upper bound: what the engine says it can run at full speed; None if it says nothing."""
        self.cap = cap
        if cap is not None:
            self._limit = max(1, min(self._limit, cap))

    def observe(self, load: Load) -> Decision:
        """Judge one look at the engine and set the limit."""
        if self._settling:
            self._settling -= 1
            return "settling"
        piling = load.waiting > max(1.0, WAITING_SHARE * self._limit)
        self._piled = self._piled + 1 if piling else 0
        # An idle engine goes on telling what it counted when it last worked.
        retracted = load.retracted and load.running
        if retracted or load.kv_usage >= KV_FULL or self._piled >= PATIENCE:
            return self._cut(load)
        if not load.held_back:
            return "app_limited"
        if piling or load.kv_usage >= KV_BUSY:
            return "busy"
        if self.cap is not None and self._limit >= self.cap:
            return "capped"
        # Doubling until the first cut, as there is nothing to lose yet; then in steps.
        raised = self._limit * 2 if self._probing else self._limit + STEP
        self._limit = raised if self.cap is None else min(raised, self.cap)
        return "raised"

    def _cut(self, load: Load) -> Decision:
        """Cut from what the engine really had: a limit that was not reached was not what hurt."""
        self._probing = False
        self._piled = 0
        self._settling = SETTLE
        had = load.running + load.waiting
        self._limit = max(1, math.floor(CUT * min(self._limit, had) if had else CUT * self._limit))
        return "cut"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine says about itself; None where it says nothing."""

    largest_graph: int | None
    most_running: int | None

    @property
    def cap(self) -> int | None:
        """Requests in flight that it serves at full speed."""
        return min((bound for bound in (self.largest_graph, self.most_running) if bound), default=None)
