"""The generator on the real embedded engine: what is published is what the announced weights give."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from generator_rig import RUN, Rig, make_policy, running
from msgspec.structs import replace
from safetensors.torch import load_file

from gristmill.artifacts import digest_dir, to_uri
from gristmill.broker import free_port
from gristmill.errors import BadInput
from gristmill.messages import ChatMessage, Completion, PolicyVersion, Sampling, unpack_ids, unpack_logprobs
from grpo_trainer.config import WeightSourceSettings
from grpo_trainer.weight_source.server import WeightSource
from support.context import make_problem
from support.engine import Reference, RunningEngine, make_adapter, make_model

SAMPLING = Sampling(temperature=0.8, max_new_tokens=12, seed=3)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    make_adapter(make_model(folder / "base"), folder / "run-v0", seed=1)
    make_adapter(folder / "base", folder / "run-v1", seed=2)
    make_model(folder / "full", seed=5)
    make_model(folder / "next", seed=6)
    return folder


def policy(folder: Path, version: int, kind: str) -> PolicyVersion:
    record = make_policy(folder.parent / "unused", version, 100, kind=kind)
    return PolicyVersion(
        **{name: getattr(record, name) for name in record.__struct_fields__}
        | {"uri": to_uri(folder), "sha256": digest_dir(folder)}
    )


def agrees(samples: list[Completion], reference: Reference) -> None:
    for sample in samples:
        ids = unpack_ids(sample.completion_token_ids).tolist()
        expected = reference.logprobs(unpack_ids(sample.prompt_token_ids).tolist(), ids, 0.8)
        assert unpack_logprobs(sample.logprobs).tolist() == pytest.approx(expected, abs=1e-4)


def test_every_sample_is_of_the_adapter_it_is_stamped_with(models: Path) -> None:
    references = [Reference(models / "base", models / f"run-v{version}") for version in (0, 1)]

    async def main() -> None:
        with RunningEngine(models / "base", max_running_requests=16) as engine:
            async with running([engine.url]) as rig:
                rig.policy(policy(models / "run-v0", 0, "lora"))
                await rig.current(0)
                work = [asyncio.create_task(rig.sample(make_problem(n, sampling=SAMPLING))) for n in (1, 2, 3)]
                await asyncio.sleep(0.01)
                rig.policy(policy(models / "run-v1", 1, "lora"))
                await rig.current(1)
                groups = [await task for task in work]
                groups.append(await rig.sample(make_problem(4, sampling=SAMPLING)))
                messages = (ChatMessage(role="user", content="1"),)
                with pytest.raises(BadInput, match="no chat template"):
                    await rig.sample(make_problem(5, prompt=None, messages=messages))
                assert rig.fleet.context_length == 4096
        assert {sample.policy_version_oldest for sample in groups[0]} == {0}
        assert {sample.policy_version_oldest for sample in groups[-1]} == {1}
        for group in groups:
            version = group[0].policy_version_oldest
            assert {sample.engine_weight_version for sample in group} == {f"run-v{version}"}
            agrees(group, references[version])

    asyncio.run(main())


class EngineProcess:
    """An embedded engine as a process of its own, which a process group with this one needs."""

    def __init__(self, model: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "gristmill", "engine", "--model", str(model), "--port", str(port)]

    def __enter__(self) -> EngineProcess:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(20)


async def three_versions(models: Path, rig: Rig) -> None:
    """The base model, then two others; each group is sampled by what it is stamped with."""
    for version, name in enumerate(("base", "full", "next")):
        rig.policy(policy(models / name, version, "full"))
        await rig.current(version)
        group = await rig.sample(make_problem(version + 1, sampling=SAMPLING))
        assert {sample.engine_weight_version for sample in group} == {f"run-v{version}"}
        agrees(group, Reference(models / name))


@pytest.mark.parametrize(
    "settings", [{"delivery": "disk"}, {"delivery": "tensor"}, {"delivery": "tensor", "tensor_chunk_mb": 0.01}]
)
def test_whole_weights(models: Path, settings: dict[str, Any]) -> None:
    async def main() -> None:
        with RunningEngine(models / "base", max_running_requests=16) as engine:
            async with running([engine.url], **settings) as rig:
                await three_versions(models, rig)
                assert rig.metric("delivered_bytes_total", engine=engine.url, mode=settings["delivery"]) > 1e5

    asyncio.run(main())


def test_adapters_as_tensors(models: Path) -> None:
    async def main() -> None:
        with RunningEngine(models / "base", max_running_requests=16) as engine:
            async with running([engine.url], lora_transfer="tensors") as rig:
                for version in (0, 1):
                    rig.policy(policy(models / f"run-v{version}", version, "lora"))
                    await rig.current(version)
                    group = await rig.sample(make_problem(version + 1, sampling=SAMPLING))
                    assert {sample.engine_weight_version for sample in group} == {f"run-v{version}"}
                    agrees(group, Reference(models / "base", models / f"run-v{version}"))

    asyncio.run(main())


def test_broadcast_from_the_trainers_weight_source(models: Path) -> None:
    """Over gloo, in buckets of a megabyte at most; the engine restarts once, which costs its group and nothing else."""
    log = structlog.get_logger()
    settings = WeightSourceSettings(enabled=True, bucket_mb=1)
    names = ("base", "full", "next")
    states = [load_file(models / name / "model.safetensors") for name in names]
    source = WeightSource(settings, run_id=RUN, device=torch.device("cpu"), dtype=torch.float32, log=log)

    async def main() -> None:
        port = free_port()
        held = [policy(models / name, version, "full") for version, name in enumerate(names)]

        async def sampled(rig: Rig, ordinal: int, version: int) -> None:
            group = await rig.sample(make_problem(ordinal, sampling=SAMPLING))
            assert {sample.engine_weight_version for sample in group} == {f"run-v{version}"}
            agrees(group, Reference(models / names[version]))

        async with AsyncExitStack() as stack:
            with EngineProcess(models / "base", port) as engine:
                rig = await stack.enter_async_context(
                    running([engine.url], delivery="nccl", group_backend="gloo", weight_source=source.url)
                )
                for version in (0, 1):
                    source.hold(version, held[version].name, states[version])
                    # Nobody reads the folder: it may lie on another host.
                    rig.policy(replace(held[version], uri="file:///nowhere"))
                    await rig.current(version, 120.0)  # the engine's process takes long to start on a busy machine
                    await sampled(rig, version + 1, version)
            with EngineProcess(models / "base", port):
                await sampled(rig, 3, 1)
                source.hold(2, held[2].name, states[2])
                rig.policy(replace(held[2], uri="file:///nowhere"))
                await rig.current(2)
                await sampled(rig, 4, 2)
                await stack.aclose()

    try:
        asyncio.run(main())
    finally:
        source.close()
