"""What a program can leave behind in its container, and how it is removed.

Processes are the supervisor's business. Here: files of every writable mount, whatever their modes and depth, and System
V IPC objects (POSIX message queues and shared memory are files of such mounts, or forbidden).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import time
from pathlib import Path

WORK = "/tmp/work"  # noqa: S108 - the container's own
SECONDS = 5.0
_IPC_RMID = 0
_SKIPPED = frozenset(("proc", "sysfs", "cgroup", "cgroup2", "devpts"))
_libc = ctypes.CDLL(None, use_errno=True)


class Litter(Exception):
    """Something could not be removed."""


def writable_mounts() -> dict[str, int]:
    """Mount points (directories) this user may write to, with their modes."""
    found: dict[str, int] = {}
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split(" ")[4].replace("\\040", " ")
        if rest.split(" ")[0] not in _SKIPPED and Path(point).is_dir() and os.access(point, os.W_OK):
            found[point] = stat.S_IMODE(os.stat(point).st_mode)  # noqa: PTH116
    return found


def empty(point: str, mode: int, deadline: float) -> None:
    """Remove all that is in a directory. Subdirectories are moved to the top before they are emptied, so depth needs
    neither recursion nor long paths."""
    info = os.stat(point)  # noqa: PTH116
    if stat.S_IMODE(info.st_mode) != mode:
        os.chmod(point, mode)  # noqa: PTH101
    top = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        names = os.listdir(top)  # noqa: PTH208
        moved = 0
        while names:
            for name in names:
                if time.monotonic() > deadline:
                    raise Litter(f"{point}: too much to remove")
                moved = _remove(top, name, moved)
            names = os.listdir(top)  # noqa: PTH208
    finally:
        os.close(top)


def _remove(top: int, name: str, moved: int) -> int:
    try:
        os.unlink(name, dir_fd=top)
        return moved
    except (IsADirectoryError, PermissionError):
        pass
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=top)
        return moved
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for entry in os.listdir(inner):  # noqa: PTH208
            try:
                os.unlink(entry, dir_fd=inner)
            except (IsADirectoryError, PermissionError):
                try:
                    os.rmdir(entry, dir_fd=inner)
                except OSError:
                    os.chmod(entry, 0o700, dir_fd=inner)
                    while True:
                        moved += 1
                        try:
                            os.rename(entry, f".gristmill-{moved}", src_dir_fd=inner, dst_dir_fd=top)
                            break
                        except OSError as error:
                            if moved > 10_000_000:
                                raise Litter(str(error)) from None
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return moved


def ipc_tables() -> dict[str, int]:
    """The kernel's tables of System V IPC objects of this container's namespace, open."""
    found: dict[str, int] = {}
    for kind in _REMOVE:
        with contextlib.suppress(OSError):
            found[kind] = os.open(f"/proc/sysvipc/{kind}", os.O_RDONLY)
    return found


_REMOVE = {
    "shm": lambda number: _libc.shmctl(number, _IPC_RMID, None),
    "sem": lambda number: _libc.semctl(number, 0, _IPC_RMID, 0),
    "msg": lambda number: _libc.msgctl(number, _IPC_RMID, None),
}


def remove_ipc(tables: dict[str, int]) -> None:
    """Remove System V shared memory, semaphores and message queues."""
    for kind, fd in tables.items():
        rows = os.pread(fd, 1 << 16, 0).splitlines()[1:]
        for row in rows:
            _REMOVE[kind](int(row.split()[1]))
        if rows and len(os.pread(fd, 1 << 16, 0).splitlines()) > 1:
            raise Litter(f"System V IPC objects ({kind}) are left")


def clean(mounts: dict[str, int], tables: dict[str, int]) -> str | None:
    """Remove everything; what could not be, in words."""
    deadline = time.monotonic() + SECONDS
    try:
        for point, mode in mounts.items():
            empty(point, mode, deadline)
        remove_ipc(tables)
    except (Litter, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return None
