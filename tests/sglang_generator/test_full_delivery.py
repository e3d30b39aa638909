"""Whole weights on their way to engines, by every mode, and what goes wrong: nothing is sampled by half a version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_source import KEY, FakeSource
from generator_rig import Rig, eventually, make_full_policy, make_policy, running, tokens

from gristmill.messages import Completion
from support.context import make_problem

MODES: dict[str, dict[str, Any]] = {
    "disk": {"delivery": "disk"},
    "inline": {"delivery": "tensor", "tensor_chunk_mb": 0.0006},  # two of the fake's tensors
    "ipc": {"delivery": "tensor", "tensor_transfer": "ipc"},
    "nccl": {"delivery": "nccl"},
}
CHUNKED = ("inline", "ipc", "nccl")
SOURCED = ("ipc", "nccl")


class Lab:
    """Engines, a weight source, and a generator that delivers by one mode."""

    def __init__(self, rig: Rig, engines: list[FakeEngine], source: FakeSource, folder: Path) -> None:
        self.rig = rig
        self.engines = engines
        self.source = source
        self.folder = folder
        self.ordinal = 0

    def publish(self, version: int) -> None:
        self.source.hold(version)
        self.rig.policy(make_full_policy(self.folder, version))

    async def deliver(self, version: int) -> None:
        self.publish(version)
        await self.rig.current(version)

    async def samples(self, version: int) -> None:
        """A group is sampled by the weights of the version and says so."""
        self.ordinal += 1
        for sample in await self.rig.sample(make_problem(self.ordinal, group_size=2)):
            assert isinstance(sample, Completion), sample.reason
            assert tokens(sample) == {1000 + version}
            assert (sample.policy_version_oldest, sample.engine_weight_version) == (version, f"run-v{version}")

    def errors(self, kind: str) -> float:
        return sum(self.rig.metric("engine_errors_total", engine=engine.url, kind=kind) for engine in self.engines)


@asynccontextmanager
async def lab(mode: str, tokenizer: str, folder: Path, count: int = 1, **settings: Any) -> AsyncIterator[Lab]:
    engines = [FakeEngine(tokenizer) for _ in range(count)]
    for engine in engines:
        await engine.start()
    try:
        async with FakeSource(engines) as source:
            sourced = {"weight_source": source.url, "weight_source_key": KEY} if mode in SOURCED else {}
            async with running([engine.url for engine in engines], **MODES[mode] | sourced | settings) as rig:
                yield Lab(rig, engines, source, folder)
    finally:
        for engine in engines:
            await engine.crash()


@pytest.mark.parametrize("mode", MODES)
def test_versions_in_a_row(mode: str, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab(mode, tokenizer, tmp_path) as on:
            (engine,) = on.engines
            for version in range(5):
                await on.deliver(version)
                await on.samples(version)
            names = [f"run-v{version}" for version in range(5)]
            assert engine.seen.updates == names
            assert engine.seen.stamps == ([f"{name}-loading" for name in names] if mode in CHUNKED else [])
            assert engine.chunks == (15 if mode in CHUNKED else 0)
            assert "lm_head.weight" not in engine.weights
            how = MODES[mode]["delivery"]
            assert on.rig.metric("delivered_bytes_total", engine=engine.url, mode=how) > 100
            assert on.rig.metric("delivery_phase_seconds_count", mode=how, phase="verify") == 5
            # The first is a stall only where the engine was in service before it came.
            assert on.rig.metric("update_stall_seconds_count") in (5 - 1, 5)
            assert not on.source.leases
            assert len(engine.seen.groups) == (1 if mode == "nccl" else 0)

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_group_finishes_before_its_weights_go(mode: str, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab(mode, tokenizer, tmp_path, engine_concurrency=2) as on:
            (engine,) = on.engines
            await on.deliver(0)
            await on.samples(0)
            engine.latency_s = 0.05
            old = asyncio.create_task(on.rig.sample(make_problem(50, group_size=6)))
            await eventually(lambda: engine.in_flight == 2)
            await on.deliver(1)
            assert old.done()
            assert {token for sample in await old for token in tokens(sample)} == {1000}
            await on.samples(1)

    asyncio.run(main())


@pytest.mark.parametrize("mode", CHUNKED)
def test_an_engine_that_fails_in_the_middle_is_loaded_anew(mode: str, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab(mode, tokenizer, tmp_path) as on:
            (engine,) = on.engines
            await on.deliver(0)
            path = "/update_weights_from_distributed" if mode == "nccl" else "/update_weights_from_tensor"

            async def fail_next(chunk: int) -> None:
                engine.on_chunk = None
                engine.faults[path] = ["500", 1]

            engine.on_chunk = fail_next
            await on.deliver(1)
            await on.samples(1)
            assert on.errors("unavailable") == 1
            assert engine.seen.stamps.count("run-v1-loading") == 2
            assert engine.chunks == 3 + 1 + 3
            assert not on.source.leases

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_killed_during_a_delivery_comes_back_with_the_version(
    mode: str, tokenizer: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with lab(mode, tokenizer, tmp_path) as on:
            (engine,) = on.engines
            await on.deliver(0)
            await on.samples(0)
            if mode == "disk":
                engine.faults["/update_weights_from_disk"] = ["hang", 1]
            reached = asyncio.Event()

            async def stick(chunk: int) -> None:
                reached.set()
                await asyncio.sleep(3600)

            engine.on_chunk = stick
            on.publish(1)
            await eventually(lambda: reached.is_set() or engine.seen.paths["/update_weights_from_disk"] == 2)
            await engine.crash()
            engine.on_chunk = None
            await engine.start()
            await on.rig.current(1)
            await on.samples(1)
            assert len(engine.seen.groups) == (2 if mode == "nccl" else 0)

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_that_ignores_an_update_never_serves_it(mode: str, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab(mode, tokenizer, tmp_path) as on:
            (engine,) = on.engines
            await on.deliver(0)
            engine.deaf = True
            on.publish(1)
            await eventually(lambda: on.errors("mismatch") >= 3, what="repeated refusals")
            assert on.rig.fleet.current is not None
            assert on.rig.fleet.current.version == 0
            assert len(engine.seen.generates) == 1  # which confirmed version 0
            engine.deaf = False
            await on.rig.current(1)
            await on.samples(1)

    asyncio.run(main())


def test_a_fresh_engine_that_ignores_updates_is_found_out(tokenizer: str, tmp_path: Path) -> None:
    """Its stamp changes with the first attempt, its weights do not: the second attempt must not take them for new."""

    async def main() -> None:
        async with lab("disk", tokenizer, tmp_path) as on:
            on.engines[0].deaf = True
            on.publish(3)
            await eventually(lambda: on.errors("mismatch") >= 3, what="repeated refusals")
            assert on.rig.fleet.current is None

    asyncio.run(main())


def test_without_checksums_a_probe_must_change(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab("disk", tokenizer, tmp_path) as on:
            (engine,) = on.engines
            engine.checker = False
            await on.deliver(0)
            await on.samples(0)
            engine.deaf = True
            on.publish(1)
            await eventually(lambda: on.errors("mismatch") >= 2, what="repeated refusals")
            engine.deaf = False
            await on.rig.current(1)
            await on.samples(1)

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_redelivery_must_give_the_same_checksum(mode: str, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab(mode, tokenizer, tmp_path) as on:
            (engine,) = on.engines
            await on.deliver(0)
            await on.deliver(1)
            await on.samples(1)
            await engine.crash()
            engine.garbles = 1
            await engine.start()
            await on.samples(1)
            assert engine.seen.garbled == ["run-v1"]
            assert engine.seen.updates == ["run-v0", "run-v1", "run-v1", "run-v1"]

    asyncio.run(main())


def test_engines_must_agree(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab("inline", tokenizer, tmp_path, count=2) as on:
            await on.deliver(0)
            await eventually(lambda: len(on.rig.fleet.serving()) == 2)
            good, bad = on.engines
            held = asyncio.Event()

            async def hold(_chunk: int) -> None:
                await held.wait()

            bad.on_chunk = hold  # so that the good one is first
            bad.garbles = 1
            on.publish(1)
            await eventually(lambda: good.weight_version == "run-v1")
            await eventually(lambda: any(engine.versions == [1] for engine in on.rig.fleet.engines))
            held.set()
            await on.rig.current(1)
            await eventually(lambda: len(on.rig.fleet.serving()) == 2)
            assert bad.seen.garbled == ["run-v1"]
            assert bad.seen.updates == ["run-v0", "run-v1", "run-v1"]
            await on.samples(1)

    asyncio.run(main())


def test_versions_with_the_same_artifact_may_have_the_same_weights(tokenizer: str, tmp_path: Path) -> None:
    """A step may leave the weights as they were (a learning rate that warms up from zero)."""

    async def main() -> None:
        async with lab("disk", tokenizer, tmp_path) as on:
            await on.deliver(1)
            on.engines[0].deaf = True  # stands for an engine that gets the same bytes again
            first = make_policy(tmp_path, 1, 1000)
            on.rig.policy(make_full_policy(tmp_path, 2, sha256=first.sha256, uri=first.uri))
            await on.rig.current(2)

    asyncio.run(main())


@pytest.mark.parametrize("mode", SOURCED)
def test_without_the_source_the_old_version_goes_on(mode: str, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab(mode, tokenizer, tmp_path) as on:
            await on.deliver(0)
            await on.source.crash()
            on.publish(1)
            await eventually(lambda: on.errors("source") >= 2, what="attempts")
            await on.samples(0)
            assert on.engines[0].weight_version == "run-v0"
            await on.source.start()
            await on.rig.current(1)
            await on.samples(1)

    asyncio.run(main())


@pytest.mark.parametrize("mode", SOURCED)
def test_a_source_that_dies_in_the_middle(mode: str, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab(mode, tokenizer, tmp_path) as on:
            (engine,) = on.engines
            await on.deliver(0)
            on.source.gate.clear()
            on.publish(1)
            if mode == "nccl":
                await eventually(lambda: engine.weight_version == "run-v1-loading")
            else:
                await eventually(lambda: on.rig.fleet.engines[0].state == "syncing")
            await on.source.crash()
            await eventually(lambda: on.errors("source") >= 2, what="attempts")
            assert not on.rig.fleet.serving()
            on.source.gate.set()
            await on.source.start()
            await on.rig.current(1)
            await on.samples(1)
            assert engine.weight_version == "run-v1"

    asyncio.run(main())


@pytest.mark.parametrize("mode", SOURCED)
def test_a_version_that_is_overtaken_while_it_is_fetched(mode: str, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab(mode, tokenizer, tmp_path) as on:
            await on.deliver(0)
            on.source.gate.clear()
            on.publish(1)
            await eventually(lambda: on.rig.fleet.engines[0].state == "syncing")
            on.publish(2)
            on.publish(3)  # the source lets go of 1
            await asyncio.sleep(0.05)
            on.source.gate.set()
            await on.rig.current(3)
            await on.samples(3)
            assert on.engines[0].seen.updates[-1] == "run-v3"
            assert "run-v1" not in on.engines[0].seen.updates

    asyncio.run(main())


def test_a_broadcast_that_fails_costs_the_group_and_is_repeated(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab("nccl", tokenizer, tmp_path) as on:
            await on.deliver(0)
            on.source.fail_send = 1
            await on.deliver(1)
            await on.samples(1)
            first, second = on.engines[0].seen.groups
            assert first in on.source.closed
            assert list(on.engines[0].groups) == [second]

    asyncio.run(main())


def test_a_group_that_the_trainer_cannot_join(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab("nccl", tokenizer, tmp_path) as on:
            on.source.join_fails = True
            on.publish(0)
            await eventually(lambda: on.errors("source") >= 2, what="attempts")
            on.source.join_fails = False
            await on.rig.current(0)
            await on.samples(0)
            assert len(on.source.groups) == 1

    asyncio.run(main())


def test_groups_are_left_when_the_generator_stops(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lab("nccl", tokenizer, tmp_path) as on:
            await on.deliver(0)
            await on.rig.fleet.engines[0].close()
            assert not on.source.groups
            assert not on.engines[0].groups

    asyncio.run(main())


def test_every_rank_gets_the_payload(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        for mode in CHUNKED:
            async with lab(mode, tokenizer, tmp_path / mode) as on:
                on.engines[0].info["tp_size"] = 2
                await on.deliver(0)
                await on.samples(0)
                if mode == "nccl":
                    (group,) = on.source.groups.values()
                    assert group["world_size"] == 3

    asyncio.run(main())
