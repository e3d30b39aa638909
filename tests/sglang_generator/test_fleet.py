"""Engines that fail: the breaker, hung engines, and the way back into service."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fake_engine import FakeEngine
from generator_rig import eventually, make_policy, running

from gristmill.messages import Completion
from support.context import make_problem


def test_the_breaker_opens_and_closes(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer) as one,
            FakeEngine(tokenizer) as two,
            running([one.url, two.url], breaker_failures=3, attempts=20) as rig,
        ):
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            sick, _ = rig.fleet.engines
            await eventually(lambda: len(rig.fleet.serving()) == 2)
            one.faults["/generate"] = ["503", 10_000]
            samples = await rig.samples(make_problem(n) for n in range(1, 6))
            assert all(isinstance(sample, Completion) for sample in samples)
            assert {sample.engine for sample in samples} == {two.url}
            assert sick.state != "serving"
            assert rig.metric("breaker_openings_total", engine=one.url) == 1
            # While it is out of service it gets probes only.
            before = len(one.seen.samples())
            await rig.sample(make_problem(6))
            assert len(one.seen.samples()) == before
            one.faults.clear()
            await eventually(lambda: sick.state == "serving", what="the way back")
            await asyncio.gather(*(rig.sample(make_problem(n)) for n in range(7, 11)))
            assert len(one.seen.samples()) > before

    asyncio.run(main())


def test_with_all_engines_down_groups_wait_and_nothing_fails(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], attempts=2) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            await engine.crash()
            work = asyncio.create_task(rig.sample(make_problem(1)))
            await asyncio.sleep(1.0)
            assert not work.done()
            assert rig.generator.health.ready() == (False, "no engine serves the current policy")
            await engine.start()
            assert all(isinstance(sample, Completion) for sample in await work)

    asyncio.run(main())


def test_a_request_that_takes_too_long_is_aborted_and_retried(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], request_timeout_s=0.3) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            engine.faults["/generate"] = ["hang", 1]
            (sample,) = await rig.sample(make_problem(1, group_size=1))
            assert sample.attempts == 2
            hung = engine.seen.samples()[0]["rid"]
            await eventually(lambda: engine.seen.aborted == [hung])

    asyncio.run(main())


def test_a_hung_engine_is_found_by_its_health_and_given_up(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer) as one,
            FakeEngine(tokenizer) as two,
            running([one.url, two.url], health_interval_s=0.2, health_timeout_s=0.2) as rig,
        ):
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            await eventually(lambda: len(rig.fleet.serving()) == 2)
            for path in ("/generate", "/health", "/model_info", "/abort_request"):
                one.faults[path] = ["hang", 10_000]
            samples = await rig.samples(make_problem(n, group_size=2) for n in range(1, 5))
            assert {sample.engine for sample in samples} == {two.url}
            assert {sample.attempts for sample in samples} == {1, 2}
            one.faults.clear()
            await eventually(lambda: len(rig.fleet.serving()) == 2, what="the way back")

    asyncio.run(main())


def test_an_engine_that_comes_back_with_another_model_stays_out(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url]) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            await engine.crash()
            await engine.start()
            engine.model_path = "another"
            work = asyncio.create_task(rig.sample(make_problem(1)))
            # The first prompt of a process waits for the tokenizer.
            await eventually(lambda: rig.metric("engine_errors_total", engine=engine.url, kind="mismatch") >= 1)
            await asyncio.sleep(0.5)
            assert not work.done()
            assert not engine.adapters
            engine.model_path = "base"
            assert len(await work) == 4

    asyncio.run(main())


def test_a_version_that_can_no_longer_be_loaded_does_not_keep_an_engine_out(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url]) as rig:
            rig.policy(make_policy(tmp_path, 0, 10))
            await rig.current(0)
            engine.latency_s = 0.4
            old = asyncio.create_task(rig.sample(make_problem(1, group_size=2)))
            await asyncio.sleep(0.1)
            engine.latency_s = 0.0
            rig.policy(make_policy(tmp_path, 1, 10))
            await rig.current(1)
            for file in (tmp_path / "run-v0").iterdir():
                file.unlink()
            (tmp_path / "run-v0").rmdir()
            await engine.crash()
            await engine.start()
            assert [verdict.status for verdict in await old] == ["error", "error"]
            assert len(await rig.sample(make_problem(2))) == 4

    asyncio.run(main())
