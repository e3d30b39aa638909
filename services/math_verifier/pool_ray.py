"""A pool of Ray actors, on a cluster of this process alone or on one that runs already.

An actor owns a template and one killable worker process on its node, so the limits of a check are kept there, by the
same code as in the process pool, and a hung check costs no actor. What may be lost beside is the actor, its node, or
the way to it: the thread that waits for it gives up after a deadline, kills it, starts another and puts its checks
back into the line; a check that lost two actors ends as ``error``.

A call to an actor costs about a millisecond, so each carries as many checks as wait for the worker, up to ``most``;
the actor returns what it has after ``SLICE_S``, so that others can take the rest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, Final

from gristmill import __version__
from gristmill.errors import ConfigError, InfrastructureError, MissingExtra
from math_verifier.check import Outcome
from math_verifier.pool_base import Counts, Limits, Pool, Slot, Task
from math_verifier.pool_host import Check, Host, Template

SLICE_S: Final = 0.05
"""Seconds after which an actor begins no other check of a call."""
CHUNK: Final = 4
"""Checks that an actor's worker has before it at a time."""
GRACE_S: Final = 10.0
"""Seconds beyond what its checks may take after which an actor that does not answer is given up."""
STOP_S: Final = 20.0
LOOPBACK: Final = "127.0.0.1"
OBJECT_STORE: Final = 80 * 1024 * 1024
"""Bytes of Ray's object store, the least that it takes: checks travel inside of calls."""


class Checker:
    """The actor: one killable worker on its node."""

    def __init__(self, limits: Limits) -> None:
        self._host = Host(Template(limits.memory_limit_mb), limits, Counts())

    def ready(self) -> tuple[str, int, int]:
        """Version of the code, process ids of actor and worker; returns when the worker runs."""
        worker = self._host.start()
        self._host.counts = Counts()
        return __version__, os.getpid(), worker.pid

    def run(self, checks: Sequence[Check]) -> tuple[list[tuple[Any, ...]], tuple[int, ...], int]:
        """Outcomes of the first checks, what became of workers since the last call, the worker's process id."""
        found: list[tuple[Any, ...]] = []
        end = time.monotonic() + SLICE_S
        while len(found) < len(checks):
            chunk = checks[len(found) : len(found) + CHUNK]
            before = len(found)
            try:
                found.extend(_plain(outcome) for outcome in self._host.run(chunk))
            except InfrastructureError:
                if not found:
                    raise
                break
            if len(found) - before < len(chunk) or time.monotonic() > end:
                break
        worker = self._host.start()
        counts, self._host.counts = self._host.counts, Counts()
        return found, astuple(counts), worker.pid


def _plain(outcome: Outcome) -> tuple[Any, ...]:
    return outcome.status, outcome.extracted, outcome.stage, outcome.reason, outcome.seconds


