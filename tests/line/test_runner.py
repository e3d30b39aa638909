"""The local runner as a user meets it: a demo to its end, Ctrl-C, and a part that dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gristmill.config import CommonConfig
from gristmill.local.line import gristmill_command
from gristmill.replay import audit_run
from line.harness import write_problems
from support.kafka import KafkaBroker

pytestmark = pytest.mark.timeout(480)  # a dozen processes on what may be a busy machine


def arguments(command: str, model: Path, folder: Path, *more: str) -> list[str]:
    """A quick line: the random model never answers right, so groups without variance are trained on too."""
    problems = write_problems(folder / "problems.jsonl", 100)
    return gristmill_command(
        command,
        f"--policy={model}",
        f"--source=jsonl:{problems}",
        f"--data_dir={folder / 'data'}",
        "--run-id=under-test",
        '--problems.prompt.plain="{{ problem }}"',
        "--problems.group_size=4",
        "--problems.sampling.max_new_tokens=6",
        "--trainer.groups_per_step=2",
        "--trainer.filter_zero_variance=false",
        "--trainer.unparsable_reward=0.0",
        "--trainer.threads=1",
        "--trainer.lora.r=4",
        "--math.unparsable_reward=0.0",
        "--local.eval_problems=4",
        "--local.eval_samples=1",
        f"--local.eval_source=jsonl:{problems}",
        "--local.status_interval_s=2",
        *more,
    )


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A runner that is gone afterwards, come what may."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "160"}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes], timeout_s: float = 200.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not re.search(pattern, log.read_text(errors="replace")):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.1)


def child(process: subprocess.Popen[bytes], word: str) -> psutil.Process:
    """The runner's child that has ``word`` among its arguments."""
    found = [item for item in psutil.Process(process.pid).children() if word in item.cmdline()]
    assert len(found) == 1, [item.cmdline() for item in psutil.Process(process.pid).children()]
    return found[0]


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


def wait_until_gone(parent: int) -> None:
    """No process of the runner's is left."""
    deadline = time.monotonic() + 10
    while any(item.info["ppid"] == parent for item in psutil.process_iter(["ppid"])):
        assert time.monotonic() < deadline
        time.sleep(0.1)
