"""One supervised child process: its own session, its output in a log file, dead when the parent is dead."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gristmill.children import die_with_parent
from gristmill.errors import GristmillError

TAIL_LINES = 15
CHILDREN_S = 20.0
"""Seconds that children of an ended part may take to end, too; SGLang's scheduler frees its GPU meanwhile."""


def last_lines(lines: Sequence[str]) -> str:
    """The end of a log as part of a message."""
    return "\n".join(f"    {line}" for line in lines) or "    (it logged nothing)"


class PartDied(GristmillError):
    """A part of the line ended on its own; the message names it and shows its last log lines."""

    def __init__(self, name: str, status: int, log: Path, lines: Sequence[str]) -> None:
        self.name, self.status = name, status
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        super().__init__(f"{name} {how}. Its last log lines ({log}):\n{last_lines(lines)}")


@dataclass(slots=True)
class Part:
    """A part of the line: what to run, and where it tells how it is."""

    name: str
    command: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    metrics_port: int | None = None
    may_finish: bool = False
    """Whether exit status 0 means that its work is done, rather than that it died."""
    has_children: bool = False
    """Whether it starts processes of its own, which must not outlive it. Once asked to stop, it may end in any way:
    SGLang ends itself by SIGKILL."""
    _process: subprocess.Popen[bytes] | None = None
    _asked: bool = False

    def start(self) -> None:
        """Start it with output appended to its log file."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env},
                start_new_session=True,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 (one prctl call: takes no lock)
            )

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.poll()

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def finished(self) -> bool:
        """It did what it had to and ended."""
        return self.started and self.may_finish and self.status == 0

    def check(self) -> None:
        """Raises PartDied when it ended though it should run."""
        if self.started and self.status is not None and not self.finished:
            raise PartDied(self.name, self.status, self.log, self.tail())

    def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """Its last log lines."""
        if not self.log.exists():
            return []
        with self.log.open(encoding="utf-8", errors="replace") as log:
            return [line.rstrip("\n")[:400] for line in deque(log, maxlen=lines)]

    def ask_to_stop(self) -> None:
        """SIGTERM, once: a second one would end it at once, drained or not."""
        if self._process is not None and self._process.poll() is None and not self._asked:
            self._asked = True
            self._process.terminate()

    def stop(self, timeout_s: float) -> int | None:
        """SIGTERM, then SIGKILL to the whole session after ``timeout_s``; gives the exit status."""
        process = self._process
        if process is None:
            return None
        self.ask_to_stop()
        clean = True
        if process.poll() is None:
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                clean = False
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
        if self.has_children:
            end_group(process.pid, CHILDREN_S)
            return 0 if self._asked and clean else process.returncode
        return process.returncode


def end_group(group: int, timeout_s: float) -> None:
    """SIGTERM to what is left of a process group whose leader is gone, SIGKILL after ``timeout_s``, then wait."""
    if not group_members(group):
        return
    for number, patience in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, timeout_s)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        deadline = time.monotonic() + patience
        while group_members(group):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return


def group_members(group: int) -> list[int]:
    """Processes of a session that still do something; its zombies wait for whoever inherited them. Linux only: none
    elsewhere."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended meanwhile
        state, _parent, its_group, session = text.rpartition(")")[2].split()[:4]
        if int(its_group) == group == int(session) and state not in "ZX":
            found.append(int(folder.name))
    return found


def wait_until(ready: Callable[[], bool], parts: Sequence[Part], timeout_s: float, what: str) -> None:
    """Wait until ``ready`` says so, while all ``parts`` live.

    Raises:
        PartDied: one of the parts ended.
        GristmillError: not ready in time; the message shows the log of the last of the parts.
    """
    deadline = time.monotonic() + timeout_s
    while not ready():
        for part in parts:
            part.check()
        if time.monotonic() > deadline:
            last = parts[-1] if parts else None
            end = f". The last log lines of {last.name} ({last.log}):\n{last_lines(last.tail())}" if last else ""
            raise GristmillError(f"{what} was not ready after {timeout_s:.0f} s{end}")
        time.sleep(0.1)
