"""Runs the trainer in a process of its own, for tests that kill it: BOOTSTRAP PREFIX DATA_DIR POLICY_DIR VERSIONS."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from trainer_line import make_common, make_context

from gristmill.service import _handle_signals
from grpo_trainer.service import run

bootstrap, prefix, data_dir, policy_dir, versions = sys.argv[1:]
common = make_common(bootstrap, prefix, Path(data_dir))
context = make_context(common, Path(policy_dir), max_versions=int(versions), max_staleness=1)
_handle_signals(context.stop, 30.0)
run(context)
