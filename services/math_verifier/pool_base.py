"""What every pool of workers has: a bounded line of checks, one thread per worker, the same answers to the same faults.

A check that outlives the time limit dies with its worker process and ends as ``timeout``; so does one that hits the
memory limit. One whose worker crashes or is lost is tried once more, then it ends as ``error``. Nothing here uses
signals or the main thread: a pool serves asyncio and threads alike.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from gristmill.errors import InfrastructureError
from math_verifier.check import Outcome
from math_verifier.config import MathPolicy

CLOSED = "the math pool was closed"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a check and a worker may cost."""

    time_limit_s: float = 2.0
    memory_limit_mb: int = 512
    tasks_per_worker: int = 20_000


@dataclass(slots=True)
class Counts:
    """What became of workers since the start."""

    started: int = 0
    killed: int = 0
    crashed: int = 0
    out_of_memory: int = 0

    def add(self, other: Counts) -> None:
        self.started += other.started
        self.killed += other.killed
        self.crashed += other.crashed
        self.out_of_memory += other.out_of_memory


@dataclass(slots=True, eq=False)
class Task:
    """A check under way. ``lost`` counts the workers that were lost with it, beyond those that its host replaced."""

    gold: str
    answer: str
    policy: MathPolicy
    result: Future[Outcome] = field(default_factory=Future)
    begun: bool = False
    lost: int = 0


class Line:
    """The checks that wait for a worker: first in, first out, at most ``size``; who comes then waits for a place."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._tasks: deque[Task] = deque()
        self._outside: deque[tuple[Task, Future[None]]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def offer(self, task: Task) -> Future[None] | None:
        """Queue a task. None where it got a place, else a future that is done when it has one.

        Raises:
            InfrastructureError: the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise InfrastructureError(CLOSED)
            if len(self._tasks) >= self._size or self._outside:
                place: Future[None] = Future()
                self._outside.append((task, place))
                return place
            self._tasks.append(task)
            self._filled.notify()
            return None

    def take(self, workers: int, most: int) -> list[Task] | None:
        """Wait for tasks and take a worker's share of them, ``most`` at most; None when the pool is closed."""
        placed: list[Future[None]] = []
        with self._filled:
            while not self._tasks and not self._closed:
                self._filled.wait()
            if self._closed:
                return None
            share = max(1, min(most, len(self._tasks) // workers))
            taken = [self._tasks.popleft() for _ in range(share)]
            while self._outside and len(self._tasks) < self._size:
                task, place = self._outside.popleft()
                if place.set_running_or_notify_cancel():
                    self._tasks.append(task)
                    self._filled.notify()
                    placed.append(place)
        for place in placed:
            place.set_result(None)
        return [task for task in taken if task.begun or task.result.set_running_or_notify_cancel()]

    def give_back(self, tasks: Sequence[Task]) -> None:
        """Put tasks in front that were taken and not finished."""
        for task in tasks:
            task.begun = True
        with self._lock:
            if not self._closed:
                self._tasks.extendleft(reversed(tasks))
                self._filled.notify(len(tasks))
                return
        _refuse(tasks)

    def close(self) -> None:
        """Refuse what waits and what comes."""
        with self._lock:
            self._closed = True
            tasks = [*self._tasks, *(task for task, _ in self._outside)]
            places = [place for _, place in self._outside]
            self._tasks.clear()
            self._outside.clear()
            self._filled.notify_all()
        _refuse([task for task in tasks if task.begun or task.result.set_running_or_notify_cancel()])
        for place in places:
            if place.set_running_or_notify_cancel():
                place.set_result(None)


def _refuse(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task.result.set_exception(InfrastructureError(CLOSED))


class Slot(Protocol):
    """A worker as its thread sees it."""

    def run(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Resolve some of ``tasks``; returns the others, which go back to the line.

        Raises:
            InfrastructureError: no worker can be had; nothing was resolved.
        """

    def close(self) -> None:
        """End the worker whatever it does."""


class Pool(ABC):
    """Runs checks in killable workers. Use it as a context manager, or call :meth:`start` and :meth:`close`."""

    most: int = 8
    """Checks that a worker is given at a time, where that many wait for every worker."""

    def __init__(self, workers: int, limits: Limits, queue_size: int) -> None:
        self.limits = limits
        self.counts = Counts()
        self._workers = workers
        self._line = Line(queue_size)
        self._threads: list[threading.Thread] = []
        self._state = threading.Lock()
        self._started = False
        self._closed = False
        self._trouble: dict[int, str] = {}

    @abstractmethod
    def _open(self) -> None:
        """Start what the slots need; undo it before raising InfrastructureError."""

    @abstractmethod
    def _slot(self, number: int) -> Slot:
        """Worker ``number``, started or not."""

    @abstractmethod
    def _shut(self) -> None:
        """End what :meth:`_open` started; the slots are closed by now."""

    @property
    @abstractmethod
    def pids(self) -> list[int]:
        """Process ids of the present workers, on the machines where they run."""

    def start(self) -> Self:
        """Start the workers; returns when they can be used.

        Raises:
            InfrastructureError: they do not come up.
        """
        with self._state:
            if self._started or self._closed:
                raise InfrastructureError("a math pool can be started once")
            self._open()
            self._started = True
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
        """Finish what is running, refuse what is waiting, end every process that the pool started."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            self._line.close()
            for thread in self._threads:
                thread.join()
            if self._started:
                self._shut()

    @property
    def closing(self) -> bool:
        """Whether slots should end what they do."""
        return self._closed

    @property
    def waiting(self) -> int:
        """Checks that wait for a worker."""
        return len(self._line)

    def broken(self) -> str | None:
        """What is wrong with the pool, for a health check."""
        if self._closed or not self._started:
            return "the pool is closed"
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if dead:
            return f"threads ended: {', '.join(dead)}"
        trouble = list(self._trouble.values())
        return trouble[0] if len(trouble) == self._workers else None

    def submit(self, gold: str, answer: str, policy: MathPolicy) -> Future[Outcome]:
        """Queue a check; blocks while the line is full.

        Raises:
            InfrastructureError: the pool is closed. The future raises it where no worker can be had.
        """
        task = Task(gold, answer, policy)
        place = self._line.offer(task)
        if place is not None:
            place.result()
        return task.result

    async def check(self, gold: str, answer: str, policy: MathPolicy) -> Outcome:
        """Run a check from a coroutine of any event loop, which is never blocked.

        Raises:
            InfrastructureError: the pool is closed, or no worker can be had.
        """
        task = Task(gold, answer, policy)
        place = self._line.offer(task)
        try:
            if place is not None:
                await asyncio.wrap_future(place)
            return await asyncio.wrap_future(task.result)
        except asyncio.CancelledError:
            task.result.cancel()
            raise

    def _work(self, number: int) -> None:
        slot = self._slot(number)
        try:
            while (tasks := self._line.take(self._workers, self.most)) is not None:
                try:
                    left = slot.run(tasks)
                except InfrastructureError as error:
                    self._trouble[number] = str(error)
                    for task in tasks:
                        task.result.set_exception(error)
                    continue
                self._trouble.pop(number, None)
                if left:
                    self._line.give_back(left)
        finally:
            slot.close()
