"""Settings of the local runner."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gristmill.config import Section


class LocalConfig(Section):
    """The local runner (`gristmill up` and `gristmill demo`)."""

    eval_problems: int = Field(default=100, ge=0)
    """Held-out problems that the demo samples before and after training; 0 leaves evaluation out."""
    eval_samples: int = Field(default=2, ge=1)
    """Completions sampled per held-out problem; pass@1 is the mean over all of them."""
    eval_source: str | None = None
    """Source of the held-out problems; the held-out split of the training sources by default."""
    warmup_problems: int = Field(default=4000, ge=1)
    """Problems that the tiny policy's supervised warm-up may draw from."""
    verifiers: tuple[Literal["math", "code"], ...] | None = None
    """Verifiers to start; those that the sources of problems need by default. ``code`` needs a Docker engine."""
    status_interval_s: float = Field(default=10.0, gt=0)
    """Seconds between status lines when the output is not a terminal."""
