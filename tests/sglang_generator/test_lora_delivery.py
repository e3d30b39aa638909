"""Adapters as files and as tensors: verified, never the base model under an adapter's name."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from generator_rig import eventually, make_lora_policy, running, tokens

from support.context import make_problem


@pytest.mark.parametrize("transfer", ["files", "tensors"])
def test_an_adapter_that_adds_nothing_may_look_like_the_base_model(
    transfer: str, tokenizer: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], lora_transfer=transfer) as rig:
            engine.unapplied.add("run-v0")
            rig.policy(make_lora_policy(tmp_path, 0))
            await rig.current(0)

    asyncio.run(main())


@pytest.mark.parametrize("transfer", ["files", "tensors"])
def test_an_engine_that_does_not_apply_an_adapter_never_serves_it(
    transfer: str, tokenizer: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], lora_transfer=transfer) as rig:
            rig.policy(make_lora_policy(tmp_path, 0))
            await rig.current(0)
            engine.unapplied.add("run-v1")
            rig.policy(make_lora_policy(tmp_path, 1))
            await eventually(lambda: rig.metric("engine_errors_total", engine=engine.url, kind="adapter") >= 2)
            assert rig.fleet.current is not None
            assert rig.fleet.current.version == 0
            assert "run-v1" not in [body["lora_path"] for body in engine.seen.generates]
            engine.unapplied.clear()
            await rig.current(1)

    asyncio.run(main())


def test_tensors_need_no_shared_folder(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], lora_transfer="tensors") as rig:
            for version in range(4):
                rig.policy(make_lora_policy(tmp_path, version))
                await rig.current(version)
                for sample in await rig.sample(make_problem(version + 1)):
                    assert tokens(sample) == {1000 + version}
                    assert sample.engine_weight_version == f"run-v{version}"
            await eventually(lambda: set(engine.adapters) == {"run-v2", "run-v3"}, what="unloading")
            assert rig.metric("delivered_bytes_total", engine=engine.url, mode="lora") == 4 * 2 * 8 * 4

    asyncio.run(main())


@pytest.mark.parametrize("transfer", ["files", "tensors"])
def test_an_evicted_adapter_is_delivered_anew(transfer: str, tokenizer: str, tmp_path: Path) -> None:
    """SGLang reloads what it evicted from its path, and an adapter that came as tensors has none."""

    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], lora_transfer=transfer) as rig:
            rig.policy(make_lora_policy(tmp_path, 1))
            await rig.current(1)
            engine.adapters.clear()
            engine.faults["/generate"] = ["400", 1]
            engine.fault_text = "Failed to implicitly load LoRA adapter run-v1: __tensor__"
            assert {tokens(sample).pop() for sample in await rig.sample(make_problem(1))} == {1001}
            assert engine.seen.loads == ["run-v1", "run-v1"]

    asyncio.run(main())


@pytest.mark.parametrize("transfer", ["files", "tensors"])
def test_a_restarted_engine_whose_old_adapter_is_gone_serves_the_new_one(
    transfer: str, tokenizer: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], lora_transfer=transfer) as rig:
            rig.policy(make_lora_policy(tmp_path, 0))
            await rig.current(0)
            engine.latency_s = 0.4
            old = asyncio.create_task(rig.sample(make_problem(1, group_size=2)))
            await eventually(lambda: engine.in_flight == 2)
            engine.latency_s = 0.0
            rig.policy(make_lora_policy(tmp_path, 1))
            await rig.current(1)
            shutil.rmtree(tmp_path / "run-v0")
            await engine.crash()
            await engine.start()
            assert [verdict.status for verdict in await old] == ["error", "error"]
            assert {tokens(sample).pop() for sample in await rig.sample(make_problem(2))} == {1001}

    asyncio.run(main())


def test_what_a_run_id_left_on_an_engine_is_replaced_by_tensors(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer, list_models=False) as engine:
            engine.adapters["run-v1"] = str(tmp_path)
            async with running([engine.url], lora_transfer="tensors") as rig:
                rig.policy(make_lora_policy(tmp_path, 1))
                await rig.current(1)
                assert {tokens(sample).pop() for sample in await rig.sample(make_problem(1))} == {1001}
                assert engine.seen.unloads == ["run-v1"]

    asyncio.run(main())
