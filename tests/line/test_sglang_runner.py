"""``--engine sglang`` on real processes, with a stand-in for the server and a stand-in for nvidia-smi."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from line.runner import arguments, child, running, wait_for, wait_until_gone

pytestmark = pytest.mark.timeout(480)  # a dozen processes on what may be a busy machine

FAKE = Path(__file__).with_name("fake_sglang.py")


class Machine:
    """A machine with so many GPUs, as far as nvidia-smi can tell, and the servers that were started on it."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self.records = folder / "records"
        self.records.mkdir()
        program = folder / "bin" / "nvidia-smi"
        program.parent.mkdir()
        listing = "".join(f"echo '{index}, GPU-{index}, Fake H200, 143771'\n" for index in range(gpus))
        program.write_text(f"#!/bin/sh\n{listing}", encoding="utf-8")
        program.chmod(0o755)
        self.env = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}

    def flags(self, *more: str) -> list[str]:
        return [
            "--engine=sglang",
            f"--local.sglang.command={sys.executable} {FAKE}",
            f"--local.sglang.env.FAKE_SGLANG_RECORDS={self.records}",
            "--trainer.device=auto",  # there is no CUDA behind these GPUs
            *more,
        ]

    def servers(self) -> list[dict[str, Any]]:
        """What each server was started with, by GPU."""
        found = [json.loads(path.read_text()) for path in self.records.glob("*.json")]
        return sorted(found, key=lambda record: str(record["cuda"]))

    def assert_nothing_left(self) -> None:
        for record in self.servers():
            for name in ("pid", "engine", "deaf"):
                assert not lives(record[name]), f"the server's {name} is left"


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_demo_on_a_server_for_each_gpu(line_model: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path, 3)
    done = subprocess.run(
        arguments("demo", line_model, tmp_path, "--versions=2", *machine.flags("--generator.engine_concurrency=7")),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env={**os.environ, **machine.env, "COLUMNS": "160"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = machine.servers()
    assert (one["cuda"], two["cuda"]) == ("1", "2")
    assert one["health"] == "false"
    assert one["flags"]["cuda_graph_max_bs_decode"] == 7
    assert one["flags"]["max_lora_rank"] == 4
    assert one["flags"]["mem_fraction_static"] is None
    machine.assert_nothing_left()

    run = tmp_path / "data/runs/under-test"
    assert "GPU 0 (Fake H200): trainer" in done.stdout
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["local"]["gpus"] == {"trainer": ["0"], "engine": ["1", "2"], "share": False}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["policy"]["version"] == 2
    assert summary["accounting"]["balanced"]
    assert {found["policy"]: found["samples"] for found in summary["evaluations"]} == {"before": 4, "after": 4}
    for label in ("before", "after"):
        for number in (0, 1):
            assert (run / f"evaluation/{label}.completions-{number}.jsonl").read_text().count("\n") == 2


def test_whole_weights_on_one_shared_gpu_and_a_server_that_dies(line_model: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    flags = machine.flags("--share-gpu", "--generator.delivery=disk")
    log = tmp_path / "up.log"
    with running(arguments("up", line_model, tmp_path, *flags), log, machine.env) as process:
        wait_for(log, r"version [1-9]", process)
        trainer = child(process, "grpo_trainer")
        assert trainer.environ()["CUDA_VISIBLE_DEVICES"] == "0"
        (server,) = machine.servers()
        assert (server["cuda"], server["flags"]["mem_fraction_static"]) == ("0", 0.45)
        assert not server["flags"]["enable_lora"]
        os.kill(server["engine"], signal.SIGKILL)
        assert process.wait(150) == 1
        text = log.read_text()
        assert "generator.delivery disk: the trainer trains full weights" in text
        assert "engine exited with status 1. Its last log lines" in text
        assert "fake: a child died with status -9" in text
        wait_until_gone(process.pid)
    machine.assert_nothing_left()
    config = yaml.safe_load((tmp_path / "data/runs/under-test/config.yaml").read_text())
    assert config["trainer"]["gpu_memory_fraction"] == 0.45


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (("--local.sglang.args=--fail",), 1, "engine exited with status 1"),
        (("--local.sglang.args=--hang", "--local.sglang.start_timeout_s=4"), 1, "was not ready after 4 s"),
        (("--local.sglang.args=--no-such-flag",), 1, "unrecognized arguments: --no-such-flag"),
        (("--gpus=engine=7",), 2, "--gpus engine: no GPU '7' is visible"),
    ],
)
def test_a_server_that_does_not_start_is_shown(
    args: tuple[str, ...], status: int, message: str, line_model: Path, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, 2)
    done = subprocess.run(
        arguments("up", line_model, tmp_path, *machine.flags(*args)),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, **machine.env, "COLUMNS": "400"},
    )
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert message in said
    if "--hang" in args[0]:
        assert "fake: loading weights" in said
    if "--fail" in args[0]:
        assert "fake: CUDA out of memory" in said
    machine.assert_nothing_left()
