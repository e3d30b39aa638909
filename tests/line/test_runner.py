"""The local runner as a user meets it: a demo to its end, Ctrl-C, and a part that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from gristmill.config import CommonConfig
from gristmill.replay import audit_run
from line.runner import arguments, child, running, wait_for, wait_until_gone
from support.kafka import KafkaBroker

pytestmark = pytest.mark.timeout(480)  # a dozen processes on what may be a busy machine


def test_demo_runs_to_its_end(line_model: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        arguments("demo", line_model, tmp_path, "--versions=2"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held-out pass@1" in done.stdout
    summary: dict[str, Any] = json.loads((tmp_path / "data/runs/under-test/summary.json").read_text())
    assert {"0", "1"} <= set(summary["rewards"])
    assert summary["policy"]["version"] == 2
    accounting = summary["accounting"]
    assert accounting["balanced"]
    assert accounting["trained"] == 2 * 2 * 4
    assert {found["policy"]: found["samples"] for found in summary["evaluations"]} == {"before": 4, "after": 4}
    assert (tmp_path / "data/runs/under-test/training.jsonl").read_text().count("\n") == 2
    figures = summary["figures"]
    assert set(figures["staleness"]) <= {"0", "1"}
    assert figures["tokens_per_s"] > 0
    assert figures["delivery_s"] > 0
    for text in ("trained samples by staleness", "train/inference mismatch KL", "delivery of a version to an engine"):
        assert text in done.stdout


def test_up_names_a_dead_part_and_fails(line_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    with running(arguments("up", line_model, tmp_path), log) as process:
        wait_for(log, r"version [1-9]", process)
        victim = child(process, "sglang_generator")
        os.kill(victim.pid, signal.SIGKILL)
        assert process.wait(150) == 1
        text = log.read_text()
        assert "sglang_generator was killed by SIGKILL. Its last log lines" in text
        assert "policy_current" in text
        wait_until_gone(process.pid)


@pytest.mark.kafka
def test_up_on_apache_kafka_drains_on_interrupt(
    kafka_broker: KafkaBroker, line_model: Path, tmp_path: Path, prefix: str
) -> None:
    """The whole line on a real cluster, and accounts that balance in the middle of a run."""
    log = tmp_path / "up.log"
    where = [f"--bootstrap={kafka_broker.bootstrap}", f"--topic_prefix={prefix}"]
    with running(arguments("up", line_model, tmp_path, *where), log) as process:
        wait_for(log, r"version [2-9]", process)
        children = psutil.Process(process.pid).children()
        assert len(children) == 5  # engine and four services
        process.send_signal(signal.SIGINT)
        assert process.wait(150) == 0, log.read_text()
        assert "stopped. Run folder" in log.read_text()
        assert not any(item.is_running() for item in children)
    report = audit_run(CommonConfig(bootstrap=kafka_broker.bootstrap, topic_prefix=prefix, run_id="under-test"))
    assert report.balanced, report.breaches
    assert report.versions >= 2
    assert report.trained == report.versions * 2 * 4


def test_whole_weights_reach_the_engine_and_the_evaluation(line_model: Path, tmp_path: Path) -> None:
    """The runner connects trainer and generator by itself; afterwards the engine serves the last version."""
    done = subprocess.run(
        arguments(
            "demo", line_model, tmp_path, "--versions=2", "--trainer.learning_rate=1e-3", "--generator.delivery=nccl"
        ),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the trainer trains full weights" in done.stdout
    run = tmp_path / "data/runs/under-test"
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    assert summary["accounting"]["balanced"]
    assert {found["policy"]: found["samples"] for found in summary["evaluations"]} == {"before": 4, "after": 4}
    assert summary["figures"]["delivery_s"] > 0
