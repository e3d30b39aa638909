"""Shared files, and a pool that the tests of this package share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from math_verifier.pool import MathPool

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The shared folder with cases and data sets; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("GRISTMILL_SHARED", HERE.parent.parent.parent / "shared"))
    if not (folder / "cases").is_dir():
        pytest.skip(f"no shared data at {folder}; name its folder with GRISTMILL_SHARED")
    return folder


@pytest.fixture(scope="package")
def pool() -> Iterator[MathPool]:
    with MathPool(2) as running:
        yield running
