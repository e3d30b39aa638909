"""Freshness of whole runs, from the topics alone: real trainer, generators and engine, every kind of group."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.broker import EmbeddedBroker
from line.harness import Line, write_problems

pytestmark = pytest.mark.timeout(480)  # a dozen processes on what may be a busy machine


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
def test_no_sample_exceeds_the_bound_and_nothing_deadlocks(
    max_staleness: int, embedded_broker: EmbeddedBroker, prefix: str, line_model: Path, line_engine: str, tmp_path: Path
) -> None:
    """Every second group has no variance, every fifth fails, and two generators share the credit."""
    line = Line(
        tmp_path,
        embedded_broker.bootstrap,
        prefix,
        f"s{max_staleness}",
        [line_engine],
        line_model,
        write_problems(tmp_path / "problems.jsonl", 50),
        {"trainer": {"max_staleness": max_staleness, "max_versions": 5}},
    )
    line.prepare()
    for service, label in (
        ("grpo_trainer", None),
        ("coin_verifier", None),
        ("sglang_generator", "sglang_generator-a"),
        ("sglang_generator", "sglang_generator-b"),
        ("problem_producer", None),
    ):
        line.start(service, label)
    try:
        line.wait_trained()
    finally:
        statuses = line.stop()
    assert set(statuses.values()) == {0}, statuses

    steps, verdicts = line.steps(), line.verdicts()
    assert [step.version for step in steps] == [1, 2, 3, 4, 5]
    for step in steps:
        assert len(step.group_ids) == 3
        for sample_id, version in zip(step.sample_ids, step.policy_versions, strict=True):
            verdict = verdicts[sample_id]
            assert verdict.policy_run_id == line.run_id
            assert version == verdict.policy_version_oldest == verdict.policy_version_newest
            assert 0 <= step.version - 1 - version <= max_staleness
            if max_staleness == 0:
                assert version == step.version - 1

    policies = line.policies()
    versions = [(policy.version, policy.admit_until) for policy in policies]
    assert versions == sorted(versions), "version or credit went back"
    assert {policy.version for policy in policies} == {0, 1, 2, 3, 4, 5}
    for policy in policies:
        assert policy.admit_until == policy.settled_groups + (max_staleness + 1) * 3
    started = max(verdict.ordinal for verdict in verdicts.values())
    assert started <= policies[-1].admit_until, "a generator went beyond the credit"

    report = line.audit()
    assert report.balanced, report.breaches
    assert report.filtered > 0
    assert report.failed > 0
    assert report.rejected == 0 or max_staleness > 0
    assert report.trained == sum(len(step.sample_ids) for step in steps)
