"""What the kernel is told of a child's limits, and what it says of them afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
STACK_BYTES = 64 << 20
_COUNTERS = (
    ("/sys/fs/cgroup/memory.events", "oom_kill"),
    ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),
)
_libc = ctypes.CDLL(None, use_errno=True)


def set_dumpable(on: bool) -> None:
    """Whether others of this user may trace this process and read its ``/proc`` entries."""
    _libc.prctl(_PR_SET_DUMPABLE, int(on), 0, 0, 0)


def apply(memory_bytes: int, file_bytes: int, open_files: int, cpu_s: int) -> None:
    """Limit this process and what it starts, hard as soft."""
    for what, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_STACK, STACK_BYTES),
    ):
        _, hard = resource.getrlimit(what)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (allowed, allowed))


def oom_kills() -> int | None:
    """Processes of this container that the kernel killed for memory; none where it does not say."""
    for path, key in _COUNTERS:
        try:
            text = Path(path).read_text(encoding="ascii")
        except OSError:
            continue
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return None


def own_state() -> tuple[object, ...]:
    """What another process of the same user could have changed of this one."""
    found: list[object] = [
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        sorted(os.sched_getaffinity(0)),
    ]
    found += [resource.getrlimit(what) for what in range(16)]
    return tuple(found)


def prefer_for_oom() -> None:
    """Be what the kernel kills when memory runs out, not PID 1."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
