"""The loop of PID 1: a child per run, its bytes relayed, its limits enforced, its leftovers removed.

It runs as the program's user but cannot be signalled (PID 1), traced or read (not dumpable), and its code lies on a
read-only root. Bytes pass through two buffers that are wiped after a run, never through the heap, so nothing of one
program is in the memory that the next is forked from. It does not read what it relays: the host does.

A run: ``JOB`` (role, limits, a nonce that is returned in front of all else) forks the child; ``DATA`` goes to its
channel and comes from it; ``OUT`` and ``ERR`` are its output. It ends by ``KILL``, by the child's exit, at the
deadline, or at the output limit: then every process but this is killed, reaped, the writable mounts are emptied, and
``ENDED``, the run's last frame, says what happened.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import gc
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from . import child, cleaning, frames, limits, traces
from .child import DEFAULTS, Run
from .preload import preload

CLOSING_S = 0.1
REAPING_S = 5.0


class HostGone(Exception):
    """Standard input is closed: the verifier ended."""


class Supervisor:
    """PID 1."""

    def __init__(self) -> None:
        # The children use these streams too: nothing is read from them or written to them here.
        for stream in (sys.stdin, sys.stdout):
            stream.reconfigure(errors="strict")  # type: ignore[union-attr]
        self._mounts = cleaning.writable_mounts()
        self._poll = select.poll()
        self._in = bytearray(frames.CHUNK)
        self._out = bytearray(frames.CHUNK)
        self._begun = b""
        self._pending: memoryview | None = None
        self._run: Run | None = None
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake):
            os.set_blocking(fd, False)
        # The kernel spares PID 1 whatever it does not handle; gVisor does not.
        for number in DEFAULTS:
            _signal.signal(number, _signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll.register(0, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._state = limits.own_state()
        self._oom = limits.oom_kills()
        self._ipc = cleaning.ipc_tables()
        self._traces: traces.Traces | None = None

    def hello(self) -> None:
        """Say that there is somebody."""
        litter = cleaning.clean(self._mounts, self._ipc)
        self._traces = traces.Traces(self._mounts)
        version = sys.version.split()[0]
        self._say(
            frames.HELLO,
            {"uid": os.getuid(), "python": version, "writable": sorted(self._mounts), "unclean": litter},
        )

    def _say(self, kind: int, what: dict[str, Any]) -> None:
        begun, self._begun = self._begun, b""
        frames.write_all(1, begun + frames.pack(kind, json.dumps(what).encode()))

    def serve(self) -> Callable[[], int] | None:
        """Until the host is gone, or, in a child, until it is forked."""
        try:
            while True:
                run = self._run
                timeout = None if run is None else max(0.0, run.deadline - time.monotonic()) * 1000 + 1
                for fd, events in self._poll.poll(timeout):
                    if fd == 0:
                        child = self._from_host()
                        if child is not None:
                            return child
                    elif fd == self._wake:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._wake, 4096)
                        self._reap()
                    elif self._run is not None and fd in self._run.pipes:
                        self._from_child(fd, events)
                run = self._run
                if run is not None and run.status is not None:
                    self._finish("exit")
                elif run is not None and time.monotonic() >= run.deadline:
                    self._finish(run.at_deadline)
        except HostGone:
            return None

    def _read_exactly(self, view: memoryview) -> None:
        while view:
            size = os.readv(0, [view])
            if not size:
                raise HostGone
            view = view[size:]

    def _from_host(self) -> Callable[[], int] | None:
        head = bytearray(frames.HEADER.size)
        self._read_exactly(memoryview(head))
        size, kind = frames.HEADER.unpack(head)
        payload = memoryview(self._in)[:size]
        self._read_exactly(payload)
        run = self._run
        if kind == frames.JOB and run is None:
            job = json.loads(bytes(payload))
            # Goes out in front of the run's first frame, to save the host a wake-up.
            self._begun = frames.pack(frames.PING, json.dumps({"idle": True, "nonce": job["nonce"]}).encode())
            self._run = Run(job)
            child = self._run.fork()
            if child is not None:
                return child
            for fd in self._run.pipes:
                self._poll.register(fd, select.POLLIN)
        elif kind == frames.DATA and run is not None:
            if run.channel is not None:
                self._pending = payload
                self._to_child()
        elif kind == frames.KILL and run is not None:
            self._finish("kill")
        elif kind == frames.PING:
            self._say(frames.PING, {"idle": run is None})
        return None

    def _to_child(self) -> None:
        run, pending = self._run, self._pending
        if run is None or run.channel is None or pending is None:
            return
        try:
            pending = pending[os.write(run.channel, pending) :]
        except BlockingIOError:
            pass
        except OSError:
            pending = pending[:0]
        if pending and self._pending is not None:
            # The host is not heard until the child has taken this; its deadline bounds that.
            self._poll.modify(0, 0)
            self._poll.modify(run.channel, select.POLLIN | select.POLLOUT)
            self._pending = pending
        else:
            self._taken()

    def _taken(self) -> None:
        self._pending = None
        self._poll.modify(0, select.POLLIN)
        if self._run is not None and self._run.channel is not None:
            self._poll.modify(self._run.channel, select.POLLIN)

    def _from_child(self, fd: int, events: int) -> None:
        if events & select.POLLOUT:
            self._to_child()
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._relay(fd)

    def _relay(self, fd: int) -> bool:
        """Pass on what a pipe holds, at most a buffer; whether there may be more."""
        run = self._run
        if run is None:
            return False
        kind = run.pipes[fd]
        try:
            size = os.readv(fd, [self._out])
        except BlockingIOError:
            return False
        except OSError:
            size = 0
        if not size:
            self._poll.unregister(fd)
            os.close(fd)
            del run.pipes[fd]
            if kind == frames.DATA:
                self._pending = None
                self._poll.modify(0, select.POLLIN)
                run.channel = None
                if run.role != "program":
                    run.deadline, run.at_deadline = time.monotonic() + CLOSING_S, "channel"
            return False
        if kind != frames.DATA or run.role == "program":
            room = (run.job["output_bytes"] if kind != frames.DATA else 2 * frames.FAILED_LIMIT) - run.sent[kind]
            run.sent[kind] += size
            if size > room:
                run.deadline, run.at_deadline = 0.0, "output" if kind != frames.DATA else "channel"
                size = max(0, room)
        if size:
            head, body = self._begun + frames.HEADER.pack(size, kind), memoryview(self._out)[:size]
            self._begun = b""
            # One write, which Docker passes on as one piece.
            sent = os.writev(1, (head, body))
            if sent < len(head):
                frames.write_all(1, head[sent:])
            frames.write_all(1, body[max(0, sent - len(head)) :])
        return True

    def _reap(self) -> int:
        """Collect the dead; how many."""
        count = 0
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return count
            if pid == 0:
                return count
            count += 1
            run = self._run
            if run is not None:
                run.peak_kb = max(run.peak_kb, usage.ru_maxrss)
                run.cpu_s += usage.ru_utime + usage.ru_stime
                if pid == run.pid:
                    run.status = status

    def _kill_all(self) -> tuple[int, bool]:
        """Kill and reap all processes: how many there were, and whether none is left."""
        count = 0
        deadline = time.monotonic() + REAPING_S
        pause = 0.0002
        while True:
            count += self._reap()
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                return count, True
            count += self._reap()
            if time.monotonic() > deadline:
                return count, False
            select.select([self._wake], [], [], pause)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
            pause = min(pause * 2, 0.02)

    def _finish(self, why: str) -> None:
        run = self._run
        if run is None:
            return
        ended = run.status
        killed, dead = self._kill_all()
        for fd in list(run.pipes):
            while fd in run.pipes and self._relay(fd):
                if run.at_deadline == "output":
                    why = "output" if why == "exit" else why
                    break
        for fd in run.pipes:
            self._poll.unregister(fd)
            os.close(fd)
        self._pending = None
        self._poll.modify(0, select.POLLIN)
        litter = cleaning.clean(self._mounts, self._ipc) if dead else "processes that do not die"
        if litter is None and self._traces is not None:
            litter = self._traces.clear()
        if litter is None and limits.own_state() != self._state:
            litter = "the warden's own priority or limits were changed"
        oom = limits.oom_kills()
        code = os.waitstatus_to_exitcode(ended) if ended is not None else None
        self._say(
            frames.ENDED,
            {
                "why": why,
                "code": code,
                "left": killed - (ended is None),
                "peak": run.peak_kb * 1024,
                "cpu": round(run.cpu_s, 4),
                "seconds": round(time.monotonic() - run.started, 4),
                "oom": oom != self._oom,
                "unclean": litter,
            },
        )
        self._oom = oom
        self._run = None
        self._in[:] = bytes(len(self._in))
        self._out[:] = bytes(len(self._out))


_supervisor: Supervisor | None = None


def serve(hooks: list[dict[str, Any]], register: Callable[..., None]) -> Callable[[], int] | None:
    """Run as PID 1; in a child, what it has to do.

    Args:
        hooks: what modules would have done in a child after a fork.
        register: ``os.register_at_fork``, which is replaced as long as this process imports.
    """
    limits.set_dumpable(False)
    os.chdir("/")
    preload()
    os.register_at_fork = register
    child.hooks.extend(hooks)
    global _supervisor
    random.seed(0)  # what programs and tests begin with: nobody draws from it here
    supervisor = _supervisor = Supervisor()  # never freed, in a child either: that would touch its pages
    supervisor.hello()
    gc.collect()
    gc.freeze()
    return supervisor.serve()
