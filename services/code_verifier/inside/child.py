"""One run's child: how it is forked, and what the process becomes before it touches the program."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from . import candidate, cleaning, frames, judge, limits, program

DEFAULTS = sorted(
    signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}  # the last two: Python's
)
"""Signals whose default a child gets back."""
hooks: list[dict[str, Any]] = []
"""Arguments of ``os.register_at_fork`` that were held back from PID 1."""
_ROLES: dict[str, Callable[[frames.Channel], int]] = {
    "functions": candidate.main,
    "program": program.main,
    "judge": judge.main,
}


class Run:
    """One child and its pipes."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.role: str = job["role"]
        self.job = job
        self.pid = 0
        self.status: int | None = None
        self.peak_kb = 0
        self.cpu_s = 0.0
        self.started = time.monotonic()
        self.deadline = self.started + job["wall_s"]
        self.at_deadline = "time"
        self.sent = {frames.OUT: 0, frames.ERR: 0, frames.DATA: 0}
        self.pipes: dict[int, int] = {}  # descriptor: kind of frame
        self.channel: int | None = None

    def fork(self) -> Callable[[], int] | None:
        """Start the child; in the child, what it has to do."""
        ours, theirs = (end.detach() for end in _socket.socketpair())
        out, err = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            descriptor = _become_child(self.job, theirs, out[1], err[1])
            return lambda: _ROLES[self.role](frames.Channel(descriptor))
        for fd in (theirs, out[1], err[1]):
            os.close(fd)
        self.channel = ours
        os.set_blocking(self.channel, False)
        self.pipes = {self.channel: frames.DATA, out[0]: frames.OUT, err[0]: frames.ERR}
        for fd in (out[0], err[0]):
            os.set_blocking(fd, False)
        return None


def _become_child(job: dict[str, Any], channel: int, out: int, err: int) -> int:
    os.setsid()
    # The C functions themselves: every page that a child touches costs it a fault, and enums touch many.
    _signal.set_wakeup_fd(-1)
    for number in DEFAULTS:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    limits.set_dumpable(True)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    open_files: int = job["open_files"]
    last = open_files - 1
    os.dup2(channel, last, inheritable=False)  # out of the way of what programs open and close
    os.closerange(3, last)
    limits.prefer_for_oom()
    os.umask(0o022)
    os.mkdir(cleaning.WORK, 0o700)  # noqa: PTH102
    os.chdir(cleaning.WORK)
    sys.path.insert(0, "")
    limits.apply(job["memory_bytes"], job["file_bytes"], open_files, job["cpu_s"])
    for hook in hooks:
        os.register_at_fork(**hook)
    sys.setrecursionlimit(1015 if job["role"] != "judge" else 3000)  # the frames below the program's first
    return last
