"""Both kinds of pool: a hung, greedy or crashing check costs its own worker only."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from gristmill.cli import build
from gristmill.errors import InfrastructureError
from gristmill.publisher import Publisher
from math_verifier import pool_ray
from math_verifier.api import verify_many, verify_pair
from math_verifier.check import Outcome, check
from math_verifier.config import MathConfig, MathPolicy
from math_verifier.pool import Pool
from math_verifier.pool_base import Limits
from math_verifier.pool_ray import RayPool
from support.context import apply_topics, make_context
from support.math_rows import HANGS, completion
from support.processes import Process, gristmill, wait_until
from support.verifiers import all_verdicts

POLICY = MathPolicy()
MARGIN_S = 3.0
"""Scheduling on a busy machine, and the start of a worker."""

WorkersOf = Callable[[Pool], list[int]]


@pytest.fixture(scope="module")
def small(make_pool: Callable[..., Pool]) -> Iterator[Pool]:
    with make_pool(2, time_limit_s=1.0, queue_size=8) as running:
        yield running


def easy(pool: Pool) -> str:
    return pool.submit("3", "\\frac{6}{2}", POLICY).result(30).status


def test_verdicts_are_those_of_the_check_itself(small: Pool) -> None:
    pairs = [
        ("\\frac{1}{2}", "0.5"), ("x+1", "1+x"), ("x+1", "x+2"), ("\\sin^2 x", "1-\\cos^2 x"), ("(1,2)", "\\{1,2\\}"),
        ("3", "(("), ("\\frac{1", "1"), ("5\\text{ m}", "500 cm"), ("\\text{east}", "west"), ("[0,1)", "0 \\le x < 1"),
    ]  # fmt: skip
    for policy in (POLICY, MathPolicy(units="strict")):
        futures = [small.submit(gold, answer, policy) for gold, answer in pairs]
        for (gold, answer), future in zip(pairs, futures, strict=True):
            found, wanted = future.result(30), check(gold, answer, policy)
            assert (found.status, found.stage, found.reason) == (wanted.status, wanted.stage, wanted.reason)
            assert found.extracted == answer


def test_a_hung_check_times_out_alone(small: Pool) -> None:
    killed = small.counts.killed
    hung = small.submit(*HANGS, POLICY)
    others = [small.submit("x+1", f"{number}-{number}+1+x", POLICY) for number in range(6)]
    assert [future.result(20).status for future in others] == ["correct"] * 6
    outcome = hung.result(20)
    assert (outcome.status, outcome.stage) == ("timeout", "limit")
    assert outcome.seconds < 1.0 + MARGIN_S
    assert small.counts.killed == killed + 1
    assert [small.submit("\\sin^2 x", "1-\\cos^2 x", POLICY).result(20).status for _ in range(4)] == ["correct"] * 4
    assert small.broken() is None


def test_hung_checks_do_not_stop_the_others(small: Pool) -> None:
    """One worker hangs all the time; the other one does all the rest meanwhile."""
    rows = [HANGS if number % 20 == 0 else ("x+1", f"{number}-{number}+1+x") for number in range(60)]
    started = time.monotonic()
    futures: list[Future[Outcome]] = []
    finished: dict[int, float] = {}
    for number, row in enumerate(rows):
        future = small.submit(*row, POLICY)
        future.add_done_callback(lambda _, number=number: finished.update({number: time.monotonic() - started}))
        futures.append(future)
    statuses = [future.result(60).status for future in futures]
    assert statuses == ["timeout" if number % 20 == 0 else "correct" for number in range(60)]
    assert sum(seconds < 3.0 + MARGIN_S for seconds in finished.values()) >= 57


def test_the_killed_worker_is_gone(small: Pool, workers_of: WorkersOf) -> None:
    assert easy(small) == "correct"
    hung = [small.submit(*HANGS, POLICY) for _ in range(2)]
    wait_until(lambda: len(workers_of(small)) == 2, 10)
    pids = workers_of(small)
    assert [future.result(20).status for future in hung] == ["timeout"] * 2
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)


def test_a_memory_bomb_ends_as_timeout_and_not_wrong(make_pool: Callable[..., Pool]) -> None:
    with make_pool(1, time_limit_s=4.0, memory_limit_mb=192) as pool:
        bomb = pool.submit("x", "\\int_0^1 (1+x+y+z+a+b+c)^{40} dx", POLICY)
        assert bomb.result(60).status == "timeout"
        assert pool.counts.out_of_memory + pool.counts.killed == 1
        assert easy(pool) == "correct"


def test_the_memory_limit_is_set(small: Pool, workers_of: WorkersOf) -> None:
    assert easy(small) == "correct"
    pids = workers_of(small)
    assert pids
    for pid in pids:
        with Path(f"/proc/{pid}/limits").open(encoding="ascii") as limits:
            line = next(line for line in limits if line.startswith("Max address space"))
        assert line.split()[3] == str(512 * 1024 * 1024)


def test_a_crashed_worker_is_replaced_and_its_check_tried_again(small: Pool, workers_of: WorkersOf) -> None:
    assert easy(small) == "correct"
    crashed = small.counts.crashed
    future = small.submit(*HANGS, POLICY)
    wait_until(lambda: small.waiting == 0, 10)
    time.sleep(0.2)
    for pid in workers_of(small):
        os.kill(pid, signal.SIGSEGV)
    assert future.result(20).status == "timeout"
    assert small.counts.crashed > crashed
    assert easy(small) == "correct"


def test_a_check_that_crashes_twice_is_an_error(small: Pool, workers_of: WorkersOf) -> None:
    stop = threading.Event()

    def assassin() -> None:
        while not stop.is_set():
            for pid in workers_of(small):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)

    thread = threading.Thread(target=assassin)
    thread.start()
    try:
        outcome = small.submit(*HANGS, POLICY).result(30)
    finally:
        stop.set()
        thread.join()
    assert (outcome.status, outcome.stage) == ("error", "limit")
    assert easy(small) == "correct"


def test_the_pool_survives_its_template(small: Pool, workers_of: WorkersOf) -> None:
    assert easy(small) == "correct"
    for pid in workers_of(small):
        psutil.Process(pid).parent().kill()  # type: ignore[union-attr]
    assert small.submit(*HANGS, POLICY).result(30).status == "timeout"
    assert easy(small) == "correct"


def test_from_asyncio_threads_and_two_loops_at_once(small: Pool) -> None:
    """More callers than places in the line, of every kind; no loop may block while it waits for a place."""
    found: list[Outcome] = []
    ticks: list[int] = []

    async def several() -> None:
        async def tick() -> None:
            for number in range(10):
                await asyncio.sleep(0.01)
                ticks.append(number)

        clock = asyncio.create_task(tick())
        found.extend(await asyncio.gather(*(small.check("x+1", f"{n}-{n}+1+x", POLICY) for n in range(40))))
        await clock

    def blocking() -> None:
        found.extend(future.result(60) for future in [small.submit("x+1", "1+x", POLICY) for _ in range(40)])

    threads = [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(2)]
    threads += [threading.Thread(target=blocking) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [outcome.status for outcome in found] == ["correct"] * 160
    assert len(ticks) == 20


def test_a_check_that_is_cancelled_frees_its_place(small: Pool) -> None:
    async def hurry() -> list[Any]:
        checks = [asyncio.create_task(small.check(*HANGS, POLICY)) for _ in range(14)]
        await asyncio.sleep(0.2)
        for task in checks:
            task.cancel()
        found = await asyncio.gather(*checks, return_exceptions=True)
        return [*found, await small.check("x+1", "1+x", POLICY)]

    *cancelled, last = asyncio.run(hurry())
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in cancelled)
    assert last.status == "correct"


def test_the_line_is_bounded(small: Pool) -> None:
    """With every worker hung, ``queue_size`` checks wait and the next caller is held back."""
    hung = [small.submit(*HANGS, POLICY) for _ in range(2)]
    wait_until(lambda: small.waiting == 0, 10)
    waiting = [small.submit("x+1", "1+x", POLICY) for _ in range(8)]
    assert small.waiting == 8
    extra: list[Future[Outcome]] = []
    thread = threading.Thread(target=lambda: extra.append(small.submit("x+1", "1+x", POLICY)))
    thread.start()
    thread.join(0.2)
    assert not extra
    assert small.waiting == 8
    assert [future.result(30).status for future in hung] == ["timeout"] * 2
    thread.join(30)
    assert [future.result(30).status for future in [*waiting, *extra]] == ["correct"] * 9


def test_closing_under_load_leaves_nothing_open_and_nothing_running(
    make_pool: Callable[..., Pool], workers_of: WorkersOf
) -> None:
    pool = make_pool(2, time_limit_s=1.0, queue_size=16).start()
    assert [result.status for result in verify_many([("x+1", "1+x")] * 8, kind="answer", pool=pool)] == ["correct"] * 8
    futures: list[Future[Outcome]] = []
    refused = threading.Event()

    def load() -> None:
        try:
            while True:
                futures.append(pool.submit(*(HANGS if len(futures) % 3 == 0 else ("x+1", "1+x")), POLICY))
        except InfrastructureError:
            refused.set()

    thread = threading.Thread(target=load)
    thread.start()
    wait_until(lambda: pool.waiting == 16, 20)
    pids = workers_of(pool)
    assert pids
    pids += [parent.pid for pid in pids if (parent := psutil.Process(pid).parent()) is not None]
    pool.close()
    thread.join(20)
    assert refused.is_set()
    errors = [future.exception(20) for future in futures]
    assert {type(error) for error in errors} <= {InfrastructureError, type(None)}
    assert sum(isinstance(error, InfrastructureError) for error in errors) >= 16
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)
    assert pool.broken() == "the pool is closed"
    with pytest.raises(InfrastructureError, match="closed"):
        pool.submit("1", "2", POLICY)
    pool.close()


def test_results_come_in_the_order_of_the_rows(small: Pool) -> None:
    rows = [("x+1", f"x+{number}") if number % 3 else (str(number), str(number)) for number in range(1, 400)]
    found = [result.correct for result in verify_many(iter(rows), kind="answer", pool=small)]
    assert found == [number == 1 or number % 3 == 0 for number in range(1, 400)]


def test_one_pair(small: Pool) -> None:
    result = verify_pair("x+1", "so it is \\boxed{1+x}", pool=small)
    assert (result.status, result.correct, result.extracted) == ("correct", True, "1+x")


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -- what only a pool of Ray actors can suffer: lost actors, deaf ones, clusters of others, a killed owner


@pytest.fixture(scope="module")
def actors(ray_cluster: Any) -> Iterator[RayPool]:
    with RayPool(1, limits=Limits(time_limit_s=3.0)) as running:
        yield running


def kill_actor(pool: RayPool, number: signal.Signals = signal.SIGKILL) -> None:
    wait_until(lambda: bool(pool.actor_pids), 30, "an actor")
    os.kill(pool.actor_pids[0], number)


def test_a_check_whose_actor_is_killed_is_tried_again(actors: RayPool) -> None:
    crashed, (actor,) = actors.counts.crashed, actors.actor_pids
    workers = [child.pid for child in psutil.Process(actor).children(recursive=True)]
    hung = actors.submit(*HANGS, POLICY)
    others = [actors.submit("x+1", f"{number}-{number}+1+x", POLICY) for number in range(20)]
    time.sleep(0.3)
    kill_actor(actors)
    assert hung.result(60).status == "timeout"
    assert [future.result(60).status for future in others] == ["correct"] * 20
    assert actors.counts.crashed == crashed + 1
    assert actors.broken() is None
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in workers), 15, "the end of the lost actor's workers")


def test_a_check_that_loses_two_actors_is_an_error(actors: RayPool) -> None:
    assert actors.submit("x+1", "1+x", POLICY).result(60).status == "correct"
    first = actors.actor_pids
    hung = actors.submit(*HANGS, POLICY)
    time.sleep(0.2)
    kill_actor(actors)
    wait_until(lambda: actors.actor_pids not in ([], first), 60, "a new actor")
    kill_actor(actors)
    outcome = hung.result(60)
    assert (outcome.status, outcome.stage) == ("error", "limit")
    assert "twice" in outcome.reason
    assert actors.submit("x+1", "1+x", POLICY).result(60).status == "correct"


def test_an_actor_that_does_not_answer_is_given_up(actors: RayPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_ray, "GRACE_S", 0.5)
    assert actors.submit("x+1", "1+x", POLICY).result(60).status == "correct"
    (deaf,) = actors.actor_pids
    kill_actor(actors, signal.SIGSTOP)
    assert actors.submit("x+1", "1+x", POLICY).result(60).status == "correct"
    wait_until(lambda: not psutil.pid_exists(deaf), 15, "the end of the deaf actor")


def test_where_no_actor_can_be_had_the_caller_is_told_and_health_shows_it(
    actors: RayPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of infrastructure: the service's worker loop tries the completion again."""

    def none(_: RayPool) -> Any:
        raise ConnectionError("no such cluster")

    with monkeypatch.context() as patch:
        patch.setattr(RayPool, "new_actor", none)
        kill_actor(actors)
        with pytest.raises(InfrastructureError, match="no such cluster"):
            actors.submit("x+1", "1+x", POLICY).result(60)
        assert "no such cluster" in (actors.broken() or "")
    assert actors.submit("x+1", "1+x", POLICY).result(60).status == "correct"
    assert actors.broken() is None


