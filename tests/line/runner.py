"""The local runner as a process under test."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from gristmill.local.helpers import gristmill_command
from line.harness import write_problems


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
def running(command: list[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A runner that is gone afterwards, come what may."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "160", **(env or {})}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes], timeout_s: float = 200.0) -> None:
    """Wait until the runner has written something that matches."""
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


def wait_until_gone(parent: int) -> None:
    """No process of the runner's is left."""
    deadline = time.monotonic() + 10
    while any(item.info["ppid"] == parent for item in psutil.process_iter(["ppid"])):
        assert time.monotonic() < deadline
        time.sleep(0.1)
