"""A pool of warm sandboxes, one per worker thread.

Each worker runs one program at a time in its sandbox. Between programs the wardens reset the sandbox; after
``runs_per_sandbox`` programs, or at any suspicion, it is thrown away and one from the stock takes its place. The stock
is kept by a thread of its own, which also removes what was thrown away.

What a program does to its sandbox is never the line's trouble, and what befalls the engine is never the program's:

* A sandbox that breaks is replaced and the program run again, ``attempts`` times in all. If it broke every time and a
  program known to be good then passes on a fresh sandbox, the program is at fault: ``runtime_error``. If that one does
  not pass either: ``sandbox_error``, which nobody scores.
* A program reaches one of the two containers only. When both end at a time, or the engine does not answer, the engine
  is in trouble: the job ends with :class:`EngineAway` and says nothing of the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import uuid
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from code_verifier.config import CodeConfig, limits_from
from code_verifier.container import Plan, owner_label
from code_verifier.engine import Engine, EngineAway, connect
from code_verifier.gc import collect
from code_verifier.image import check_image
from code_verifier.job import AssertTests, Job, Outcome
from code_verifier.link import SandboxBroken
from code_verifier.sandbox import Sandbox, check_runtime
from code_verifier.stock import Stock
from gristmill.errors import ConfigError, InfrastructureError

CONTROL = Job("def control(x):\n    return x + 1\n", AssertTests("assert control(41) == 42\n"), time_s=10.0)
"""A program that passes wherever a sandbox works."""


@dataclass(slots=True)
class Counts:
    """What became of sandboxes and programs since the start."""

    runs: int = 0
    """Programs run to a verdict."""
    retired: int = 0
    """Sandboxes thrown away after their share of programs."""
    suspected: int = 0
    """Sandboxes thrown away because something was odd after a program."""
    broken: int = 0
    """Sandboxes that broke under a program."""
    engine_errors: int = 0
    """Jobs given back because the engine was in trouble."""


@dataclass(frozen=True, slots=True)
class _Task:
    job: Job
    result: Future[Outcome] = field(default_factory=Future)


class SandboxPool:
    """Runs programs in ``config.workers`` sandboxes. Use it as a context manager."""

    def __init__(self, config: CodeConfig, *, queue_size: int = 256) -> None:
        self.config = config
        self.counts = Counts()
        self._queue: queue.Queue[_Task | None] = queue.Queue(queue_size)
        self._slots = queue_size
        self._room: asyncio.Semaphore | None = None
        self._threads: list[threading.Thread] = []
        self._running: dict[int, Sandbox] = {}
        self._stock: Stock | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Programs that wait for a sandbox."""
        return self._queue.qsize()

    @property
    def started(self) -> int:
        """Sandboxes started since the start."""
        return self._stock.started if self._stock is not None else 0

    @property
    def containers(self) -> list[str]:
        """Ids of the containers there are, those about to go included."""
        return self._stock.containers() if self._stock is not None else []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Check the engine, the image and the runtime; start the sandboxes; return when they are warm.

        Raises:
            ConfigError: no engine, no right to use it, no image or a stale one, no such runtime, or an engine that
                does not start sandboxes; the message says what to do.
        """
        config = self.config
        with connect(config.docker_host) as engine:
            check_runtime(engine, config.runtime)
            image = check_image(engine, config.image)
            with contextlib.suppress(EngineAway):
                # What cannot be removed is in nobody's way.
                collect(engine)
        plan = Plan(image, owner_label(), limits_from(config), config.runtime, pool=uuid.uuid4().hex)
        self._stock = Stock(plan, config.docker_host, spares=1 + config.workers // 8)
        warm: list[Future[None]] = []
        for number in range(config.workers):
            warm.append(Future())
            thread = threading.Thread(
                target=self._work, args=(number, warm[-1]), name=f"code-worker-{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        try:
            for future in warm:
                future.result()
        except InfrastructureError as error:
            self.close()
            raise ConfigError(f"the Docker engine does not start sandboxes: {error}") from error
        except BaseException:
            self.close()
            raise
        self._stock.start()
        return self

    def close(self) -> None:
        """End what runs, refuse what waits, remove every container. An engine that is away removes them itself when it
        comes back, for all of them are set to be removed when they end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        while True:
            try:
                task = self._queue.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                task.result.set_exception(_closed())
        for sandbox in list(self._running.values()):
            sandbox.abort()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._stock is not None:
            self._stock.close()

    def broken(self) -> str | None:
        """What is wrong with the pool, for a health check."""
        if self._closed or self._stock is None:
            return "the pool is closed"
        dead = [thread.name for thread in (*self._threads, self._stock.thread) if not thread.is_alive()]
        if dead:
            return f"threads ended: {', '.join(dead)}"
        return self._stock.trouble

    def submit(self, job: Job) -> Future[Outcome]:
        """Queue a job; blocks while the queue is full.

        Raises:
            InfrastructureError: the pool is closed.
        """
        if self._closed or not self._threads:
            raise _closed()
        task = _Task(job)
        self._queue.put(task)
        if self._closed and task.result.cancel():
            raise _closed()
        return task.result

    def run(self, job: Job) -> Outcome:
        """Run a program with its tests and wait for what comes of it.

        Raises:
            EngineAway: the engine is in trouble; nothing is known of the program.
            InfrastructureError: the pool is closed.
        """
        return self.submit(job).result()

    async def check(self, job: Job) -> Outcome:
        """:meth:`run` for coroutines; waits for room in the queue without blocking the loop."""
        if self._room is None:
            self._room = asyncio.Semaphore(self._slots)
        async with self._room:
            return await asyncio.wrap_future(self.submit(job))

    # -- one thread per worker

    def _work(self, number: int, warm: Future[None]) -> None:
        hand = _Hand(self, number)
        try:
            try:
                hand.ready()
            except Exception as error:  # noqa: BLE001 - start() raises it
                warm.set_exception(error)
                return
            warm.set_result(None)
            while True:
                task = self._queue.get()
                if task is None:
                    return
                if not task.result.set_running_or_notify_cancel():
                    continue
                try:
                    outcome = hand.run(task.job)
                except Exception as error:  # noqa: BLE001 - whoever asked must see it, and the thread goes on
                    task.result.set_exception(error)
                else:
                    task.result.set_result(outcome)
        finally:
            hand.close()


