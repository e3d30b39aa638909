"""The trainer in a process of its own, for tests that kill it."""

from __future__ import annotations

import signal
from pathlib import Path

from trainer_line import make_common, make_context

from grpo_trainer.service import run


def train_to(bootstrap: str, prefix: str, data_dir: str, policy_dir: str, versions: int) -> None:
    """Train until ``versions``, or until SIGTERM."""
    common = make_common(bootstrap, prefix, Path(data_dir))
    context = make_context(common, Path(policy_dir), max_versions=versions, max_staleness=1)
    signal.signal(signal.SIGTERM, lambda *_: context.stop.set())
    run(context)
