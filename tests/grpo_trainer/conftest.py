"""Fixtures of the trainer's tests: a random tiny policy, and the helpers beside this file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of a few thousand parameters, with its tokenizer."""
    from trainer_synthetic import make_policy_dir

    return make_policy_dir(tmp_path_factory.mktemp("policy") / "base")