def _closed() -> InfrastructureError:
    return InfrastructureError("the sandbox pool is closed")


class _Hand:
    """A worker thread's sandbox and connection."""

    def __init__(self, pool: SandboxPool, number: int) -> None:
        if pool._stock is None:
            raise _closed()
        self._pool = pool
        self._number = number
        self._stock = pool._stock
        self._limits = self._stock.plan.limits
        self._engine: Engine | None = None
        self._sandbox: Sandbox | None = None

    def close(self) -> None:
        self._drop()
        if self._engine is not None:
            self._engine.close()

    def ready(self) -> Sandbox:
        """The sandbox in hand, or another."""
        if self._sandbox is None:
            if self._engine is None:
                self._engine = Engine(self._pool.config.docker_host)
            sandbox = self._stock.take(self._engine)
            self._pool._running[self._number] = self._sandbox = sandbox
        if self._pool._closed:
            raise _closed()
        return self._sandbox

    def _drop(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        self._pool._running.pop(self._number, None)
        if sandbox is not None:
            self._stock.discard(sandbox)

    def run(self, job: Job) -> Outcome:
        counts = self._pool.counts
        attempts = self._pool.config.attempts
        try:
            for _ in range(attempts):
                try:
                    outcome = self._once(job)
                except SandboxBroken as broken:
                    counts.broken += 1
                    reason = str(broken)
                    continue
                counts.runs += 1
                return outcome
            counts.runs += 1
            return self._judge_breaker(attempts, reason)
        except EngineAway:
            counts.engine_errors += 1
            self._drop()
            raise

    def _judge_breaker(self, attempts: int, reason: str) -> Outcome:
        """The verdict of a program that brought down every sandbox it was given."""
        try:
            control = self._once(CONTROL)
        except SandboxBroken as broken:
            return Outcome("sandbox_error", f"sandboxes break, also under a program that is good: {broken}")
        if control.status != "passed":
            return Outcome("sandbox_error", f"sandboxes fail a program that is good: {control.reason}")
        return Outcome("runtime_error", f"brought its sandbox down {attempts} times: {reason}")

    def _once(self, job: Job) -> Outcome:
        """One run.

        Raises:
            SandboxBroken: the sandbox is lost, and only it.
            EngineAway: more is lost than a program can break.
        """
        sandbox = self.ready()
        try:
            outcome = sandbox.run(job)
        except SandboxBroken as broken:
            if self._pool._closed:
                raise _closed() from broken
            if sandbox.both_ended():
                raise EngineAway(f"both containers of a sandbox ended at a time: {broken}") from broken
            if self._engine is None or not self._engine.answers():
                raise EngineAway(f"a sandbox broke, and the Docker engine does not answer: {broken}") from broken
            raise
        else:
            if sandbox.suspicion is not None:
                self._pool.counts.suspected += 1
                self._drop()
            elif sandbox.runs >= self._pool.config.runs_per_sandbox:
                self._pool.counts.retired += 1
                self._drop()
            return outcome
        finally:
            if sandbox.lost:
                self._drop()
