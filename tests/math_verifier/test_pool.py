"""The pool: a hung, greedy or crashing check costs its own worker only."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.errors import InfrastructureError
from math_verifier.api import verify_many, verify_pair
from math_verifier.check import Outcome
from math_verifier.config import MathPolicy
from math_verifier.pool import MathPool
from support.processes import Process, wait_until

POLICY = MathPolicy()
HANGS = ("\\int_0^1 \\frac{\\sin(x^{7}+\\tan x)}{\\sqrt{1+x^{11}\\cos^3 x}} dx", "\\pi")
"""SymPy works on this integral for minutes."""


@pytest.fixture(scope="module")
def small() -> Iterator[MathPool]:
    with MathPool(2, time_limit_s=1.0, queue_size=8) as running:
        yield running


def test_a_hung_check_times_out_alone(small: MathPool) -> None:
    killed = small.counts.killed
    hung = small.submit(*HANGS, POLICY)
    others = [small.submit("x+1", f"{number}-{number}+1+x", POLICY) for number in range(6)]
    assert [future.result(20).status for future in others] == ["correct"] * 6
    outcome = hung.result(20)
    assert (outcome.status, outcome.stage) == ("timeout", "limit")
    assert small.counts.killed == killed + 1
    assert [small.submit("\\sin^2 x", "1-\\cos^2 x", POLICY).result(20).status for _ in range(4)] == ["correct"] * 4
    assert small.broken() is None


def test_the_killed_worker_is_gone(small: MathPool) -> None:
    hung = [small.submit(*HANGS, POLICY) for _ in range(2)]
    wait_until(lambda: len(small.pids) == 2, 10)
    pids = small.pids
    assert [future.result(20).status for future in hung] == ["timeout"] * 2
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)


def test_a_memory_bomb_ends_as_timeout_and_not_wrong() -> None:
    with MathPool(1, time_limit_s=8.0, memory_limit_mb=160) as pool:
        assert pool.submit("x", "\\int_0^1 (1+x+y+z+a+b+c)^{40} dx", POLICY).result(60).status == "timeout"
        assert pool.counts.out_of_memory + pool.counts.killed == 1
        assert pool.submit("3", "\\frac{6}{2}", POLICY).result(20).status == "correct"


def test_the_memory_limit_is_set(small: MathPool) -> None:
    small.submit("3", "\\frac{6}{2}", POLICY).result(20)
    for pid in small.pids:
        with Path(f"/proc/{pid}/limits").open(encoding="ascii") as limits:
            line = next(line for line in limits if line.startswith("Max address space"))
        assert line.split()[3] == str(512 * 1024 * 1024)


def test_a_crashed_worker_is_replaced_and_its_check_tried_again(small: MathPool) -> None:
    crashed = small.counts.crashed
    future = small.submit(*HANGS, POLICY)
    wait_until(lambda: bool(small.pids), 10)
    time.sleep(0.2)
    for pid in small.pids:
        os.kill(pid, signal.SIGSEGV)
    assert future.result(20).status == "timeout"
    assert small.counts.crashed > crashed
    assert small.submit("3", "\\frac{6}{2}", POLICY).result(20).status == "correct"


def test_a_check_that_crashes_twice_is_an_error(small: MathPool) -> None:
    stop = threading.Event()

    def assassin() -> None:
        while not stop.is_set():
            for pid in small.pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)

    thread = threading.Thread(target=assassin)
    thread.start()
    try:
        outcome = small.submit(*HANGS, POLICY).result(20)
    finally:
        stop.set()
        thread.join()
    assert outcome.status == "error"
    assert small.submit("3", "\\frac{6}{2}", POLICY).result(20).status == "correct"


def test_the_pool_survives_its_template(small: MathPool) -> None:
    assert small.template_pid is not None
    os.kill(small.template_pid or 0, signal.SIGKILL)
    hung = small.submit(*HANGS, POLICY)
    assert hung.result(30).status == "timeout"
    assert small.submit("3", "\\frac{6}{2}", POLICY).result(20).status == "correct"


def test_from_asyncio_and_away_from_the_main_thread(small: MathPool) -> None:
    found: list[Outcome] = []

    async def several() -> None:
        found.extend(await asyncio.gather(*(small.check("x+1", f"{n}-{n}+1+x", POLICY) for n in range(40))))

    thread = threading.Thread(target=lambda: asyncio.run(several()))
    thread.start()
    thread.join(60)
    assert [outcome.status for outcome in found] == ["correct"] * 40


def test_closing_ends_every_process() -> None:
    pool = MathPool(2).start()
    assert [result.status for result in verify_many([("x+1", "1+x")] * 8, kind="answer", pool=pool)] == ["correct"] * 8
    pids = [*pool.pids, pool.template_pid]
    pool.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)
    with pytest.raises(InfrastructureError, match="closed"):
        pool.submit("1", "2", POLICY)


def test_results_come_in_the_order_of_the_rows(pool: MathPool) -> None:
    rows = [("x+1", f"x+{number}") if number % 3 else (str(number), str(number)) for number in range(1, 700)]
    found = [result.correct for result in verify_many(iter(rows), kind="answer", pool=pool)]
    assert found == [number == 1 or number % 3 == 0 for number in range(1, 700)]


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("7", "9**9**9"),
        ("7", "9^{9^{9^9}}"),
        ("9^{9^9}", "9^{9^9}+1"),
        ("(10^{10})!", "(10^{10}+1)!"),
        ("7", "((100!)!)!"),
        ("7", "10^{(5^{5^{5^{5^{5}}}} \\cdot \\log_{10}(5)) - 4}"),
        ("7", "\\sum_{k=1}^{1000000000} k^k"),
        ("7", "\\binom{10^{30}}{10^{15}}"),
        ("7", "\\sin(9^{9^9})"),
        ("7", "\\prod_{k=1}^{1999} (k^k)!"),
        ("7", "2^{2^{2^{2^{2^{2}}}}}"),
        ("7", "\\lfloor 10^{10^{10}} \\pi \\rfloor"),
    ],
)
def test_blow_ups_are_never_correct(pool: MathPool, gold: str, answer: str) -> None:
    result = verify_pair(gold, answer, kind="answer", pool=pool)
    assert result.status in {"wrong", "unparsable", "timeout"}
    assert result.seconds < 10


OWNER = """
import time
from math_verifier.config import MathPolicy
from math_verifier.pool import MathPool
pool = MathPool(1).start()
pool.submit({gold!r}, {answer!r}, MathPolicy())
while not pool.pids:
    time.sleep(0.05)
print(*pool.pids, pool.template_pid, flush=True)
time.sleep(60)
"""


def test_workers_end_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    code = OWNER.format(gold=HANGS[0], answer=HANGS[1])
    with Process([sys.executable, "-c", code], tmp_path / "owner.log") as owner:
        wait_until(lambda: owner.text().endswith("\n"), 30)
        pids = [int(word) for word in owner.text().split()]
        assert len(pids) == 2
        owner.kill()
        wait_until(lambda: not any(running(pid) for pid in pids), 15)


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
