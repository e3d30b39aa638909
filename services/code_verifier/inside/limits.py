"""What the kernel is told of a child's limits, and what it says of them afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
STACK_BYTES = 64 << 20
_COUNTERS = (
    ("/sys/fs/cgroup/memory.events", b"oom_kill"),
    ("/sys/fs/cgroup/memory/memory.oom_control", b"oom_kill"),
)
_libc = ctypes.CDLL(None, use_errno=True)


def set_dumpable(on: bool) -> None:
    """Whether others of this user may trace this process and read its ``/proc`` entries."""
    _libc.prctl(_PR_SET_DUMPABLE, int(on), 0, 0, 0)


def apply(memory_bytes: int, file_bytes: int, open_files: int, cpu_s: int) -> None:
    """Limit this process and what it starts, hard as soft but for the stack."""
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
        soft, hard = resource.getrlimit(what)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # Programs that recurse ask for an unlimited stack; the address space bounds it.
        most = hard if what == resource.RLIMIT_STACK else allowed
        # gVisor refuses to set some of them, also to what they are.
        if (soft, hard) != (allowed, most):
            resource.setrlimit(what, (allowed, most))


def _open_counter() -> tuple[int, bytes] | None:
    for path, key in _COUNTERS:
        with contextlib.suppress(OSError):
            return os.open(path, os.O_RDONLY), key
    return None


_counter = _open_counter()


def oom_kills() -> int | None:
    """Processes of this container that the kernel killed for memory; none where it does not say."""
    if _counter is None:
        return None
    fd, key = _counter
    for line in os.pread(fd, 4096, 0).splitlines():
        name, _, value = line.partition(b" ")
        if name == key:
            return int(value)
    return None


def own_state() -> tuple[object, ...]:
    """What another process of the same user could have changed of this one."""
    found: list[object] = [os.getpriority(os.PRIO_PROCESS, 0)]
    with contextlib.suppress(OSError):  # not every runtime has schedulers
        found += [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))]
    found += [resource.getrlimit(what) for what in range(16)]
    return tuple(found)


def prefer_for_oom() -> None:
    """Be what the kernel kills when memory runs out, not PID 1."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, b"1000")
    finally:
        os.close(fd)
