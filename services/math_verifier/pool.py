"""A pool of killable worker processes.

Each worker takes one check at a time. A check that outlives the time limit dies with its worker and ends as
``timeout``; so does one that hits the memory limit. A worker that crashes is replaced and its check tried once more,
then it ends as ``error``. Nothing here uses signals or the main thread, so the pool works from asyncio and from
threads alike: one thread per worker waits for its answers, and at most ``queue_size`` checks wait for a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from gristmill.errors import InfrastructureError
from math_verifier.check import Outcome
from math_verifier.config import MathPolicy

START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    gold: str
    answer: str
    policy: MathPolicy
    result: Future[Outcome] = field(default_factory=Future)


@dataclass(slots=True)
class Counts:
    """What became of workers since the start."""

    started: int = 0
    killed: int = 0
    crashed: int = 0
    out_of_memory: int = 0


class _Template:
    """The process that forks workers."""

    def __init__(self, memory_limit_mb: int) -> None:
        ours, theirs = socket.socketpair()
        package_root = str(Path(__file__).resolve().parent.parent)
        kernel_root = str(Path(sys.modules["gristmill"].__file__ or "").resolve().parent.parent)
        roots = [*dict.fromkeys((package_root, kernel_root)), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "math_verifier.worker_main", str(theirs.fileno()), str(memory_limit_mb)],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots)), "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self._control = ours
        self._lock = threading.Lock()
        ours.settimeout(START_TIMEOUT_S)
        try:
            ready = ours.recv(1)
        except TimeoutError:
            ready = b""
        if ready != b"R":
            self.close()
            raise InfrastructureError("the process that starts math workers did not come up; its error is above")

    def fork(self) -> tuple[int, Connection]:
        """A new worker's process id and connection.

        Raises:
            InfrastructureError: the template is gone.
        """
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                socket.send_fds(self._control, [b"F"], [theirs.fileno()])
                answer = b""
                while len(answer) < 8:
                    part = self._control.recv(8 - len(answer))
                    if not part:
                        raise InfrastructureError("the process that starts math workers ended")
                    answer += part
        except OSError as error:
            ours.close()
            raise InfrastructureError(f"no new math worker: {error}") from error
        finally:
            theirs.close()
        return int.from_bytes(answer, "big"), Connection(ours.detach())

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class MathPool:
    """Runs checks in ``workers`` processes. Use it as a context manager, or call :meth:`start` and :meth:`close`."""

    def __init__(
        self,
        workers: int = 1,
        *,
        time_limit_s: float = 2.0,
        memory_limit_mb: int = 512,
        queue_size: int = 256,
        tasks_per_worker: int = 20_000,
    ) -> None:
        self.time_limit_s = time_limit_s
        self.memory_limit_mb = memory_limit_mb
        self.counts = Counts()
        self._workers = workers
        self._tasks_per_worker = tasks_per_worker
        self._queue: queue.Queue[Task | None] = queue.Queue(queue_size)
        self._slots = queue_size
        self._room: asyncio.Semaphore | None = None
        self._threads: list[threading.Thread] = []
        self._template: _Template | None = None
        self._template_lock = threading.Lock()
        self._pids: dict[int, int] = {}
        self._closed = False

    def start(self) -> Self:
        """Start the template and the workers; returns when they are warm.

        Raises:
            InfrastructureError: they do not come up.
        """
        self._template = _Template(self.memory_limit_mb)
        for number in range(self._workers):
            thread = threading.Thread(target=self._work, args=(number,), name=f"math-worker-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is running, refuse what is waiting, end every process."""
        if self._closed:
            return
        self._closed = True
        while True:
            try:
                task = self._queue.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                task.result.set_exception(InfrastructureError("the math pool was closed"))
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._template is not None:
            self._template.close()

    @property
    def waiting(self) -> int:
        """Checks that wait for a worker."""
        return self._queue.qsize()

    @property
    def pids(self) -> list[int]:
        """Process ids of the present workers."""
        return list(self._pids.values())

    def broken(self) -> str | None:
        """What is wrong with the pool, for a health check."""
        if self._closed or self._template is None:
            return "the pool is closed"
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        return f"threads ended: {', '.join(dead)}" if dead else None

    def submit(self, gold: str, answer: str, policy: MathPolicy) -> Future[Outcome]:
        """Queue a check; blocks while the queue is full.

        Raises:
            InfrastructureError: the pool is closed.
        """
        if self._closed:
            raise InfrastructureError("the math pool was closed")
        task = Task(gold, answer, policy)
        self._queue.put(task)
        return task.result

    async def check(self, gold: str, answer: str, policy: MathPolicy) -> Outcome:
        """Run a check from a coroutine; waits for room in the queue without blocking the loop."""
        if self._room is None:
            self._room = asyncio.Semaphore(self._slots)
        async with self._room:
            return await asyncio.wrap_future(self.submit(gold, answer, policy))

    # -- one thread per worker

    def _work(self, number: int) -> None:
        worker: _Worker | None = None
        try:
            while True:
                task = self._queue.get()
                if task is None:
                    return
                if not task.result.set_running_or_notify_cancel():
                    continue
                try:
                    start = time.perf_counter()
                    outcome, worker = self._run(number, worker, task)
                    outcome = replace(outcome, seconds=time.perf_counter() - start)
                except InfrastructureError as error:
                    worker = None
                    task.result.set_exception(error)
                    continue
                task.result.set_result(outcome)
        finally:
            if worker is not None:
                worker.kill()

    def _run(self, number: int, worker: _Worker | None, task: Task) -> tuple[Outcome, _Worker | None]:
        deadline = time.monotonic() + self.time_limit_s
        for attempt in (1, 2):
            if worker is None or worker.tasks >= self._tasks_per_worker or worker.peak_mb > 0.8 * self.memory_limit_mb:
                if worker is not None:
                    worker.kill()
                worker = self._new(number)
            # The second attempt has what the first left, but a fresh worker's start is not the check's fault.
            limit = self.time_limit_s if attempt == 1 else max(deadline - time.monotonic(), self.time_limit_s / 10)
            status, outcome = worker.check(task, limit)
            if status == "done" and outcome is not None:
                return outcome, worker
            worker.kill()
            worker = None
            if status == "timeout":
                self.counts.killed += 1
                return Outcome("timeout", task.answer, "limit", f"no result within {self.time_limit_s:g} s"), None
            if status == "memory":
                self.counts.out_of_memory += 1
                return Outcome(
                    "timeout", task.answer, "limit", f"the check wanted more than {self.memory_limit_mb} MiB"
                ), None
            self.counts.crashed += 1
            if attempt == 2:
                break
        return Outcome("error", task.answer, "limit", "the check crashed its worker twice"), None

    def _new(self, number: int) -> _Worker:
        with self._template_lock:
            if self._template is None or not self._template.alive():
                self._template = _Template(self.memory_limit_mb)
            template = self._template
        process, connection = template.fork()
        self.counts.started += 1
        self._pids[number] = process
        return _Worker(process, connection, on_end=lambda: self._pids.pop(number, None))


class _Worker:
    """One forked process, as its thread sees it."""

    def __init__(self, process: int, connection: Connection, on_end: Callable[[], object]) -> None:
        self.process = process
        self.tasks = 0
        self.peak_mb = 0
        self._connection = connection
        self._on_end = on_end

    def check(self, task: Task, limit_s: float) -> tuple[str, Outcome | None]:
        """``done`` and the outcome, or ``timeout``, ``memory`` or ``crashed``."""
        self.tasks += 1
        deadline = time.monotonic() + limit_s
        try:
            self._connection.send_bytes(pickle.dumps((task.gold, task.answer, task.policy)))
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                return "timeout", None
            status, outcome, self.peak_mb = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - our own child
        except (EOFError, OSError):
            return "crashed", None
        return status, outcome

    def kill(self) -> None:
        """End the process whatever it does; the template reaps it."""
        self._on_end()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        self._connection.close()
