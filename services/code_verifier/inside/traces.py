"""What the kernel keeps of programs that are gone, beside files: sockets that linger, numbers that go on, times of
devices. The next program could read it, and the ports of the lingering are not free.

Sockets, and the network's counts of what went through them, are a reason to throw the container away. Numbers (of
processes, of the files of a mount) cannot be set back: where a program has moved them by a few, a random number more
are used up, so that they tell nothing; where by many, the container goes. Times are set to now after every program.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable
from functools import partial

MOVES = 16
"""Processes, or files of a mount, that a program may make before its container is thrown away."""
FILES = 256
_COUNTERS = ("/proc/net/dev", "/proc/net/snmp", "/proc/net/snmp6")


def _opened(paths: Iterable[str]) -> list[int]:
    found: list[int] = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append(os.open(path, os.O_RDONLY))
    return found


def _devices() -> list[str]:
    found: list[str] = []
    for folder, _, names in os.walk("/dev"):
        for path in (f"{folder}/{name}" for name in names):
            with contextlib.suppress(OSError):
                if stat.S_ISCHR(os.lstat(path).st_mode) and os.access(path, os.W_OK):
                    found.append(path)
    return found


class Traces:
    """Looks for them, and removes what can be removed.

    Args:
        mounts: the directories of the writable mounts.
    """

    def __init__(self, mounts: Iterable[str]) -> None:
        self._mounts = list(mounts)
        self._timed = [*self._mounts, *_devices()]
        self._network = [(fd, os.pread(fd, 1 << 16, 0)) for fd in _opened(_COUNTERS)]
        self._load = next(iter(_opened(["/proc/loadavg"])), -1)
        self._process = self._last_process()
        self._files: dict[str, int] = {}
        for mount in self._mounts:
            with contextlib.suppress(OSError):  # where no file can be made, as no message queue can
                self._files[mount] = _next_file(mount)

    def clear(self) -> str | None:
        """After a program, when no process and no file is left; what could not be cleared, in words."""
        try:
            # No short cut: each of them takes note of how things stand now.
            left = [self._used_network(), self._processes(), self._file_numbers()]
            for path in self._timed:
                os.utime(path)
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return next(filter(None, left), None)

    def _used_network(self) -> str | None:
        if all(os.pread(fd, 1 << 16, 0) == before for fd, before in self._network):
            return None
        return "the network was used: it counts, and its sockets may linger"

    def _last_process(self) -> int:
        return int(os.pread(self._load, 256, 0).split()[-1]) if self._load >= 0 else 0

    def _processes(self) -> str | None:
        moved = self._last_process() - self._process
        self._process += moved
        if moved < 0 or moved > 1 + MOVES:
            return f"process numbers have moved by {moved}"
        if moved > 1:
            _some(MOVES, _use_up_process)
            self._process = self._last_process()
        return None

    def _file_numbers(self) -> str | None:
        for mount, last in self._files.items():
            now = _next_file(mount)
            moved = now - last
            self._files[mount] = now
            if moved < 0 or moved > 2 + FILES:
                return f"file numbers of {mount} have moved by {moved}"
            if moved > 2:  # this look at them, and the program's folder
                _some(FILES, partial(_next_file, mount))
                self._files[mount] = _next_file(mount)
        return None


def _next_file(mount: str) -> int:
    path = f"{mount}/.gristmill"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY, 0o600)
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)
        os.unlink(path)  # noqa: PTH108


def _use_up_process() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _some(most: int, use_up: Callable[[], object]) -> None:
    for _ in range(int.from_bytes(os.urandom(2), "big") % most):
        use_up()
