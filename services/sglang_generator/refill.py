"""How many requests should reach an engine together. No I/O here.

An engine's scheduler runs a prefill, which takes about as long for one short prompt as for many and holds decoding up
meanwhile, as soon as a request waits. Sending the next request the moment that an answer frees its slot therefore keeps
every slot busy, and the engine busy with prefills. With slots that wait ``pause`` seconds for others, the engine loses

    pause / (2 * latency)      of its slots, which are empty for half the pause on average (Little's law)
    prefill / pause            of its time to prefills

and the sum is least at ``pause = sqrt(2 * latency * prefill)``: the economic order quantity (Harris, "How many parts to
make at once", 1913), with a prefill for the cost of an order and empty slots for the cost of stock. Where a frontend
hands requests on one by one, those that were sent together take several prefills, and the loss is larger than that.
"""

from __future__ import annotations

import math

EMPTY_AT_MOST = 0.1
"""Share of the slots that may be empty at a time, so a twentieth on average: also what a wrong estimate may cost."""
_WEIGHT = 0.02
"""Weight of an answer in the running mean; the first 1 / _WEIGHT answers have a plain mean."""


class Refill:
    """For one engine. Until its first answer has told the latency, nothing waits."""

    def __init__(self, prefill_s: float) -> None:
        """``prefill_s``: seconds of a prefill, whatever its size; 0 for an engine that has no such cost."""
        self._prefill_s = prefill_s
        self._latency_s = 0.0
        self._answers = 0

    def observe(self, seconds: float) -> None:
        """Take note of what an answer took, from its request to its last byte."""
        self._answers += 1
        self._latency_s += (seconds - self._latency_s) * max(_WEIGHT, 1 / self._answers)

    @property
    def share(self) -> float:
        """Share of the slots (0 to ``EMPTY_AT_MOST``) that are filled together."""
        if not self._latency_s:
            return 0.0
        return min(EMPTY_AT_MOST, math.sqrt(2 * self._prefill_s / self._latency_s))

    @property
    def pause_s(self) -> float:
        """Seconds that a slot may wait for others: as long as they take to become free at this latency."""
        return self.share * self._latency_s

    def together(self, limit: int) -> int:
        """Free slots, of ``limit``, from which on they wait no longer; at least 1."""
        return max(1, int(self.share * limit))
