"""When new groups take a version: with all engines, or with each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from generator_rig import Rig, eventually, make_full_policy, make_policy, running, tokens

from gristmill.messages import PolicyVersion
from support.context import make_problem


def held_load(engine: FakeEngine, name: str) -> asyncio.Event:
    """Make an engine load a version only when the event is set."""
    gate = asyncio.Event()
    adapter, disk = engine._load_lora_adapter, engine._update_weights_from_disk

    async def load(body: dict[str, Any], fault: str | None) -> tuple[int, Any]:
        if body["lora_name"] == name:
            await gate.wait()
        return await adapter(body, fault)

    async def update(body: dict[str, Any], fault: str | None) -> tuple[int, Any]:
        if body["weight_version"] == name:
            await gate.wait()
        return await disk(body, fault)

    engine._load_lora_adapter = load  # type: ignore[method-assign]
    engine._update_weights_from_disk = update  # type: ignore[method-assign]
    return gate


def version(mode: str, folder: Path, number: int) -> PolicyVersion:
    return make_policy(folder, number, 1000) if mode == "lora" else make_full_policy(folder, number)


async def both_serve(rig: Rig) -> None:
    await eventually(lambda: len(rig.fleet.serving()) == 2, what="two engines in service")


@pytest.mark.parametrize("mode", ["lora", "disk"])
def test_all_waits_for_the_last_engine(mode: str, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer) as one,
            FakeEngine(tokenizer) as two,
            running([one.url, two.url], delivery=mode) as rig,
        ):
            rig.policy(version(mode, tmp_path, 0))
            await rig.current(0)
            await both_serve(rig)
            gate = held_load(two, "run-v1")
            rig.policy(version(mode, tmp_path, 1))
            await eventually(lambda: 1 in rig.fleet.engines[0].versions)
            work = [asyncio.create_task(rig.sample(make_problem(n))) for n in range(1, 7)]
            await asyncio.sleep(0.2)
            assert rig.fleet.current is not None
            assert rig.fleet.current.version == 0
            if mode == "lora":
                groups = await asyncio.gather(*work)
                assert {token for group in groups for sample in group for token in tokens(sample)} == {1000}
            else:
                assert not any(task.done() for task in work)  # neither engine serves version 0 any more
            gate.set()
            await rig.current(1)
            if mode == "disk":
                groups = await asyncio.gather(*work)
                assert {token for group in groups for sample in group for token in tokens(sample)} == {1001}
            assert {tokens(sample).pop() for sample in await rig.sample(make_problem(9))} == {1001}

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["lora", "disk"])
def test_an_engine_that_dies_during_the_switch_does_not_hold_it_up(mode: str, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer) as one,
            FakeEngine(tokenizer) as two,
            running([one.url, two.url], delivery=mode) as rig,
        ):
            rig.policy(version(mode, tmp_path, 0))
            await rig.current(0)
            await both_serve(rig)
            gate = held_load(two, "run-v1")
            rig.policy(version(mode, tmp_path, 1))
            await eventually(lambda: 1 in rig.fleet.engines[0].versions)
            await asyncio.sleep(0.1)
            await two.crash()
            await rig.current(1)
            group = await rig.sample(make_problem(1))
            assert {sample.engine for sample in group} == {one.url}
            assert {tokens(sample).pop() for sample in group} == {1001}
            gate.set()
            await two.start()
            await both_serve(rig)

    asyncio.run(main())


def test_each_takes_a_version_where_it_is(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer) as one,
            FakeEngine(tokenizer) as two,
            running([one.url, two.url], switch="each") as rig,
        ):
            rig.policy(make_policy(tmp_path, 0, 1000))
            await rig.current(0)
            await both_serve(rig)
            gate = held_load(two, "run-v1")
            rig.policy(make_policy(tmp_path, 1, 1000))
            await rig.current(1)
            groups = await asyncio.gather(*(rig.sample(make_problem(n)) for n in range(1, 5)))
            assert {sample.engine for group in groups for sample in group} == {one.url}
            gate.set()
            await both_serve(rig)

    asyncio.run(main())


def test_a_slow_engine_is_not_starved_by_versions_that_come_fast(tokenizer: str, tmp_path: Path) -> None:
    """The others keep what it is loading until it has it; else there would never be a version that all have."""

    async def main() -> None:
        async with (
            FakeEngine(tokenizer) as one,
            FakeEngine(tokenizer) as two,
            running([one.url, two.url]) as rig,
        ):
            rig.policy(make_policy(tmp_path, 0, 1000))
            await rig.current(0)
            await both_serve(rig)
            gate = held_load(two, "run-v1")
            for number in (1, 2, 3):
                rig.policy(make_policy(tmp_path, number, 1000))
                await eventually(lambda number=number: number in rig.fleet.engines[0].versions)
            await eventually(lambda: 2 not in rig.fleet.engines[0].versions)
            assert 1 in rig.fleet.engines[0].versions
            three = held_load(two, "run-v3")
            gate.set()
            await rig.current(1)
            three.set()
            await rig.current(3)

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["lora", "disk"])
def test_fifty_versions_in_a_row_under_load(mode: str, tokenizer: str, tmp_path: Path) -> None:
    """No group starts with a version that an engine in service lacks, and adapters stay flat."""

    async def main() -> None:
        async with (
            FakeEngine(tokenizer, latency_s=0.005) as one,
            FakeEngine(tokenizer, latency_s=0.008) as two,
            running([one.url, two.url], delivery=mode) as rig,
        ):
            placed = rig.fleet._try_place

            def checked(samples: int) -> Any:
                placement = placed(samples)
                if placement is not None:
                    for engine in rig.fleet.engines:
                        assert engine.usable_for(placement.policy) or not engine.in_service
                return placement

            rig.fleet._try_place = checked  # type: ignore[method-assign]
            rig.policy(version(mode, tmp_path, 0))
            await rig.current(0)
            ordinal = 0
            for number in range(1, 51):
                work = [asyncio.create_task(rig.sample(make_problem(ordinal + i, group_size=3))) for i in (1, 2, 3)]
                ordinal += 3
                await asyncio.sleep(0.004)
                rig.policy(version(mode, tmp_path, number))
                await rig.current(number)
                for group in await asyncio.gather(*work):
                    versions = {sample.policy_version_oldest for sample in group}
                    assert len(versions) == 1
                    assert {token for sample in group for token in tokens(sample)} == {1000 + versions.pop()}
            if mode == "lora":
                for engine in (one, two):
                    await eventually(lambda engine=engine: len(engine.adapters) == 2, what="unloading")
                    assert set(engine.adapters) == {"run-v49", "run-v50"}
                    assert engine.seen.most_adapters <= 5
                    assert len(engine.seen.unloads) == 49

    asyncio.run(main())
