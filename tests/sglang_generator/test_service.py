"""The generator as a service, on a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fake_engine import FakeEngine
from generator_rig import Line, eventually, make_policy

from gristmill.messages import Sampling
from support.context import make_problem


def test_problems_become_completions_and_poison_becomes_verdicts(line: Line, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine:
            await line.policy(make_policy(tmp_path, 0, 100))
            await line.publish_raw(line.topics.problems, "run:00000001", b"not avro")
            await line.publish_raw(line.topics.problems, "what?", b"\x00\x00\x00\x00\x01rest")
            await line.publish_raw(line.topics.problems, "other:00000001", b"not ours")
            await line.problems(
                make_problem(2, prompt=None),
                make_problem(3, sampling=Sampling(temperature=-1.0, max_new_tokens=8)),
                make_problem(4, group_size=0),
                make_problem(5, run_id="other"),
                *(make_problem(n, group_size=2) for n in range(6, 12)),
                make_problem(12, kind="code", group_size=1),
            )
            async with line.generator([engine.url]) as generator:

                async def finished() -> bool:
                    return (
                        len(await line.completions()) == 12
                        and len(await line.read(line.topics.completions_code)) == 1
                        and len(await line.read(line.topics.dead_letters)) == 6
                    )

                await eventually(finished, what="all outputs")
                await eventually(lambda: generator.health.ready() == (True, ""), what="readiness")
            by_group: dict[int, list[int]] = {}
            for verdict in await line.verdicts():
                assert (verdict.status, verdict.reward) == ("error", None)
                by_group.setdefault(verdict.ordinal, []).append(verdict.index)
            assert {ordinal: sorted(indices) for ordinal, indices in by_group.items()} == {
                1: [-1],
                2: [0, 1, 2, 3],
                3: [0, 1, 2, 3],
                4: [-1],
            }
            completions = await line.completions()
            assert {sample.ordinal for sample in completions} == set(range(6, 12))
            assert {sample.policy_version_oldest for sample in completions} == {0}

    asyncio.run(main())


def test_the_tokenizer_is_there_before_the_first_credit(line: Line, tokenizer: str) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, line.generator([engine.url]) as generator:
            await eventually(lambda: generator.prompts._path == tokenizer, what="the tokenizer")
            assert generator.fleet.current is None

    asyncio.run(main())


def test_two_generators_share_the_credit_and_let_go_of_what_only_waits(
    line: Line, tokenizer: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as one, FakeEngine(tokenizer) as two:
            await line.problems(*(make_problem(n, group_size=2) for n in range(1, 41)))
            await line.policy(make_policy(tmp_path, 0, 6))
            loop = asyncio.get_running_loop()
            async with line.generator([one.url], drain_timeout_s=40):

                async def reached(ordinal: int) -> bool:
                    return {sample.ordinal for sample in await line.completions()} == set(range(1, ordinal + 1))

                await eventually(lambda: reached(6), what="the first credit used up")
                # The join makes partitions move although every handler of theirs waits for credit.
                async with line.generator([one.url, two.url], drain_timeout_s=40):
                    for version, until in ((1, 12), (2, 20)):
                        await line.policy(make_policy(tmp_path, version, until))
                        await eventually(lambda until=until: reached(until), what=f"credit {until} used up")
                    await asyncio.sleep(0.3)
                    assert await reached(20)
                    stopping = loop.time()
            assert loop.time() - stopping < 30  # groups without credit do not wait out the drain
            completions = await line.completions()
            assert len({sample.sample_id for sample in completions}) == 40
            for sample in completions:
                # Admitted by the credit of a version, sampled by that version or a later one.
                needed = 0 if sample.ordinal <= 6 else 1 if sample.ordinal <= 12 else 2
                assert sample.policy_version_oldest >= needed

    asyncio.run(main())


def test_a_stopped_generator_aborts_its_requests_and_the_problems_come_again(
    line: Line, tokenizer: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine:
            await line.policy(make_policy(tmp_path, 0, 100))
            await line.problems(make_problem(1, group_size=3))
            async with line.generator([engine.url], drain_timeout_s=0.5) as generator:
                await eventually(lambda: generator.fleet.current is not None)
                engine.latency_s = 60.0
                await eventually(lambda: len(engine.seen.samples()) == 3, what="requests in flight")
            assert set(engine.seen.aborted) == {body["rid"] for body in engine.seen.samples()}
            assert not await line.completions()
            engine.latency_s = 0.0
            async with line.generator([engine.url]):

                async def again() -> bool:
                    return len(await line.completions()) == 3

                await eventually(again, what="the problem again")

    asyncio.run(main())