def driver(tmp_path: Path) -> Process:
    return Process([sys.executable, str(Path(__file__).with_name("ray_driver.py"))], tmp_path / "driver.log")


def steps(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.text().splitlines() if line.startswith("{") and line.endswith("}")]


def test_a_cluster_of_others_stays_and_a_killed_owner_leaves_nothing(ray_installed: None, tmp_path: Path) -> None:
    with driver(tmp_path) as process:
        wait_until(lambda: len(steps(process)) == 3 or process.status is not None, 90)
        assert process.status is None, process.text()
        full, used, hung = steps(process)
        assert "did not come up in 4 s" in full["full"]
        assert used == {"status": "correct", "initialized": True, "resources": 1.0}
        children = [psutil.Process(pid) for pid in hung["pids"] if psutil.pid_exists(pid)]
        # Ray's two agents look for their dead cluster for about a minute more, on loopback; they run no check.
        agents = [child for child in children if child.name().endswith("Agent") or "Agent" in child.cmdline()[0]]
        rest = [child.pid for child in children if child not in agents]
        assert len(rest) >= 6
        process.kill()
    try:
        wait_until(lambda: not any(alive(pid) for pid in rest), 30, "the end of every process")
    finally:
        for agent in agents:
            if alive(agent.pid):
                agent.kill()


