"""One group at a time: where it goes, what its samples are stamped with, and what becomes of failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from generator_rig import RUN, make_policy, running, tokens

from gristmill.errors import BadInput, ConfigError
from gristmill.messages import ChatMessage, Completion, Sampling, Verdict, unpack_ids, unpack_logprobs
from sglang_generator.errors import RequestRefused
from support.context import make_problem


def test_a_group_is_sampled_on_one_engine_and_stamped(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer, latency_s=0.02) as one,
            FakeEngine(tokenizer, latency_s=0.02) as two,
            running([one.url, two.url]) as rig,
        ):
            rig.policy(make_policy(tmp_path, 7, 100))
            await rig.current(7)
            sampling = Sampling(temperature=0.7, top_p=0.9, max_new_tokens=3, stop=("x",), seed=40)
            problems = [make_problem(n, group_size=4, sampling=sampling) for n in range(1, 9)]
            groups = await asyncio.gather(*(rig.sample(problem) for problem in problems))
            for problem, group in zip(problems, groups, strict=True):
                assert [sample.sample_id for sample in group] == [f"{problem.group_id}/{i}" for i in range(4)]
                assert len({sample.engine for sample in group}) == 1
                for sample in group:
                    assert tokens(sample) == {1007}
                    assert (sample.policy_run_id, sample.policy_version_oldest) == (RUN, 7)
                    assert sample.policy_version_newest == 7
                    assert sample.engine_weight_version == "run-v7"
                    assert [(s.version, s.start, s.length) for s in sample.policy_spans] == [(7, 0, 3)]
                    assert unpack_ids(sample.prompt_token_ids).tolist() == [2, 4, 2, 5]
                    expected = [-0.125 * (1 + (40 + sample.index + i) % 7) for i in range(3)]
                    assert unpack_logprobs(sample.logprobs).tolist() == expected
            assert {sample.engine for group in groups for sample in group} == {one.url, two.url}
            bodies = one.seen.samples() + two.seen.samples()
            assert len({body["rid"] for body in bodies}) == 32
            assert {len(body["rid"]) for body in bodies} == {32}
            assert {body["lora_path"] for body in bodies} == {"run-v7"}
            seeds = sorted(body["sampling_params"].pop("sampling_seed") for body in bodies)
            assert seeds == sorted([40, 41, 42, 43] * 8)
            assert bodies[0]["sampling_params"] == {
                "max_new_tokens": 3,
                "temperature": 0.7,
                "top_p": 0.9,
                "stop": ["x"],
            }
            assert [engine.assigned for engine in rig.fleet.engines] == [0, 0]

    asyncio.run(main())


def test_requests_per_engine_are_bounded(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer, latency_s=0.02) as engine, running([engine.url], engine_concurrency=3) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            groups = await asyncio.gather(*(rig.sample(make_problem(n, group_size=5)) for n in range(1, 7)))
            assert sum(len(group) for group in groups) == 30
            assert engine.seen.most_in_flight == 3

    asyncio.run(main())


def test_chat_messages_are_rendered_with_the_engines_tokenizer(tokenizer: str) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], admission="off") as rig:
            messages = (ChatMessage(role="user", content="1 + 2 = ?"),)
            (sample,) = await rig.sample(make_problem(1, prompt=None, messages=messages, group_size=1))
            assert unpack_ids(sample.prompt_token_ids).tolist() == [6, 8, 2, 4, 3, 5, 10, 7, 8]
            assert (sample.policy_run_id, sample.policy_version_oldest) == (RUN, 0)
            assert sample.engine_weight_version == "default"
            assert tokens(sample) == {999}
            assert engine.seen.samples()[0].get("lora_path") is None

    asyncio.run(main())


def test_an_engine_killed_in_mid_group_costs_no_sample(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer, latency_s=0.3) as one,
            FakeEngine(tokenizer, latency_s=0.3) as two,
            running([one.url, two.url], engine_concurrency=2) as rig,
        ):
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            await asyncio.sleep(0.5)  # both engines have confirmed
            work = [asyncio.create_task(rig.sample(make_problem(n, group_size=4))) for n in (1, 2)]
            await asyncio.sleep(0.15)
            assert one.in_flight == two.in_flight == 2
            await one.crash()
            groups = await asyncio.gather(*work)
            samples = [sample for group in groups for sample in group]
            assert all(isinstance(sample, Completion) for sample in samples)
            lost = [sample for sample in samples if sample.attempts == 2]
            assert len(lost) == 2  # those in flight; those still waiting for a slot there have lost no attempt
            assert {sample.engine for sample in lost} == {two.url}
            untouched = next(group for group in groups if group[0].ordinal != lost[0].ordinal)
            assert {(sample.engine, sample.attempts) for sample in untouched} == {(two.url, 1)}

    asyncio.run(main())


FAULTS = ["503", "drop", "garbage", "abort", "wrong_version", "wrong_adapter", "ids", "short", "nan", "prompt", "empty"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_response_is_retried_and_never_published(tokenizer: str, tmp_path: Path, fault: str) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url]) as rig:
            rig.policy(make_policy(tmp_path, 3, 100))
            await rig.current(3)
            engine.faults["/generate"] = [fault, 1]
            group = await rig.sample(make_problem(1, group_size=2))
            assert sorted(sample.attempts for sample in group) == [1, 2]
            for sample in group:
                assert tokens(sample) == {1003}
                assert sample.engine_weight_version == "run-v3"

    asyncio.run(main())


def test_a_response_of_another_version_takes_the_engine_through_a_new_confirmation(
    tokenizer: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url]) as rig:
            rig.policy(make_policy(tmp_path, 3, 100))
            await rig.current(3)
            probes = len(engine.seen.generates)
            engine.faults["/generate"] = ["wrong_version", 1]
            await rig.sample(make_problem(1, group_size=1))
            bodies = [body["input_ids"] for body in engine.seen.generates[probes:]]
            assert bodies == [[2, 4, 2, 5], [0, 1], [2, 4, 2, 5]]
            assert rig.metric("engine_errors_total", engine=engine.url, kind="mismatch") == 1

    asyncio.run(main())


def test_a_failed_sample_goes_to_another_engine_and_the_others_stay(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            FakeEngine(tokenizer, latency_s=0.05) as one,
            FakeEngine(tokenizer, latency_s=0.05) as two,
            running([one.url, two.url]) as rig,
        ):
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            await asyncio.sleep(0.2)
            one.faults["/generate"] = ["500", 1]
            two.faults["/generate"] = ["500", 1]
            group = await rig.sample(make_problem(1, group_size=4))
            stayed = [sample for sample in group if sample.attempts == 1]
            assert len(stayed) == 3
            assert len({sample.engine for sample in stayed}) == 1
            assert [engine.assigned for engine in rig.fleet.engines] == [0, 0]

    asyncio.run(main())


def test_a_sample_whose_attempts_are_used_up_becomes_an_error_verdict(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], attempts=2, breaker_failures=1000) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            engine.faults["/generate"] = ["500", 4]
            group = await rig.sample(make_problem(1, group_size=2))
            for index, verdict in enumerate(group):
                assert isinstance(verdict, Verdict)
                assert (verdict.status, verdict.reward, verdict.verifier) == ("error", None, "sglang_generator")
                assert (verdict.index, verdict.group_size, verdict.run_id) == (index, 2, RUN)
                assert verdict.sample_id == f"{verdict.group_id}/{index}"
                assert "2 attempts failed" in verdict.reason
            assert rig.metric("samples_total", outcome="failed") == 2
            assert all(isinstance(sample, Completion) for sample in await rig.sample(make_problem(2)))

    asyncio.run(main())


def test_problems_that_no_engine_could_serve_are_bad_input(tokenizer: str, tmp_path: Path) -> None:
    cases = {
        "no prompt": {"prompt": None},
        "which one counts": {"messages": (ChatMessage(role="user", content="1"),)},
        "empty prompt": {"prompt": ""},
        "temperature is -1": {"sampling": Sampling(temperature=-1.0, max_new_tokens=8)},
        "top_p is 0": {"sampling": Sampling(temperature=1.0, top_p=0.0, max_new_tokens=8)},
        "top_k is 0": {"sampling": Sampling(temperature=1.0, top_k=0, max_new_tokens=8)},
        "max_new_tokens is 0": {"sampling": Sampling(temperature=1.0, max_new_tokens=0)},
        "do not fit the context of 4096": {"sampling": Sampling(temperature=1.0, max_new_tokens=4093)},
        "group_size is 0": {"group_size": 0},
        "group_size is 2000": {"group_size": 2000},
        "group_id does not belong": {"group_id": "run:00000009"},
        "no tools": {"prompt": None, "messages": (ChatMessage(role="tool", content="1"),)},
    }

    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url]) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            for complaint, over in cases.items():
                with pytest.raises(BadInput, match=complaint):
                    await rig.sample(make_problem(1, **over))
            assert await rig.sample(make_problem(1, run_id="other")) == []
            assert rig.metric("problems_ignored_total") == 1
            assert not engine.seen.samples()

    asyncio.run(main())


def test_a_refused_problem_is_bad_input_and_frees_the_engine(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer, latency_s=0.05) as engine, running([engine.url], max_refusals=3) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            for ordinal in (1, 2):
                engine.faults["/generate"] = ["400", 1]
                with pytest.raises(RequestRefused, match="fault 400"):
                    await rig.sample(make_problem(ordinal))
                await asyncio.sleep(0.1)  # what was given up on its way must not meet the next fault
            assert rig.fleet.engines[0].assigned == 0
            assert rig.fleet.engines[0].state == "serving"
            assert len(await rig.sample(make_problem(3))) == 4
            engine.faults["/generate"] = ["400", 3]
            with pytest.raises(RequestRefused):
                await rig.sample(make_problem(4, group_size=1))
            with pytest.raises(RequestRefused):
                await rig.sample(make_problem(5, group_size=1))
            with pytest.raises(ConfigError, match="3 problems in a row were refused"):
                await rig.sample(make_problem(6, group_size=1))

    asyncio.run(main())


def test_problems_that_all_cannot_be_rendered_end_the_service(tokenizer: str, tmp_path: Path) -> None:
    """A tokenizer without a chat template would turn a whole data set into dead letters."""

    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], max_refusals=2) as rig:
            rig.policy(make_policy(tmp_path, 0, 100))
            await rig.current(0)
            for ordinal in (1, 3):
                with pytest.raises(BadInput, match="has an empty prompt"):
                    await rig.sample(make_problem(ordinal, prompt=""))
                assert len(await rig.sample(make_problem(ordinal + 1))) == 4
            with pytest.raises(BadInput):
                await rig.sample(make_problem(5, prompt=""))
            with pytest.raises(ConfigError, match=r"2 problems in a row were refused.*has an empty prompt"):
                await rig.sample(make_problem(6, prompt=""))

    asyncio.run(main())


def test_a_cancelled_group_is_aborted_at_the_engine(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer, latency_s=30) as engine:
            engine.latency_s = 0.0
            async with running([engine.url]) as rig:
                rig.policy(make_policy(tmp_path, 0, 100))
                await rig.current(0)
                engine.latency_s = 30.0
                work = asyncio.create_task(rig.sample(make_problem(1, group_size=3)))
                await asyncio.sleep(0.2)
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                assert rig.fleet.engines[0].assigned == 0
            rids = {body["rid"] for body in engine.seen.samples()}
            assert len(rids) == 3
            assert set(engine.seen.aborted) == rids

    asyncio.run(main())
