"""Service processes under test: started, waited for, terminated, killed; never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from support.kafka import die_with_parent

TESTS = Path(__file__).parents[1]


class Process:
    """A child process with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> None:
        path = f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        self.log = log
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, **(environ or {})},
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs."""
        return self._child.poll()

    def text(self) -> str:
        """Everything that it has written."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """``kill -9``."""
        self._child.kill()
        self._child.wait()

    def terminate(self) -> None:
        """SIGTERM; does not wait."""
        self._child.terminate()

    def wait(self, timeout: float = 30.0) -> int:
        return self._child.wait(timeout)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is None:
            self.kill()


def python(module: str, *arguments: str, log: Path, environ: Mapping[str, str] | None = None) -> Process:
    """``python -m module`` with ``tests/`` on the path, so ``support.…`` modules can be run."""
    return Process([sys.executable, "-m", module, *arguments], log, environ)


def gristmill(*arguments: str, log: Path, environ: Mapping[str, str] | None = None) -> Process:
    """The ``gristmill`` command."""
    return Process([sys.executable, "-m", "gristmill", *arguments], log, environ)


def wait_until(condition: Callable[[], bool], timeout: float = 30.0, what: str = "the condition") -> None:
    """Poll until true; fail loudly otherwise."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in {timeout} s"
        time.sleep(0.05)
