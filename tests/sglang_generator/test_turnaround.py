"""Between an answer's arrival and its reading: the next requests have left, and nothing is lost, whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from generator_rig import eventually, make_full_policy, make_policy, running, tokens

from gristmill.errors import BadInput
from gristmill.messages import Completion
from sglang_generator.desk import Desk
from sglang_generator.fleet import Fleet
from sglang_generator.placement import Placement
from support.context import make_problem


class Gate:
    """Holds up the reading of answers while it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = True
        read = Desk._read

        def gated(desk: Desk) -> None:
            if self.open:
                read(desk)
            else:
                asyncio.get_running_loop().call_later(0.01, desk._read)

        monkeypatch.setattr(Desk, "_read", gated)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def test_requests_follow_answers_that_nobody_has_read_up_to_a_bound(tokenizer: str, tmp_path: Path, gate: Gate) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer, latency_s=0.02) as engine,
            running([engine.url], engine_concurrency=8) as rig,
        ):
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            gate.open = False
            work = asyncio.create_task(rig.samples(make_problem(n, group_size=4) for n in range(1, 11)))
            # Eight answers freed their slots, and the eight that came next keep theirs.
            await eventually(lambda: len(engine.seen.samples()) == 16)
            await asyncio.sleep(0.2)
            assert len(engine.seen.samples()) == 16
            (placed,) = rig.fleet.engines
            assert (placed.desk.unread, placed.desk.slots.held, placed.client.in_flight) == (8, 8, 0)
            gate.open = True
            samples = await work
            assert all(isinstance(sample, Completion) for sample in samples)
            assert len({sample.sample_id for sample in samples}) == len(samples) == 40
            assert engine.seen.most_in_flight == 8
            assert (placed.assigned, placed.desk.unread, placed.desk.slots.held) == (0, 0, 0)

    asyncio.run(main())


def test_an_engine_is_not_drained_before_its_answers_are_read(tokenizer: str, tmp_path: Path, gate: Gate) -> None:
    """One of them may have to be asked for again, of the weights that are there."""

    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], delivery="disk") as rig:
            rig.policy(make_full_policy(tmp_path, 1))
            await rig.current(1)
            gate.open = False
            engine.faults["/generate"] = ["short", 1]
            group = asyncio.create_task(rig.sample(make_problem(1)))
            await eventually(lambda: rig.fleet.engines[0].client.in_flight == 0 < len(engine.seen.samples()))
            rig.policy(make_full_policy(tmp_path, 2))
            await asyncio.sleep(0.3)
            assert engine.seen.updates == ["run-v1"]
            (placed,) = rig.fleet.engines
            # Nothing more is placed here, so no slot is to wait for others.
            assert (placed.state, placed.desk._may_gather) == ("syncing", False)
            gate.open = True
            samples = await group
            assert sorted(sample.attempts for sample in samples) == [1, 1, 1, 2]
            assert {sample.policy_version_newest for sample in samples} == {1}
            await rig.current(2)
            assert engine.seen.updates == ["run-v1", "run-v2"]
            assert (placed.state, placed.desk._may_gather) == ("serving", True)

    asyncio.run(main())


def test_answers_that_arrived_before_an_engine_died_are_kept(tokenizer: str, tmp_path: Path, gate: Gate) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], engine_concurrency=4) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            gate.open = False
            early = asyncio.create_task(rig.sample(make_problem(1)))
            (placed,) = rig.fleet.engines
            await eventually(lambda: placed.desk.unread == 4)
            engine.latency_s = 30.0
            late = asyncio.create_task(rig.sample(make_problem(2)))
            await eventually(lambda: engine.in_flight == 4)
            await engine.crash()
            engine.latency_s = 0.0
            gate.open = True
            assert [sample.attempts for sample in await early] == [1] * 4
            await eventually(lambda: placed.state != "serving")
            await engine.start()
            assert [sample.attempts for sample in await late] == [2] * 4
            assert {frozenset(tokens(sample)) for sample in await late} == {frozenset({1000})}
            assert (placed.assigned, placed.desk.unread, placed.desk.slots.held) == (0, 0, 0)

    asyncio.run(main())


def test_a_group_that_gives_up_with_unread_answers_leaves_nothing_behind(
    tokenizer: str, tmp_path: Path, gate: Gate
) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], engine_concurrency=4) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            gate.open = False
            work = asyncio.create_task(rig.sample(make_problem(1, group_size=9)))
            (placed,) = rig.fleet.engines
            await eventually(lambda: placed.desk.unread == placed.desk.slots.held == 4)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await asyncio.sleep(0)
            assert (placed.assigned, placed.desk.unread, placed.desk.slots.held) == (0, 0, 0)
            gate.open = True
            assert len(await rig.sample(make_problem(2))) == 4

    asyncio.run(main())


