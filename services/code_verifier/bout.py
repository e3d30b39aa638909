"""What every run of a program on a pair of containers has in common: settings, kept output, the end."""

from __future__ import annotations

import json
import math
import signal
import time
from typing import Any

from code_verifier.inside import frames
from code_verifier.job import CodeStatus, Job, Limits, Outcome, TestOutcome
from code_verifier.link import Ended, Link, Output, wait

GRACE_S = 15.0
"""How long a warden may take to kill, empty and report before its container counts as broken."""
JUDGE_EXTRA_S = 0.25
LEAVING_S = 1.0
"""How long a judge that is done may take to leave before it is ended."""
OUT_OF_TURN = "the program spoke on the verifier's channel, out of turn"


def said_of_failure(payload: bytes) -> tuple[CodeStatus, str] | None:
    """Why a child says that its program failed; none for nonsense. The program can write this itself: it can only name
    a failure."""
    if len(payload) > frames.FAILED_LIMIT:
        return None
    try:
        said = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    match said:
        case [("syntax_error" | "runtime_error" | "memory_limit") as status, str(reason)]:
            return status, reason[:4000]
    return None


class Kept:
    """Head and tail of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        """More of it."""
        self._total += len(data)
        room = self._limit // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self._limit:
            del self._tail[: len(self._tail) - self._limit // 2]

    def text(self) -> str:
        """What was kept, with a note of what was not; bytes that are not UTF-8 are replaced."""
        tail = self._tail[max(0, len(self._tail) - self._limit // 2) :] if self._limit else b""
        gap = self._total - len(self._head) - len(tail)
        between = f"\n[... {gap} bytes ...]\n".encode() if gap else b""
        if gap and not self._limit:
            return ""
        return (bytes(self._head) + between + bytes(tail)).decode(errors="replace")


class Bout:
    """One job on two idle containers."""

    def __init__(self, candidate: Link, judge: Link, job: Job, limits: Limits) -> None:
        self.candidate = candidate
        self.judge = judge
        self.job = job
        self.limits = limits
        self.started = time.monotonic()
        self.time_s = job.time_s if job.time_s is not None else limits.time_s
        self.tests: list[TestOutcome] = []
        self.kept = {frames.OUT: Kept(limits.kept_bytes), frames.ERR: Kept(limits.kept_bytes)}
        self.peak = 0
        self.received = 0

    def settings(self, wall_s: float) -> dict[str, Any]:
        """What a warden is told of a run."""
        limits = self.limits
        return {
            "wall_s": wall_s,
            "cpu_s": 2 * math.ceil(wall_s) + 2,
            "memory_bytes": limits.memory_bytes,
            "output_bytes": limits.output_bytes,
            "file_bytes": limits.file_bytes,
            "open_files": limits.open_files,
        }

    def output(self, event: Output) -> None:
        """Keep some of the candidate's output."""
        self.received += len(event.data)
        if self.received > 2 * self.limits.output_bytes:
            raise self.candidate.broken("more output than its warden lets through")
        self.kept[event.kind].add(event.data)

    def outcome(self, status: CodeStatus, reason: str) -> Outcome:
        """What was found, with all that was kept."""
        return Outcome(
            status,
            reason,
            tuple(self.tests),
            self.kept[frames.OUT].text(),
            self.kept[frames.ERR].text(),
            time.monotonic() - self.started,
            self.peak,
        )

    def finish(self, link: Link, leaving_s: float = 0.0) -> Ended:
        """End a run if it has not ended; the warden's account. Its child is given ``leaving_s`` to leave by itself."""
        if not leaving_s:
            link.kill()
        deadline = time.monotonic() + (leaving_s or GRACE_S)
        while True:
            wait((link,), deadline)
            if not link.has_event and leaving_s:
                return self.finish(link)
            if not link.has_event:
                raise link.broken(f"not idle within {GRACE_S:g} s")
            event = link.next()
            if isinstance(event, Ended):
                return event
            if isinstance(event, Output) and link is self.candidate:
                self.output(event)

    def limit_of(self, ended: Ended) -> tuple[CodeStatus, str]:
        """Status and reason of a candidate's child that ended before it was told to."""
        if ended.why == "time":
            return "time_limit", f"not done within {self.time_s:g} s"
        if ended.why == "output":
            return "output_limit", f"more than {self.limits.output_bytes} bytes of output"
        code = ended.code
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            if code == -signal.SIGKILL and (ended.oom or ended.peak > 0.9 * self.limits.memory_bytes):
                return "memory_limit", "killed for want of memory"
            if code == -signal.SIGXCPU:
                return "time_limit", "used up its processor time"
            return "runtime_error", f"killed by {name}"
        if code is None:
            return "runtime_error", "closed its channel"
        return "runtime_error", f"ended itself with exit code {code} before the tests were done"
