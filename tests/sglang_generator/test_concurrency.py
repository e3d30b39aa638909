"""The controller of an engine's concurrency, on simulated engines; and the pacer that feeds it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from generator_rig import eventually, make_policy, running
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from sglang_generator.concurrency import STEP, Capacity, Controller, Decision, Load
from sglang_generator.wire import GraphConfig, GraphPhase, InternalState, ServerInfo
from support.context import make_problem

IDLE = {"running": 64, "waiting": 0, "kv_usage": 0.3, "retracted": 0, "held_back": True}


def load(**over: Any) -> Load:
    return Load(**IDLE | over)


class Simulated:
    """An engine that runs ``room`` requests at once and queues the rest; each takes ``kv`` of the cache."""

    def __init__(self, room: int, kv: float = 0.0, demand: int = 100_000) -> None:
        self.room = room
        self.kv = kv
        self.demand = demand

    def look(self, limit: int) -> Load:
        sent = min(limit, self.demand)
        running = min(sent, self.room)
        usage = running * self.kv
        return Load(running, sent - running, min(1.0, usage), int(usage > 1.0), self.demand > limit)


def settle(controller: Controller, engine: Simulated, looks: int = 200) -> list[tuple[int, Decision]]:
    return [(controller.limit, controller.observe(engine.look(controller.limit))) for _ in range(looks)]


@settings(max_examples=60)
@given(room=st.integers(20, 3000), start=st.integers(1, 256))
def test_it_finds_the_knee_of_an_engine(room: int, start: int) -> None:
    controller = Controller(start)
    limits = [limit for limit, _ in settle(controller, Simulated(room), 600)][-100:]
    # The sawtooth of AIMD about the knee: a short queue at its top, most of the room in use at its bottom.
    assert max(limits) <= room * 1.25 + 2 * STEP
    assert min(limits) >= room * 0.7
    assert sum(limits) / len(limits) >= room * 0.9


@settings(max_examples=40)
@given(requests=st.integers(40, 2000))
def test_it_stays_below_a_full_cache(requests: int) -> None:
    limits = [limit for limit, _ in settle(Controller(16), Simulated(100_000, kv=1 / requests), 600)][-100:]
    assert max(limits) <= requests * 0.93 + STEP
    assert min(limits) >= requests * 0.5


@given(
    cap=st.integers(1, 600),
    start=st.integers(1, 1000),
    looks=st.lists(
        st.builds(
            Load,
            running=st.integers(0, 2000),
            waiting=st.integers(0, 500),
            kv_usage=st.floats(0, 1),
            retracted=st.integers(0, 3),
            held_back=st.booleans(),
        ),
        max_size=40,
    ),
)
def test_whatever_it_sees_the_limit_stays_within_bounds(cap: int, start: int, looks: list[Load]) -> None:
    controller = Controller(start, cap)
    for seen in looks:
        before = controller.limit
        decision = controller.observe(seen)
        assert 1 <= controller.limit <= cap
        if decision == "raised":
            assert seen.held_back
            assert controller.limit > before
        elif decision == "cut":
            assert controller.limit < before or before == 1
        else:
            assert controller.limit == before


def test_it_reaches_the_cap_and_stays() -> None:
    controller = Controller(64, cap=256)
    seen = settle(controller, Simulated(10_000), 20)
    assert controller.limit == 256
    assert [decision for _, decision in seen][-10:] == ["capped"] * 10


def test_where_the_work_is_the_bound_it_does_not_climb() -> None:
    controller = Controller(64)
    seen = settle(controller, Simulated(10_000, demand=50), 50)
    assert {decision for _, decision in seen} == {"app_limited"}
    assert controller.limit == 64


def test_it_follows_the_demand_no_further_than_it_goes() -> None:
    controller = Controller(16)
    settle(controller, Simulated(10_000, demand=100), 50)
    assert 100 <= controller.limit <= 128


def test_one_look_at_a_queue_is_no_reason_to_cut() -> None:
    controller = Controller(100)
    assert controller.observe(load(waiting=30)) == "busy"
    assert controller.observe(load()) == "raised"
    controller = Controller(100)
    seen = [controller.observe(load(running=70, waiting=30)) for _ in range(3)]
    assert seen == ["busy", "busy", "cut"]
    assert controller.limit == 75


def test_a_retraction_cuts_at_once_and_the_next_cut_waits() -> None:
    controller = Controller(100)
    assert controller.observe(load(running=100, retracted=1)) == "cut"
    assert controller.limit == 75
    assert [controller.observe(load(running=100, retracted=1)) for _ in range(4)] == ["settling"] * 3 + ["cut"]


def test_an_idle_engine_that_still_tells_of_retractions_is_not_cut() -> None:
    controller = Controller(100)
    assert controller.observe(load(running=0, retracted=5, held_back=False)) == "app_limited"


def test_after_the_first_cut_it_climbs_by_steps() -> None:
    controller = Controller(64)
    assert controller.observe(load()) == "raised"
    assert controller.limit == 128
    controller.observe(load(running=128, kv_usage=0.95))
    assert controller.limit == 96
    for _ in range(3):
        controller.observe(load())
    assert controller.observe(load()) == "raised"
    assert controller.limit == 96 + STEP


def test_a_cache_that_fills_up_stops_the_climb() -> None:
    assert Controller(64).observe(load(kv_usage=0.85)) == "busy"


def graphs(**decode: Any) -> GraphConfig:
    return GraphConfig(decode=GraphPhase(**decode))


@pytest.mark.parametrize(
    ("info", "graph", "running_at_once"),
    [
        (ServerInfo(), None, None),
        (ServerInfo(cuda_graph_config=graphs(backend="full", max_bs=256, bs=[1, 8, 256])), 256, None),
        (ServerInfo(cuda_graph_config=graphs(backend="full", max_bs=512)), 512, None),
        (ServerInfo(cuda_graph_config=graphs(backend="disabled", max_bs=512)), None, None),
        (ServerInfo(disable_cuda_graph=True, cuda_graph_config=graphs(backend="full", bs=[8])), None, None),
        (
            ServerInfo(
                dp_size=2,
                max_running_requests=4096,
                cuda_graph_config=graphs(backend="full", bs=[8]),
                internal_states=[
                    InternalState(effective_max_running_requests_per_dp=48, cuda_graph_config=graphs(bs=[1, 16])),
                    InternalState(effective_max_running_requests_per_dp=48),
                ],
            ),
            32,
            96,
        ),
        (ServerInfo(max_running_requests=77), None, 77),
    ],
)
def test_what_an_engine_says_of_its_capacity(info: ServerInfo, graph: int | None, running_at_once: int | None) -> None:
    assert (info.largest_graph(), info.most_running()) == (graph, running_at_once)
    known = [bound for bound in (graph, running_at_once) if bound]
    assert Capacity(graph, running_at_once).cap == (min(known) if known else None)


def test_it_starts_within_the_cap() -> None:
    controller = Controller(64)
    controller.bound(24)
    assert controller.limit == 24
    controller.bound(None)
    assert controller.limit == 24


def test_the_slots_of_an_engine_follow_its_load(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_generator.pacer.POLL_S", 0.05)

    async def main() -> None:
        async with FakeEngine(tokenizer, latency_s=0.4) as engine:
            engine.info = {
                "tp_size": 1,
                "cuda_graph_config": {"decode": {"backend": "full", "max_bs": 200, "bs": [1, 200]}},
                "internal_states": [{"effective_max_running_requests_per_dp": 4096}],
            }
            async with running([engine.url], engine_concurrency="auto") as rig:
                rig.policy(make_policy(tmp_path, 0, 10_000))
                await rig.current(0)
                assert rig.metric("concurrency_limit", engine=engine.url) == 64
                stop = asyncio.Event()
                ordinals = iter(range(1, 10_000))

                async def work() -> None:
                    while not stop.is_set():
                        await rig.sample(make_problem(next(ordinals), group_size=8))

                tasks = [asyncio.create_task(work()) for _ in range(40)]
                limit = lambda: rig.metric("concurrency_limit", engine=engine.url)  # noqa: E731
                await eventually(lambda: limit() == 200, what="the largest graph")
                await eventually(lambda: engine.seen.most_in_flight == 200, what="200 requests in flight")
                engine.load = {"token_usage": 0.97}
                await eventually(lambda: limit() < 120, what="a cut")
                assert engine.seen.most_in_flight == 200
                assert rig.metric("concurrency_decisions_total", engine=engine.url, decision="cut") >= 1
                # A rate over a poll, and not every poll sees a request end.
                await eventually(lambda: rig.metric("tokens_per_second", engine=engine.url) > 0, what="a rate")
                stop.set()
                await asyncio.gather(*tasks)

    asyncio.run(main())


def test_without_loads_the_limit_stays(tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_generator.pacer.POLL_S", 0.02)

    async def main() -> None:
        async with FakeEngine(tokenizer) as engine, running([engine.url], engine_concurrency="auto") as rig:
            engine.load = None
            with capture_logs() as logs:
                rig.policy(make_policy(tmp_path, 0, 10))
                await rig.current(0)
                await eventually(lambda: any(entry["event"] == "engine_tells_no_load" for entry in logs))
                await asyncio.sleep(0.1)
            assert [entry["event"] for entry in logs].count("engine_tells_no_load") == 1
            assert rig.metric("concurrency_limit", engine=engine.url) == 64
            assert len(await rig.sample(make_problem(1))) == 4

    asyncio.run(main())


def test_a_fixed_concurrency_above_the_graphs_is_warned_of(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_generator.pacer.POLL_S", 0.02)

    async def main() -> None:
        async with FakeEngine(tokenizer) as engine:
            engine.info = {
                "cuda_graph_config": {"decode": {"backend": "full", "bs": [256]}},
                "max_running_requests": 300,
            }
            with capture_logs() as logs:
                async with running([engine.url], engine_concurrency=512) as rig:
                    rig.policy(make_policy(tmp_path, 0, 10))
                    await rig.current(0)
                    wanted = {"concurrency_above_cuda_graphs", "concurrency_above_max_running_requests"}
                    await eventually(lambda: wanted <= {entry["event"] for entry in logs})
            (warning,) = [entry for entry in logs if entry["event"] == "concurrency_above_cuda_graphs"]
            assert "--cuda-graph-max-bs-decode 512" in warning["advice"]

    asyncio.run(main())
