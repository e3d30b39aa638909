"""Settings of the code verifier: where programs run and what they may use."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field

from code_verifier.job import Limits
from gristmill.config import Section


class CodeConfig(Section):
    """The ``code`` section."""

    workers: int = Field(default_factory=lambda: max(1, os.cpu_count() or 1), ge=1, le=256)
    """Sandboxes, one program at a time each. As many as CPUs unless set."""
    image: str = "gristmill-sandbox"
    """Image of the sandbox; ``gristmill sandbox build`` makes it."""
    runtime: Literal["runc", "runsc"] | None = None
    """Container runtime; ``runsc`` is gVisor. Docker's default unless set."""
    docker_host: str | None = None
    """Address of the Docker engine; ``DOCKER_HOST`` or the local socket unless set."""
    time_limit_s: float = Field(default=10.0, gt=0, le=600)
    """Wall-clock seconds of one test, where the problem does not say."""
    job_limit_s: float = Field(default=60.0, gt=0, le=3600)
    """Wall-clock seconds of a program with all its tests."""
    memory_limit_mb: int = Field(default=512, ge=64)
    """Memory of a program in MiB."""
    output_limit_mb: int = Field(default=16, ge=1, le=256)
    """Standard output, and standard error, of a program in MiB; one that writes more is ended."""
    kept_output_kb: int = Field(default=8, ge=0, le=1024)
    """How much of each a verdict keeps, in KiB."""
    processes: int = Field(default=64, ge=8, le=4096)
    """Processes and threads of a program at a time."""
    runs_per_sandbox: int = Field(default=500, ge=1)
    """Programs after which a sandbox is replaced."""
    attempts: int = Field(default=3, ge=1, le=10)
    """Fresh sandboxes that a program is given when its sandbox fails, before the status is ``sandbox_error``."""
    stop_at_first_failure: bool = True
    """Whether the tests after a failed one are left out."""
    concurrency: int = Field(default=8, ge=1)
    """Completions in work per partition."""
    reward_passed: float = 1.0
    """Reward of status ``passed``."""
    reward_failed: float = 0.0
    """Reward of a program that fails, whatever the status."""
    no_code_reward: float | None = 0.0
    """Reward of a completion without a program; null leaves such samples out of training."""


def limits_from(config: CodeConfig) -> Limits:
    """The limits of a program that the configuration sets; the rest are fixed."""
    return Limits(
        time_s=config.time_limit_s,
        job_s=config.job_limit_s,
        memory_bytes=config.memory_limit_mb << 20,
        output_bytes=config.output_limit_mb << 20,
        kept_bytes=config.kept_output_kb << 10,
        processes=config.processes,
    )