def listening(processes: list[psutil.Process]) -> set[str]:
    """Addresses on which processes listen."""
    found = set()
    for process in processes:
        try:
            connections = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        found |= {item.laddr.ip for item in connections if item.status == psutil.CONN_LISTEN}
    return found


def test_the_service_by_environment(ray_installed: None, embedded_broker: Any, prefix: str, tmp_path: Path) -> None:
    """``GRISTMILL_MATH__POOL=ray gristmill run math_verifier``, from the first completion to SIGTERM."""
    apply_topics(embedded_broker.bootstrap, prefix)
    ctx = make_context(embedded_broker.bootstrap, prefix, MathConfig())
    sent = [
        completion(1, index, f"so \\boxed{{\\frac{{1}}{{2}}x-\\frac{{{index}}}{{8}}x}}", "x/2") for index in range(8)
    ]
    sent.append(completion(2, 0, f"\\boxed{{{HANGS[0]}}}", HANGS[1]))
    with Publisher(ctx.common, ctx.codec) as publisher:
        for item in sent:
            publisher.publish(ctx.topics.completions_math, item, {"sample_id": item.sample_id})
        publisher.flush_acked(30)
    environ = {
        "GRISTMILL_BOOTSTRAP": ctx.common.bootstrap,
        "GRISTMILL_TOPIC_PREFIX": prefix,
        "GRISTMILL_MATH__POOL": "ray",
        "GRISTMILL_MATH__WORKERS": "1",
        "GRISTMILL_MATH__TIME_LIMIT_S": "1",
    }
    with gristmill("run", "math_verifier", log=tmp_path / "service.log", environ=environ) as service:
        wait_until(lambda: len(all_verdicts(ctx)) == len(sent) or service.status is not None, 90)
        assert service.status is None, service.text()
        children = psutil.Process(service.pid).children(recursive=True)
        assert any(child.name().startswith("raylet") for child in children)
        assert listening([psutil.Process(service.pid), *children]) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        service.terminate()
        assert service.wait(60) == 0, service.text()
    found = {verdict.sample_id: verdict.status for verdict in all_verdicts(ctx)}
    assert [found[item.sample_id] for item in sent] == ["correct", *["wrong"] * 7, "timeout"]
    assert "*** SIGTERM" not in service.text()
    wait_until(lambda: not any(alive(child.pid) for child in children), 30, "the end of every process")


def test_the_offline_command_on_ray(ray_cluster: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    pairs = [("x+1", "1+x"), (HANGS[1], HANGS[0]), ("x+1", "x+2"), ("3", "3")]
    rows = [json.dumps({"id": number, "gold": gold, "pred": pred}) for number, (gold, pred) in enumerate(pairs)]
    source.write_text("\n".join(["bad", *rows]), encoding="utf-8")
    arguments = ["--in", str(source), "--out", str(target), "--workers", "1", "--time-limit", "1", "--pool", "ray"]
    outcome = CliRunner().invoke(build(), ["verify", "math", *arguments])
    assert outcome.exit_code == 1
    assert f"{source}: line 1: not JSON" in outcome.output
    found = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert [(row["id"], row["status"]) for row in found] == [
        (0, "correct"), (1, "timeout"), (2, "wrong"), (3, "correct"),
    ]  # fmt: skip