def test_timeouts_that_nobody_has_read_are_aborted_when_their_group_gives_up(
    tokenizer: str, tmp_path: Path, gate: Gate
) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer) as engine,
            running([engine.url], engine_concurrency=4, request_timeout_s=0.2) as rig,
        ):
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            engine.latency_s = 30.0
            gate.open = False
            work = asyncio.create_task(rig.sample(make_problem(1)))
            (placed,) = rig.fleet.engines
            await eventually(lambda: engine.in_flight == 4 and placed.client.in_flight == 0)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            rids = {request["rid"] for request in engine.seen.samples()}
            await eventually(lambda: set(engine.seen.aborted) == rids)
            assert rig.metric("engine_errors_total", engine=engine.url, kind="timeout") == 4

    asyncio.run(main())


def test_a_group_that_cannot_be_started_says_so_and_leaves_nothing_behind(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], engine_concurrency=2) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            fleet: Fleet = rig.fleet

            class Starter:
                def start(self, placement: Placement) -> None:
                    raise MemoryError(placement.policy.name)

                def withdraw(self) -> None:
                    pass

            first = await fleet.place(2)
            failing = asyncio.create_task(fleet.place(3, Starter()))
            next_one = asyncio.create_task(fleet.place(1))
            await asyncio.sleep(0)
            for _ in range(2):
                fleet.finish(first.engine)
            with pytest.raises(MemoryError, match="run-v0"):
                await failing
            second = await next_one
            assert second.engine.assigned == 1
            fleet.finish(second.engine)
            fleet.release(first)
            fleet.release(second)
            assert not fleet._held

    asyncio.run(main())


def test_a_group_that_gives_up_as_it_is_placed_is_taken_back(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], engine_concurrency=2) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            fleet: Fleet = rig.fleet
            steps: list[str] = []

            class Starter:
                def start(self, placement: Placement) -> None:
                    steps.append(f"started with {placement.policy.name}")

                def withdraw(self) -> None:
                    steps.append("withdrawn")

            first = await fleet.place(2)
            waiting = asyncio.create_task(fleet.place(3, Starter()))
            given_up = asyncio.create_task(fleet.place(3))
            await asyncio.sleep(0)
            assert not steps
            given_up.cancel()
            for _ in range(2):
                fleet.finish(first.engine)  # makes room, so the group starts at once
            assert steps == ["started with run-v0"]
            waiting.cancel()
            await asyncio.gather(waiting, given_up, return_exceptions=True)
            assert steps == ["started with run-v0", "withdrawn"]
            fleet.release(first)
            assert first.engine.assigned == 0
            assert not fleet._held
            assert not fleet.waiting
            assert len(await rig.sample(make_problem(1))) == 4

    asyncio.run(main())


def test_what_is_wrong_with_a_problem_is_said_when_its_credit_comes(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], max_refusals=1000) as rig:
            rig.policy(make_policy(tmp_path, 0, 1))
            await rig.current(0)
            await rig.sample(make_problem(1))
            work = [asyncio.create_task(rig.sample(make_problem(n, prompt=p))) for n, p in ((2, "1"), (3, ""))]
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in work)
            rig.policy(make_policy(tmp_path, 0, 3))
            good, bad = await asyncio.gather(*work, return_exceptions=True)
            assert isinstance(bad, BadInput)
            assert "empty prompt" in str(bad)
            assert isinstance(good, list)
            assert len(good) == 4

    asyncio.run(main())


def test_a_generator_that_cannot_keep_up_has_no_full_engine(tokenizer: str, tmp_path: Path, gate: Gate) -> None:
    """Requests wait for slots, but it is not the limit that bounds them: raising it would not help."""

    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], engine_concurrency=8) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            gate.open = False
            group = asyncio.create_task(rig.sample(make_problem(1, group_size=32)))
            (placed,) = rig.fleet.engines
            await eventually(lambda: (placed.desk.slots.waiting, placed.client.in_flight) == (16, 0))
            assert placed.held_back
            assert not placed.full
            gate.open = True
            assert len(await group) == 32

    asyncio.run(main())


@pytest.mark.parametrize(("cost_s", "together"), [(5.0, 4), (0.0, 1)])
def test_as_many_are_filled_together_as_settings_and_limit_say(
    tokenizer: str, tmp_path: Path, cost_s: float, together: int
) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer, latency_s=0.05) as engine,
            running([engine.url], engine_concurrency=40, prefill_cost_s=cost_s) as rig,
        ):
            rig.policy(make_policy(tmp_path, 0, 1000))
            await rig.current(0)
            samples = await rig.samples(make_problem(n) for n in range(1, 41))
            assert all(isinstance(sample, Completion) for sample in samples)
            (placed,) = rig.fleet.engines
            assert placed.desk.slots.together == together
            placed.set_limit(80)
            assert placed.desk.slots.together == (8 if cost_s else 1)
            placed.set_limit(40)
            assert engine.seen.most_in_flight == 40
            assert (placed.assigned, placed.desk.slots.held, placed.desk.slots.waiting) == (0, 0, 0)

    asyncio.run(main())
