"""How often, and how long apart, an infrastructure failure is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter. Both limits hold: whichever is reached first ends the attempts."""

    attempts: int = 8
    """Calls of the handler in all, the first one included."""
    elapsed_s: float = 300.0
    """No attempt starts later than this many seconds after the first."""
    first_delay_s: float = 0.25
    """Mean delay before the second attempt; it doubles with each further one."""
    max_delay_s: float = 30.0
    """Cap of the mean delay."""

    def delay(self, attempt: int, elapsed: float) -> float | None:
        """Seconds to wait after ``attempt`` (counted from 1) failed; None when no attempt is left.

        The delay is uniform in half to one and a half of its mean, so that workers that failed together do not
        come back together.
        """
        if attempt >= self.attempts:
            return None
        mean = min(self.max_delay_s, self.first_delay_s * 2.0 ** (attempt - 1))
        delay = mean * random.uniform(0.5, 1.5)
        return None if elapsed + delay > self.elapsed_s else delay
