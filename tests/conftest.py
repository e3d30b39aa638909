"""Brokers for the whole session. A topic prefix per test keeps tests apart on one broker.

``embedded_broker`` is always there; ``kafka_broker`` needs ``KAFKA_HOME`` and Java, else its tests are skipped
with the reason; ``broker`` runs a test on both, ``any_broker`` on one of them.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gristmill.broker import EmbeddedBroker
from support.kafka import KafkaBroker, missing_for_kafka, running_kafka

_serial = itertools.count(1)


class Broker(Protocol):
    """What tests need of a broker."""

    @property
    def bootstrap(self) -> str: ...


@pytest.fixture(scope="session")
def embedded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(log=tmp_path_factory.mktemp("embedded") / "broker.log") as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> Broker:
    """The test runs once per broker."""
    found: Broker = request.getfixturevalue(f"{request.param}_broker")
    return found


@pytest.fixture
def any_broker(request: pytest.FixtureRequest) -> Broker:
    """One broker, for what no broker could do differently: Kafka where it is, for its groups form at once."""
    name = "embedded_broker" if missing_for_kafka() else "kafka_broker"
    found: Broker = request.getfixturevalue(name)
    return found


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A topic prefix that no other test of this session, or of another, has."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    return f"{name}.{os.getpid()}.{next(_serial)}."


LONG = (
    "tests/line/test_runner.py",
    "tests/line/test_sglang_runner.py",
    "tests/gristmill/test_worker_groups.py",
    "tests/code_verifier/test_service.py",
    "tests/math_verifier/test_pool.py",
    "tests/problem_producer/test_producer.py",
    "tests/code_verifier/test_cheats.py",
    "tests/line/test_freshness_line.py",
    "tests/math_verifier/test_scaling.py",
    "tests/gristmill/test_worker.py",
    "tests/base_policy/test_smollm2.py",
    "tests/line/test_crashes.py",
    "tests/gristmill/test_outside_clients.py",
    "tests/code_verifier/test_selftest.py",
    "tests/sglang_generator/test_service.py",
    "tests/code_verifier/test_handed.py",
    "tests/grpo_trainer/test_service.py",
    "tests/gristmill/test_worker_faults.py",
    "tests/code_verifier/test_references.py",
    "tests/gristmill/test_worker_kafka.py",
    "tests/code_verifier/",
    "tests/gristmill/test_reader.py",
    "tests/grpo_trainer/",
    "tests/math_verifier/test_bounds.py",
    "tests/sglang_generator/test_embedded_engine.py",
)
"""Files that take longest: they come first, so that no worker is left alone with one at the end. Those that compute and
those that wait take turns, for the cores are the bottleneck."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays until the end: the garbage collector need not look at it, neither while it
    grows nor whenever a test makes it collect."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first. xdist keeps this order (``--no-loadscope-reorder``)."""
    items.sort(key=lambda item: next((n for n, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)))


_skipped: list[tuple[str, str]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what was skipped, for :func:`pytest_sessionfinish`."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skipped.append((report.nodeid, reason))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where everything but a GPU is there (CI), a test that skips for want of anything else fails the run."""
    if os.environ.get("GRISTMILL_TEST_FORBID_SKIP") != "1":
        return
    forbidden = [(node, reason) for node, reason in _skipped if "GPU" not in reason]
    for node, reason in forbidden:
        sys.stderr.write(f"\nskipped where it must run: {node}: {reason}")
    if forbidden:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
