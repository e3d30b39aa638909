"""Shared files, and the pools that the tests of this package share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from math_verifier.config import MathConfig
from math_verifier.pool import MathPool, Pool, open_pool

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


@pytest.fixture(scope="session")
def ray_installed() -> None:
    """Skips where Ray is absent. Asks without importing it: that is for the code under test."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'gristmill[math-ray]'")


@pytest.fixture(scope="module")
def ray_cluster(ray_installed: None) -> Iterator[Any]:
    """A Ray cluster of this process, started once for a file of tests: every pool of Ray actors uses it."""
    from math_verifier.pool_ray import Cluster, import_ray

    cluster = Cluster.join(import_ray(own=True), None, 2)
    yield cluster
    cluster.leave()


MakePool = Callable[..., Pool]


@pytest.fixture(scope="module", params=["processes", "ray"])
def make_pool(request: pytest.FixtureRequest) -> MakePool:
    """Makes pools of either kind; arguments are those of the ``math`` section."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")

    def make(workers: int, **settings: Any) -> Pool:
        return open_pool(MathConfig(pool=request.param, workers=workers, **settings))

    return make


@pytest.fixture
def workers_of() -> Callable[[Pool], list[int]]:
    """Process ids of a pool's workers as they are now, which a pool of actors knows only after a call."""

    def find(pool: Pool) -> list[int]:
        owners = [pool.template_pid] if isinstance(pool, MathPool) else getattr(pool, "actor_pids")  # noqa: B009
        found = []
        for owner in owners:
            try:
                template = psutil.Process(owner)
                if not isinstance(pool, MathPool):
                    template = next(child for child in template.children() if "worker_main" in child.cmdline()[2])
                found += [child.pid for child in template.children() if child.status() != psutil.STATUS_ZOMBIE]
            except (psutil.NoSuchProcess, StopIteration, IndexError):
                continue
        return found

    return find
