"""The generator on the real embedded engine: what is published is what the announced weights give."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from generator_rig import make_policy, running

from gristmill.artifacts import digest_dir, to_uri
from gristmill.errors import BadInput
from gristmill.messages import ChatMessage, Completion, PolicyVersion, Sampling, unpack_ids, unpack_logprobs
from support.context import make_problem
from support.engine import Reference, RunningEngine, make_adapter, make_model

SAMPLING = Sampling(temperature=0.8, max_new_tokens=12, seed=3)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    make_adapter(make_model(folder / "base"), folder / "run-v0", seed=1)
    make_adapter(folder / "base", folder / "run-v1", seed=2)
    make_model(folder / "full", seed=5)
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


def test_whole_weights_by_disk(models: Path) -> None:
    async def main() -> None:
        with RunningEngine(models / "base", max_running_requests=16) as engine:
            async with running([engine.url], delivery="disk") as rig:
                rig.policy(policy(models / "base", 0, "full"))
                await rig.current(0)
                first = await rig.sample(make_problem(1, sampling=SAMPLING))
                rig.policy(policy(models / "full", 1, "full"))
                await rig.current(1)
                second = await rig.sample(make_problem(2, sampling=SAMPLING))
        assert {sample.engine_weight_version for sample in first} == {"run-v0"}
        assert {sample.engine_weight_version for sample in second} == {"run-v1"}
        agrees(first, Reference(models / "base"))
        agrees(second, Reference(models / "full"))

    asyncio.run(main())
