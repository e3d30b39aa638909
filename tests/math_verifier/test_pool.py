"""Both kinds of pool: a hung, greedy or crashing check costs its own worker only."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from gristmill.errors import InfrastructureError
from math_verifier.api import verify_many, verify_pair
from math_verifier.check import Outcome, check
from math_verifier.config import MathPolicy
from math_verifier.pool import Pool
from support.processes import wait_until

POLICY = MathPolicy()
HANGS = ("\\int_0^1 \\frac{\\sin(x^{7}+\\tan x)}{\\sqrt{1+x^{11}\\cos^3 x}} dx", "\\pi")
"""SymPy works on this integral for minutes."""
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
    wait_until(lambda: bool(busy(workers_of(small))), 10)
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


def busy(pids: list[int]) -> list[int]:
    """Those that use a CPU now."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).cpu_percent(0.1) > 20:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found
