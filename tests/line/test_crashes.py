"""Every service of the line is killed with SIGKILL in the middle of a run, and started again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gristmill.broker import EmbeddedBroker
from gristmill.local.process import wait_until
from line.harness import Line, write_problems

pytestmark = pytest.mark.timeout(480)  # a dozen processes on what may be a busy machine

SERVICES = ("grpo_trainer", "math_verifier", "sglang_generator", "problem_producer")
STEPS = 5


def test_every_service_is_killed_once_and_the_accounts_balance(
    embedded_broker: EmbeddedBroker, prefix: str, line_model: Path, line_engine: str, tmp_path: Path
) -> None:
    """In the middle of work, two at a time, with credit for one more step than is being trained."""
    line = Line(
        tmp_path,
        embedded_broker.bootstrap,
        prefix,
        "crashes",
        [line_engine],
        line_model,
        write_problems(tmp_path / "problems.jsonl", 50),
        {
            # The random model is never right, so groups without variance are trained on too.
            "trainer": {
                "max_versions": STEPS,
                "max_staleness": 1,
                "filter_zero_variance": False,
                "unparsable_reward": 0.0,
            },
            "math": {"unparsable_reward": 0.0},
            "problems": {"max_ahead": 4},
        },
    )
    line.prepare()
    for service in SERVICES:
        line.start(service)
    try:
        for version, victims in (1, ("sglang_generator", "math_verifier")), (3, ("grpo_trainer", "problem_producer")):
            wait_for_version(line, version)
            for service in victims:
                kill(line, service)
            for service in victims:
                line.start(service)
        line.wait_trained()
    finally:
        statuses = line.stop()
    assert set(statuses.values()) == {0}, statuses

    steps = line.steps()
    assert [step.version for step in steps] == list(range(1, STEPS + 1))
    trained = [sample for step in steps for sample in step.sample_ids]
    assert len(trained) == len(set(trained)) == STEPS * 3 * 4
    report = line.audit()
    assert report.balanced, report.breaches
    assert report.trained == len(trained)
    assert report.failed == 0, report.by_why


def wait_for_version(line: Line, version: int) -> None:
    parts = list(line.parts.values())
    wait_until(lambda: any(p.version >= version for p in line.policies()), parts, 150, f"version {version}")


def kill(line: Line, service: str) -> None:
    """SIGKILL, as the out-of-memory killer would send it."""
    part = line.parts[service]
    assert part.pid is not None
    os.kill(part.pid, signal.SIGKILL)
    wait_until(lambda: part.status is not None, [], 60, f"the end of {service}")
