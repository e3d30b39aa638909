"""What a version costs and what it is on the disk: artifacts, and checkpoints that share the optimizer's moments."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs
from trainer_line import Line, audit, make_common, make_context, policies_of, steps_of

from gristmill.artifacts import digest_dir, from_uri, verify_dir
from gristmill.broker import EmbeddedBroker
from gristmill.config import CommonConfig
from grpo_trainer.config import TrainerConfig
from grpo_trainer.model import load_policy
from grpo_trainer.run import TrainerRun
from grpo_trainer.service import run
from grpo_trainer.tensorfile import layout_of, read_layout, write_file


def test_files_are_what_the_library_reads(tmp_path: Path) -> None:
    tensors = {
        "odd": torch.arange(3, dtype=torch.uint8),
        "matrix": torch.randn(3, 5).t(),
        "number": torch.tensor(1.5),
        "empty": torch.empty(0, 4),
        "count": torch.arange(4),
        "flag": torch.tensor([True, False]),
    }
    write_file(tmp_path / "a.safetensors", tensors)
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    assert all(found[name].equal(tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items())
    assert read_layout(tmp_path) == layout_of(tensors)
    write_file(tmp_path / "a.safetensors", tensors, torch.bfloat16)
    half = load_file(tmp_path / "a.safetensors")
    assert half["matrix"].equal(tensors["matrix"].bfloat16())
    assert half["count"].equal(tensors["count"])
    assert read_layout(tmp_path) == layout_of(tensors, torch.bfloat16) != layout_of(tensors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_version_written_directly_is_the_one_that_transformers_saves(
    dtype: str, policy_dir: Path, tmp_path: Path
) -> None:
    policy = load_policy(TrainerConfig(base_model=str(policy_dir), weights="full", dtype=dtype, device="cpu"))
    first = policy.publish_to(tmp_path / "v0")
    assert first == digest_dir(tmp_path / "v0")
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.25)
    direct = policy.publish_to(tmp_path / "direct", like=tmp_path / "v0")
    saved = policy.publish_to(tmp_path / "saved")
    assert direct == digest_dir(tmp_path / "direct") != first
    files = {path.name for path in (tmp_path / "saved").iterdir()}
    assert files == {path.name for path in (tmp_path / "direct").iterdir()}
    assert "config.json" in files
    for name in files - {"model.safetensors"}:
        assert (tmp_path / "direct" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()
    one, other = (load_file(tmp_path / way / "model.safetensors") for way in ("direct", "saved"))
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    assert saved == policy.publish_to(tmp_path / "nothing like it", like=tmp_path / "missing")


def stop_at(common: CommonConfig, context: Any, version: int) -> threading.Thread:
    """Stops the trainer once it waits for a batch after ``version``, so that it drains."""

    def watch() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not any(policy.version == version for policy in policies_of(common)):
            time.sleep(0.1)
        time.sleep(0.5)
        context.stop.set()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def moments_of(folder: Path) -> int:
    return int(torch.load(folder / "optimizer.pt", weights_only=True)["version"])


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False])
def test_between_whole_checkpoints_only_moments_can_be_lost(
    killed: bool, embedded_broker: EmbeddedBroker, prefix: str, policy_dir: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Killed, the trainer goes on with exact weights and older moments; stopped, it goes on exactly."""
    common = make_common(embedded_broker.bootstrap, prefix.rstrip("."), tmp_path / "data")
    settings: dict[str, Any] = {"weights": "full", "checkpoint_every": 10, "checkpoints_kept": 9}
    line = Line(common, last=6)  # three versions' worth
    line.start()
    context = make_context(common, policy_dir, **settings)
    with monkeypatch.context() as patch:
        if killed:
            patch.setattr(TrainerRun, "make_whole", lambda _: None)
        watcher = stop_at(common, context, 3)
        run(context)
        watcher.join()
    line.close()
    folders = common.data_dir / "runs/run/checkpoints"
    zero, light = folders / "00000000-0001", folders / "00000003-0001"
    assert (light / "optimizer.pt").samefile(zero / "optimizer.pt")
    assert moments_of(light) == 0
    whole = folders / "00000003-0002"
    assert whole.exists() != killed
    if not killed:
        assert moments_of(whole) == 3
        assert (whole / "weights.safetensors").read_bytes() == (light / "weights.safetensors").read_bytes()
        assert (whole / "state.json").read_bytes() == (light / "state.json").read_bytes()
    announced = next(policy for policy in policies_of(common) if policy.version == 3)
    published = load_file(from_uri(announced.uri) / "model.safetensors")
    weights = load_file(light / "weights.safetensors")
    assert all(published[name].equal(weights[name]) for name in published), "weights are those that were announced"

    line = Line(common, first=7)
    line.start()
    with capture_logs() as logs:
        again = make_context(common, policy_dir, max_versions=5, **settings)
        again.log = structlog.get_logger()
        run(again)
    line.close()
    older = [entry for entry in logs if entry["event"] == "older_moments"]
    assert [(entry["version"], entry["moments_of"]) for entry in older] == ([(3, 0)] if killed else [])
    assert [step.step for step in steps_of(common)] == [1, 2, 3, 4, 5]
    assert moments_of(folders / "00000005-0001") == 5, "the last one is whole"
    assert len({policy.sha256 for policy in policies_of(common)}) == 6
    verify_dir(announced.uri, announced.sha256)
    assert audit(common).balanced
