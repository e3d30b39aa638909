"""The Python API: one function for a completion, one for many.

Both run programs in a pool of Docker sandboxes that is started on first use and shared; :func:`close` ends it early (it
ends with the interpreter anyhow). They may be called from any thread.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from code_verifier.config import CodeConfig
from code_verifier.job import CodeStatus, Job, Outcome, TestOutcome
from code_verifier.task import Task, make_task
from gristmill.errors import InfrastructureError
from gristmill.messages import CodeTests
from gristmill.worker.retry import RetryPolicy

HELD = 512
"""Completions that :func:`verify_many` has under way at most."""
PATIENCE = RetryPolicy(attempts=30, elapsed_s=120.0, max_delay_s=5.0)
"""How long a Docker engine that went away is waited for."""


class Pool(Protocol):
    """What is needed of a :class:`code_verifier.pool.SandboxPool`."""

    def submit(self, job: Job) -> Future[Outcome]: ...


@dataclass(frozen=True, slots=True)
class CodeResult:
    """What a check found.

    Attributes:
        status: the sandbox's word; ``sandbox_error`` says nothing about the program.
        correct: whether it passed all tests.
        program: what was run, None when there was no code.
        how: the rule that found it in the completion.
        reason: why it failed.
        tests: test by test, up to the first failure where ``stop_at_first_failure`` holds.
        stdout, stderr: what it wrote, capped.
        seconds: wall time, without the wait for a free sandbox.
        peak_bytes: largest resident size of a process.
    """

    status: CodeStatus
    correct: bool
    program: str | None
    how: str
    reason: str = ""
    tests: tuple[TestOutcome, ...] = ()
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0


def result_of(task: Task, outcome: Outcome | None) -> CodeResult:
    """The result of a task; without an outcome where it has no job."""
    if outcome is None:
        return CodeResult("no_code", False, None, "", "the completion holds no program", seconds=task.seconds)
    return CodeResult(
        outcome.status,
        outcome.status == "passed",
        task.program,
        task.how,
        outcome.reason,
        outcome.tests,
        outcome.stdout,
        outcome.stderr,
        task.seconds + outcome.seconds,
        outcome.peak_bytes,
    )


def verify_completion(
    text: str, tests: CodeTests, *, stop_at_first_failure: bool = True, pool: Pool | None = None
) -> CodeResult:
    """Run the program in ``text`` against ``tests``.

    Args:
        text: model output; the program is taken out of it.
        tests: how it is tested; ``tests.prompt`` is what it may continue.
        stop_at_first_failure: whether the tests after a failed one are left out.
        pool: where it runs; a shared pool of one sandbox per CPU when absent.

    Raises:
        BadTests: the tests cannot be used.
        ConfigError: there is no Docker engine or no image; the message says what to do.
        InfrastructureError: the engine went away and did not come back.
    """
    return next(verify_many([(text, tests)], stop_at_first_failure=stop_at_first_failure, pool=pool))


def verify_many(
    rows: Iterable[tuple[str, CodeTests]], *, stop_at_first_failure: bool = True, pool: Pool | None = None
) -> Iterator[CodeResult]:
    """Run ``(text, tests)`` rows in parallel; results come in the order of the rows.

    At most :data:`HELD` rows are held at a time, so ``rows`` may be endless.

    Raises:
        BadTests, ConfigError, InfrastructureError: as :func:`verify_completion`.
    """
    open_: deque[tuple[Task, Future[Outcome] | None]] = deque()
    for text, tests in rows:
        task = make_task(tests, text, stop_at_first_failure=stop_at_first_failure)
        future = None
        if task.job is not None:
            pool = pool or shared_pool()
            future = pool.submit(task.job)
        open_.append((task, future))
        while open_ and (len(open_) >= HELD or open_[0][1] is None or open_[0][1].done()):
            yield _result(*open_.popleft(), pool)
    while open_:
        yield _result(*open_.popleft(), pool)


def _result(task: Task, future: Future[Outcome] | None, pool: Pool | None) -> CodeResult:
    """Wait for an outcome; a job that the engine's absence ended is sent again."""
    if future is None or task.job is None or pool is None:
        return result_of(task, None)
    start = time.monotonic()
    attempt = 1
    while True:
        try:
            return result_of(task, future.result())
        except InfrastructureError:
            delay = PATIENCE.delay(attempt, time.monotonic() - start)
            if delay is None:
                raise
        attempt += 1
        time.sleep(delay)
        future = pool.submit(task.job)


_lock = threading.Lock()
_shared: object | None = None


def shared_pool() -> Pool:
    """The pool behind the functions of this module."""
    from code_verifier.pool import SandboxPool

    global _shared
    with _lock:
        if not isinstance(_shared, SandboxPool):
            _shared = SandboxPool(CodeConfig()).start()
            atexit.register(close)
        return _shared


def close() -> None:
    """End the shared pool; the next call starts a new one."""
    from code_verifier.pool import SandboxPool

    global _shared
    with _lock:
        if isinstance(_shared, SandboxPool):
            _shared.close()
        _shared = None


__all__ = ["CodeResult", "CodeTests", "close", "shared_pool", "verify_completion", "verify_many"]