class RayPool(Pool):
    """Runs checks in ``workers`` Ray actors."""

    most = 32

    def __init__(
        self,
        workers: int = 1,
        *,
        limits: Limits | None = None,
        queue_size: int = 256,
        address: str | None = None,
        cpus: float = 1.0,
        start_timeout_s: float = 60.0,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        """See :class:`math_verifier.config.MathConfig` for the arguments.

        Raises:
            MissingExtra: Ray is not installed.
        """
        super().__init__(workers, limits or Limits(), queue_size)
        self._ray = import_ray(own=address is None)
        self._address = address
        self._cpus = cpus
        self._start_timeout_s = start_timeout_s
        self._runtime_env = dict(runtime_env or {})
        self._cluster: Cluster | None = None
        self._actors: Any = None
        self._slots = [_RaySlot(self) for _ in range(workers)]

    @property
    def pids(self) -> list[int]:
        return [slot.worker_pid for slot in self._slots if slot.worker_pid]

    @property
    def actor_pids(self) -> list[int]:
        """Process ids of the actors, on the machines where they run."""
        return [slot.actor_pid for slot in self._slots if slot.actor_pid]

    def broken(self) -> str | None:
        if self._cluster is not None and self._cluster.lost():
            return "the connection to the Ray cluster is lost"
        return super().broken()

    def _open(self) -> None:
        self._cluster = Cluster.join(self._ray, self._address, self._workers)
        _keep_signals()
        try:
            for slot in self._slots:
                slot.launch()
            for slot in self._slots:
                slot.await_ready()
        except InfrastructureError:
            for slot in self._slots:
                slot.close()
            self._shut()
            raise

    def _slot(self, number: int) -> Slot:
        return self._slots[number]

    def _shut(self) -> None:
        if self._cluster is not None:
            self._cluster.leave()
            self._cluster = None

    def new_actor(self) -> Any:
        """Ask for an actor; it comes up in its own time."""
        assert self._cluster is not None
        if self._actors is None:
            options: dict[str, Any] = {
                # A cluster of our own has no other work: there the number of actors is the user's say alone.
                "num_cpus": 0 if self._cluster.own else self._cpus,
                "max_restarts": 0,
                "max_task_retries": 0,
                "scheduling_strategy": "SPREAD",
            }
            if self._runtime_env:
                options["runtime_env"] = self._runtime_env
            self._actors = self._ray.remote(**options)(Checker)
        return self._actors.remote(self.limits)

    @property
    def ray(self) -> Any:
        return self._ray

    @property
    def start_timeout_s(self) -> float:
        return self._start_timeout_s


class _RaySlot:
    """An actor as its thread sees it."""

    def __init__(self, pool: RayPool) -> None:
        self.actor_pid = 0
        self.worker_pid = 0
        self._pool = pool
        self._actor: Any = None
        self._ready: Any = None

    def launch(self) -> None:
        """Ask for the actor."""
        ray = self._pool.ray
        try:
            self._actor = self._pool.new_actor()
            self._ready = self._actor.ready.remote()
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise InfrastructureError(f"no Ray actor: {error}") from error

    def await_ready(self) -> None:
        """Wait until the actor runs.

        Raises:
            InfrastructureError: it does not; it is killed then.
        """
        ray, timeout = self._pool.ray, self._pool.start_timeout_s
        try:
            version, self.actor_pid, self.worker_pid = ray.get(self._ready, timeout=timeout)
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            raise InfrastructureError(
                f"a Ray actor did not come up in {timeout:g} s; it waits for CPUs if math.workers times math.ray_cpus "
                "is more than the cluster has free"
            ) from error
        except (ray.exceptions.RayError, ConnectionError) as error:
            self.close()
            raise InfrastructureError(f"a Ray actor did not come up: {_last_line(error)}") from error
        if version != __version__:
            self.close()
            raise InfrastructureError(f"the Ray node has Gristmill {version}, this process {__version__}")
        self._pool.counts.started += 1

    def run(self, tasks: Sequence[Task]) -> Sequence[Task]:
        ray = self._pool.ray
        if self._actor is None:
            self.launch()
            self.await_ready()
        checks = [(task.gold, task.answer, task.policy) for task in tasks]
        longest = min(CHUNK, len(checks)) * self._pool.limits.time_limit_s + GRACE_S
        start = time.monotonic()
        try:
            found, counts, self.worker_pid = ray.get(self._actor.run.remote(checks), timeout=longest)
        except ray.exceptions.RayTaskError as error:
            self.close()
            raise InfrastructureError(f"a Ray actor has no worker: {_last_line(error)}") from error
        except (ray.exceptions.RayError, ConnectionError):
            return self._lost(tasks, time.monotonic() - start)
        self._pool.counts.add(Counts(*counts))
        for task, outcome in zip(tasks, found, strict=False):
            task.result.set_result(Outcome(*outcome))
        return tasks[len(found) :]

    def _lost(self, tasks: Sequence[Task], seconds: float) -> Sequence[Task]:
        """The actor is gone with these checks; those that it happens to for the second time are given up."""
        self.close()
        self._pool.counts.crashed += 1
        left = []
        for task in tasks:
            task.lost += 1
            if task.lost == 1:
                left.append(task)
            else:
                reason = "the check lost its Ray actor twice"
                task.result.set_result(Outcome("error", task.answer, "limit", reason, seconds))
        return left

    def close(self) -> None:
        actor, self._actor = self._actor, None
        self.actor_pid = self.worker_pid = 0
        if actor is not None:
            with contextlib.suppress(self._pool.ray.exceptions.RayError, ConnectionError):
                self._pool.ray.kill(actor, no_restart=True)


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


class Cluster:
    """This process's connection to Ray. Pools share it; the last one ends it, and with it a cluster of our own."""

    _lock = threading.Lock()
    _present: Cluster | None = None

    def __init__(self, ray: Any, address: str | None) -> None:
        self.own = address is None
        self._ray = ray
        self._address = address
        self._users = 0
        self._theirs = False
        self._leave = threading.Event()
        self._joined = threading.Event()
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def join(cls, ray: Any, address: str | None, workers: int) -> Cluster:
        """Connect, or start a cluster when ``address`` is None. A connection that the process has already is used.

        Raises:
            InfrastructureError: no cluster answers there.
            ConfigError: the process is connected to another cluster.
        """
        with cls._lock:
            present = cls._present
            if present is None:
                present = cls(ray, address)
                if ray.is_initialized():
                    present.own = False
                    present._theirs = True
                else:
                    present._connect(workers)
                cls._present = present
            elif address not in {None, present._address} and not present._theirs:
                raise ConfigError(f"math.ray_address: this process uses {present._address or 'a cluster of its own'}")
            present._users += 1
            return present

    def leave(self) -> None:
        """End the connection if nobody else uses it."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            type(self)._present = None
            if self._thread is not None:
                self._leave.set()
                self._thread.join(STOP_S)

    def lost(self) -> bool:
        """Whether the connection broke."""
        return not self._ray.is_initialized()

    def _connect(self, workers: int) -> None:
        # Ray takes SIGTERM away from the service if it is started in the main thread; and the processes of a cluster
        # of our own die with the thread that started them, by the kernel's hand. So one thread stays for it.
        self._thread = threading.Thread(target=self._hold, args=(workers,), name="math-ray", daemon=True)
        self._thread.start()
        self._joined.wait()
        if self._failure is not None:
            self._thread.join()
            where = self._address or "on this machine"
            raise InfrastructureError(f"no Ray cluster {where}: {_last_line(self._failure)}") from self._failure

    def _hold(self, workers: int) -> None:
        ray = self._ray
        quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
        try:
            if self.own:
                ray.init(
                    address="local",
                    num_cpus=workers,
                    num_gpus=0,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE,
                    _node_ip_address=LOOPBACK,
                    **quiet,
                )
            else:
                ray.init(address=self._address, **quiet)
        except (ray.exceptions.RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
            self._failure = error
            self._joined.set()
            return
        self._joined.set()
        self._leave.wait()
        ray.shutdown()


def _keep_signals() -> None:
    """Ray's native handler writes a stack trace at SIGTERM before Python's handler runs; put Python's own back."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def import_ray(own: bool) -> Any:
    """The module ``ray``, told to report nothing and, where the cluster is to be our ``own``, to bind loopback.

    Raises:
        MissingExtra: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if own:
        # Else Ray replaces a loopback address by that of the machine's network.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        from ray._private import ray_constants
    except ModuleNotFoundError as error:
        raise MissingExtra("math.pool: ray", "math-ray", error.name or "ray") from error
    if own:
        ray_constants.ENABLE_RAY_CLUSTER = False
    for name in ("ray", "ray._private.worker"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return ray
