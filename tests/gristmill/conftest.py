"""Fixtures of the kernel's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.registry import Registry, missing_for_registry


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A running schema registry, shared by all tests: each uses subjects of its own or puts up with others'."""
    if missing := missing_for_registry():
        pytest.skip(missing)
    registry = Registry(tmp_path_factory.mktemp("registry") / "registry.log")
    try:
        registry.start()
        yield registry
    finally:
        registry.stop()
