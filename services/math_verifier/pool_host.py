"""One killable worker process on this machine, and the template that forks it. Used by both kinds of pool.

The template has SymPy imported, so a replacement costs milliseconds. Template and workers end with the process that
owns them, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from gristmill.errors import InfrastructureError
from math_verifier.check import Outcome
from math_verifier.config import MathPolicy
from math_verifier.framing import Channel
from math_verifier.pool_base import Counts, Limits

START_TIMEOUT_S = 60.0
MEMORY_HIGH = 0.8
"""Part of the memory limit above which a worker is replaced before it gets another check."""

Check = tuple[str, str, MathPolicy]
"""Reference, answer, policy."""


class Template:
    """The process that forks workers. Safe for threads."""

    def __init__(self, memory_limit_mb: int) -> None:
        self._memory_limit_mb = memory_limit_mb
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the template."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process, unless it runs; returns when it can fork.

        Raises:
            InfrastructureError: it does not come up.
        """
        with self._lock:
            self._ensure()

    def fork(self) -> tuple[int, socket.socket]:
        """A new worker's process id and connection.

        Raises:
            InfrastructureError: there is none to be had.
        """
        with self._lock:
            for attempt in (1, 2):
                ours, theirs = socket.socketpair()
                with theirs:
                    try:
                        return self._ask(theirs), ours
                    except OSError as error:
                        ours.close()
                        self._drop()
                        if attempt == 2:
                            raise InfrastructureError(f"the process that starts math workers ended: {error}") from error
        raise AssertionError("unreachable")

    def _ask(self, end: socket.socket) -> int:
        control = self._ensure()
        socket.send_fds(control, [b"F"], [end.fileno()])
        answer = b""
        while len(answer) < 8:
            part = control.recv(8 - len(answer))
            if not part:
                raise ConnectionResetError("it closed its connection")
            answer += part
        return int.from_bytes(answer, "big")

    def _drop(self) -> None:
        """End the process."""
        control, self._control = self._control, None
        if control is not None:
            control.close()
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """End the template and every worker that it forked."""
        with self._lock:
            self._drop()

    def _ensure(self) -> socket.socket:
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._drop()
        ours, theirs = socket.socketpair()
        package_root = str(Path(__file__).resolve().parent.parent)
        kernel_root = str(Path(sys.modules["gristmill"].__file__ or "").resolve().parent.parent)
        roots = [*dict.fromkeys((package_root, kernel_root)), os.environ.get("PYTHONPATH", "")]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "math_verifier.worker_main", str(theirs.fileno()), str(self._memory_limit_mb)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots)), "OMP_NUM_THREADS": "1"},
            )
        ours.settimeout(START_TIMEOUT_S)
        try:
            ready = ours.recv(1)
        except TimeoutError:
            ready = b""
        if ready != b"R":
            ours.close()
            self._process.kill()
            self._process.wait()
            raise InfrastructureError("the process that starts math workers did not come up; its error is above")
        self._control = ours
        return ours


class Worker:
    """A forked process with its connection."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.tasks = 0
        self.peak_mb = 0
        self._channel = Channel(connection)
        self._policy: MathPolicy | None = None

    def send(self, checks: Sequence[Check]) -> None:
        """Hand over checks, to be answered in order.

        Raises:
            OSError: the worker is gone.
        """
        # A policy costs more to pickle than a check, and is nearly always the same one.
        items = []
        for gold, answer, policy in checks:
            items.append((gold, answer, None if policy is self._policy else policy))
            self._policy = policy
        self._channel.send(items, START_TIMEOUT_S)

    def answer(self, deadline: float) -> tuple[str, Outcome | None]:
        """The next answer: ``done`` and the outcome, or ``timeout``, ``memory`` or ``crashed``."""
        self.tasks += 1
        try:
            status, outcome, self.peak_mb = self._channel.receive(deadline)
        except TimeoutError:
            return "timeout", None
        except (EOFError, OSError):
            return "crashed", None
        return status, None if outcome is None else Outcome(*outcome)

    def kill(self) -> None:
        """End the process whatever it does; the template reaps it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._channel.close()


class Host:
    """Keeps one worker alive and gives it checks. For one thread. ``counts`` tells what became of workers."""

    def __init__(self, template: Template, limits: Limits, counts: Counts) -> None:
        self._template = template
        self._limits = limits
        self.counts = counts
        self._worker: Worker | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the present worker."""
        worker = self._worker
        return worker.pid if worker else None

    def start(self) -> Worker:
        """The worker, forked if there is none that may take another check.

        Raises:
            InfrastructureError: none can be had.
        """
        limits = self._limits
        worker = self._worker
        if worker is not None and not (
            worker.tasks >= limits.tasks_per_worker or worker.peak_mb > MEMORY_HIGH * limits.memory_limit_mb
        ):
            return worker
        self.close()
        worker = self._worker = Worker(*self._template.fork())
        self.counts.started += 1
        return worker

    def run(self, checks: Sequence[Check]) -> Generator[Outcome, None, None]:
        """Outcomes of the first of ``checks``, in order: all of them, or up to one that cost the worker its life.

        The others were not begun. A consumer that stops early must :meth:`close` the host.

        Raises:
            InfrastructureError: no worker can be had. Nothing, or the first check alone, was begun then.
        """
        worker = self.start()
        begun = time.monotonic()
        try:
            worker.send(checks)
        except OSError:
            self._lose()
            yield self._again(checks[0], begun)
            return
        for gold, answer, policy in checks:
            begun = time.monotonic()
            status, outcome = worker.answer(begun + self._limits.time_limit_s)
            if status == "crashed":
                self._lose()
                yield self._again((gold, answer, policy), begun)
                return
            if outcome is None:
                yield self._ended(status, answer, begun)
                return
            yield outcome
            if worker.peak_mb > MEMORY_HIGH * self._limits.memory_limit_mb:
                self.close()
                return

    def close(self) -> None:
        """End the worker; another is forked when there is a check."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    def _lose(self) -> None:
        self.close()
        self.counts.crashed += 1

    def _again(self, check: Check, begun: float) -> Outcome:
        """Second try of a check whose worker crashed; it has what the first left of the time."""
        spent = time.monotonic() - begun
        worker = self.start()
        # A fresh worker's start is not the check's fault.
        start = time.monotonic()
        limit = max(self._limits.time_limit_s - spent, self._limits.time_limit_s / 10)
        try:
            worker.send([check])
            status, outcome = worker.answer(start + limit)
        except OSError:
            status, outcome = "crashed", None
        if outcome is not None:
            return outcome
        if status == "crashed":
            self._lose()
            return Outcome("error", check[1], "limit", "the check crashed its worker twice", time.monotonic() - begun)
        return self._ended(status, check[1], begun)

    def _ended(self, status: str, answer: str, begun: float) -> Outcome:
        """Outcome of a check that hit a limit, and its worker's end."""
        self.close()
        if status == "timeout":
            self.counts.killed += 1
            reason = f"no result within {self._limits.time_limit_s:g} s"
        else:
            self.counts.out_of_memory += 1
            reason = f"the check wanted more than {self._limits.memory_limit_mb} MiB"
        return Outcome("timeout", answer, "limit", reason, time.monotonic() - begun)
