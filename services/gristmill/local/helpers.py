"""``gristmill`` commands that the runner needs done before and after the line runs, and how a user stops them.

The first Ctrl-C or SIGTERM is a flag, so that whoever is waiting can clean up; a helper command runs in a session of
its own, so that the terminal's Ctrl-C does not reach it first, and ends with the runner.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from gristmill.children import die_with_parent
from gristmill.errors import GristmillError

POLL_S = 0.2
STOP_S = 5.0


class StoppedByUser(GristmillError):
    """Ctrl-C or SIGTERM came while something was being prepared or evaluated; the message says what."""


@dataclass(slots=True)
class Interrupt:
    """Set by the first Ctrl-C or SIGTERM; the second one has its usual effect."""

    requested: bool = False

    def check(self, doing: str) -> None:
        """Raises StoppedByUser when it is set."""
        if self.requested:
            raise StoppedByUser(f"stopped while {doing}")


@contextmanager
def catch_interrupt() -> Iterator[Interrupt]:
    """Turn the first SIGINT or SIGTERM into a flag."""
    state = Interrupt()
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        state.requested = True
        for number, handler in previous.items():
            signal.signal(number, handler)

    for number in previous:
        signal.signal(number, on_signal)
    try:
        yield state
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class Helpers:
    """Runs helper commands to their end."""

    interrupt: Interrupt
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of every command."""

    def run(self, arguments: Sequence[str], doing: str) -> str:
        """Run a ``gristmill`` command and give its standard output. ``doing`` says in messages what it is for.

        Raises:
            GristmillError: it failed; the message shows the end of its standard error.
            StoppedByUser: the user did not want to wait for it.
        """
        return self.run_all([arguments], doing)[0]

    def run_all(self, commands: Sequence[Sequence[str]], doing: str) -> list[str]:
        """Run ``gristmill`` commands side by side; as :meth:`run` else. The first failure ends the others."""
        self.interrupt.check(doing)
        processes: list[subprocess.Popen[str]] = []
        try:
            for arguments in commands:
                processes.append(self._start(arguments))
            return [self._finish(process, doing) for process in processes]
        finally:
            for process in processes:
                _end(process)

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            gristmill_command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.env},
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 (one prctl call: takes no lock)
        )

    def _finish(self, process: subprocess.Popen[str], doing: str) -> str:
        while True:
            try:
                out, err = process.communicate(timeout=POLL_S)
                break
            except subprocess.TimeoutExpired:
                self.interrupt.check(doing)
        if process.returncode != 0:
            tail = "\n".join(f"    {line}" for line in (err or out).strip().splitlines()[-15:])
            raise GristmillError(f"{doing} failed with status {process.returncode}:\n{tail}")
        return out

    def export_problems(self, config: Path, out: Path, *, count: int, split: str, source: str | None = None) -> None:
        """Write problems of the configured source with the line's own prompts to a JSONL file."""
        where = ["--config", str(config), "--out", str(out)]
        arguments = ["problems", "export", *where, "--n", str(count), "--split", split]
        if source is not None:
            arguments += ["--source", source]
        self.run(arguments, "exporting problems")


def gristmill_command(*arguments: str) -> list[str]:
    """The command line of another ``gristmill`` process under the same interpreter."""
    return [sys.executable, "-m", "gristmill", *arguments]


def _end(process: subprocess.Popen[str]) -> None:
    """SIGTERM, and SIGKILL to its session when that does not help; nothing but its pipes if it has ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
