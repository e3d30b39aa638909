"""Policies on their way to engines: nothing is sampled by a version before an engine has confirmed it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from generator_rig import eventually, make_artifact, make_policy, running, tokens

from gristmill.errors import ConfigError
from support.context import make_problem


def test_no_group_starts_before_its_policy_is_confirmed(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine:
            engine.faults["/load_lora_adapter"] = ["500", 2]
            async with running([engine.url]) as rig:
                work = asyncio.create_task(rig.sample(make_problem(1)))
                await asyncio.sleep(0.1)
                assert not engine.seen.generates
                rig.policy(make_policy(tmp_path, 0, 10))
                group = await work
                assert {sample.policy_version_oldest for sample in group} == {0}
            # Two failed loads, then the confirming request, then samples.
            assert engine.seen.paths["/load_lora_adapter"] == 3
            assert engine.seen.generates[0]["input_ids"] == [0, 1]
            assert engine.seen.generates[0]["lora_path"] == "run-v0"

    asyncio.run(main())


def test_a_wrong_digest_is_never_delivered_and_its_credit_never_used(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url]) as rig:
            rig.policy(make_policy(tmp_path, 0, 1))
            await rig.current(0)
            bad = make_policy(tmp_path, 1, 2)
            make_artifact(tmp_path / "run-v1", 66)
            rig.policy(bad)
            assert len(await rig.sample(make_problem(1))) == 4
            work = asyncio.create_task(rig.sample(make_problem(2)))
            await asyncio.sleep(0.4)
            assert not work.done()
            assert "run-v1" not in engine.seen.loads
            ready, reason = rig.generator.health.ready()
            assert not ready
            assert "digest" in reason
            assert rig.metric("policies_ignored_total", why="artifact") >= 1
            rig.policy(make_policy(tmp_path, 2, 2))  # the next version makes up for it
            assert {tokens(sample).pop() for sample in await work} == {1002}

    asyncio.run(main())


def test_a_restarted_engine_gets_every_live_adapter_before_traffic(tokenizer: str, tmp_path: Path) -> None:
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
            asked = len(engine.seen.generates)
            await engine.crash()
            await engine.start()
            assert not engine.adapters
            # The group of version 0 finishes on version 0, though 1 is current by now.
            assert {tokens(sample).pop() for sample in await old} == {1000}
            assert {tokens(sample).pop() for sample in await rig.sample(make_problem(2))} == {1001}
            after = engine.seen.generates[asked:]
            assert [body["input_ids"] for body in after[:2]] == [[0, 1], [0, 1]]
            assert {body["lora_path"] for body in after[:2]} == {"run-v0", "run-v1"}

    asyncio.run(main())


def test_an_engine_restarted_unnoticed_is_found_out(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url]) as rig:
            rig.policy(make_policy(tmp_path, 0, 10))
            await rig.current(0)
            engine.adapters.clear()
            group = await rig.sample(make_problem(1))
            assert {tokens(sample).pop() for sample in group} == {1000}
            assert engine.seen.loads == ["run-v0", "run-v0"]

    asyncio.run(main())


def test_what_a_run_id_left_on_an_engine_is_replaced(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        for listing in (True, False):
            async with FakeEngine(tokenizer, list_models=listing) as engine:
                engine.adapters["run-v0"] = str(make_artifact(tmp_path / "old", 66))
                engine.adapters["run-v9"] = str(tmp_path / "old")
                engine.adapters["other-v0"] = str(tmp_path / "old")
                async with running([engine.url]) as rig:
                    rig.policy(make_policy(tmp_path, 0, 10))
                    await rig.current(0)
                    group = await rig.sample(make_problem(1))
                    assert {tokens(sample).pop() for sample in group} == {1000}
                    assert "other-v0" in engine.adapters
                    if listing:
                        assert "run-v9" not in engine.adapters

    asyncio.run(main())


def test_twenty_versions_in_a_row_leave_a_bounded_number_of_adapters(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer, latency_s=0.01) as engine, running([engine.url]) as rig:
            rig.policy(make_policy(tmp_path, 0, 1000))
            await rig.current(0)
            ordinal = 0
            for version in range(1, 21):
                ordinal += 3
                work = [asyncio.create_task(rig.sample(make_problem(ordinal - i))) for i in range(3)]
                await asyncio.sleep(0.005)
                rig.policy(make_policy(tmp_path, version, 1000))
                await rig.current(version)
                for group in await asyncio.gather(*work):
                    versions = {sample.policy_version_oldest for sample in group}
                    assert len(versions) == 1
                    assert {token for sample in group for token in tokens(sample)} == {1000 + versions.pop()}
            await eventually(lambda: len(engine.adapters) == 2, what="unloading")
            assert set(engine.adapters) == {"run-v19", "run-v20"}
            assert engine.seen.most_adapters <= 4
            assert len(engine.seen.unloads) == 19

    asyncio.run(main())


def test_a_slow_unload_does_not_hold_up_the_next_version(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], keep_versions=0) as rig:
            engine.unload_gate.clear()
            for version in range(4):
                rig.policy(make_policy(tmp_path, version, 10))
                await rig.current(version)
            engine.unload_gate.set()
            await eventually(lambda: set(engine.adapters) == {"run-v3"}, what="unloading")

    asyncio.run(main())


def test_overtaken_versions_are_skipped(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url]) as rig:
            rig.policy(*(make_policy(tmp_path, version, version + 1) for version in range(6)))
            group = await rig.sample(make_problem(6))
            assert {sample.policy_version_oldest for sample in group} == {5}
            assert engine.seen.loads == ["run-v5"]

    asyncio.run(main())


def test_records_that_do_not_count_change_nothing(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url]) as rig:
            five = make_policy(tmp_path, 5, 10)
            rig.policy(five)
            await rig.current(5)
            rig.policy(
                make_policy(tmp_path, 4, 99),  # the counter went back
                make_policy(tmp_path, 6, 99, run_id="other"),
                make_policy(tmp_path, 6, 99, name="run-v66"),
                make_policy(tmp_path, 5, 99, sha256="0" * 64),  # the same version with other content
                make_policy(tmp_path, 5, 7),  # less credit
            )
            await asyncio.sleep(0.1)
            assert rig.generator.admission.admit_until == 10
            assert engine.seen.loads == ["run-v5"]
            for why in ("backwards", "other_run", "misnamed", "conflict"):
                assert rig.metric("policies_ignored_total", why=why) == 1
            rig.policy(make_policy(tmp_path, 5, 12))
            assert rig.generator.admission.admit_until == 12
            with pytest.raises(ConfigError, match=r"generator\.delivery"):
                rig.policy(make_policy(tmp_path, 6, 12, kind="full"))

    asyncio.run(main())


def test_disk_delivery_waits_for_running_groups_and_checks_the_version(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], delivery="disk", engine_concurrency=2) as rig:
            rig.policy(make_policy(tmp_path, 0, 10, kind="full"))
            await rig.current(0)
            engine.latency_s = 0.1
            old = asyncio.create_task(rig.sample(make_problem(1, group_size=6)))  # three rounds of two
            await asyncio.sleep(0.05)
            rig.policy(make_policy(tmp_path, 1, 10, kind="full"))
            group = await rig.sample(make_problem(2, group_size=2))
            for sample in await old:
                assert tokens(sample) == {1000}
                assert (sample.policy_version_oldest, sample.engine_weight_version) == (0, "run-v0")
            for sample in group:
                assert tokens(sample) == {1001}
                assert (sample.policy_version_oldest, sample.engine_weight_version) == (1, "run-v1")
            assert engine.seen.updates == ["run-v0", "run-v1"]
            # Weights that change behind the generator's back are found out by the response.
            engine.model_path, engine.weight_version = str(make_artifact(tmp_path / "rogue", 66)), "rogue"
            (sample,) = await rig.sample(make_problem(3, group_size=1))
            assert tokens(sample) == {1001}
            assert sample.attempts == 2

    asyncio.run(main())


def test_with_disk_delivery_a_sample_of_a_version_that_is_gone_fails(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], delivery="disk") as rig:
            rig.policy(make_policy(tmp_path, 0, 10, kind="full"))
            await rig.current(0)
            engine.latency_s = 0.2
            old = asyncio.create_task(rig.sample(make_problem(1, group_size=2)))
            await asyncio.sleep(0.05)
            rig.policy(make_policy(tmp_path, 1, 10, kind="full"))
            await asyncio.sleep(0.05)
            await engine.crash()
            engine.latency_s = 0.0
            await engine.start()
            verdicts = await old
            assert [verdict.status for verdict in verdicts] == ["error", "error"]
            assert "no engine serves policy run-v0" in verdicts[0].reason
            assert {tokens(sample).pop() for sample in await rig.sample(make_problem(2))} == {1001}

    asyncio.run(main())
