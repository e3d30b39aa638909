"""Log lines that an outage would repeat a thousand times, written now and then with a count."""

from __future__ import annotations

import time
from typing import Any

EVERY_S = 5.0


class QuietLog:
    """Writes a warning at once, and its repetitions at most every few seconds."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._seen: dict[tuple[str, ...], tuple[float, int]] = {}

    def warning(self, event: str, *, about: str, **values: Any) -> None:
        """``event`` and ``about`` together say what counts as the same; both are among few."""
        now = time.monotonic()
        last, skipped = self._seen.get((event, about), (-EVERY_S, 0))
        if now - last < EVERY_S:
            self._seen[event, about] = (last, skipped + 1)
            return
        self._seen[event, about] = (now, 0)
        if skipped:
            values["repeated"] = skipped
        self._log.warning(event, about=about, **values)
