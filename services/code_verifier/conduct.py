"""One program against its tests, on a pair of idle containers: who may speak when, and what it means.

The candidate's side supplies values and the reasons of its own failures; nothing that it says can make a verdict of
``passed``, which takes the judge's word (or, for standard output, the comparison made here) and a candidate that was still
alive when the judge was done. A message out of turn is a runtime error of the program.

Every way out of :func:`run_job` leaves both containers idle and clean, or raises :class:`SandboxBroken`. A container that
should be retired although it answers says so in :attr:`Link.suspicion`.
"""

from __future__ import annotations

import json
import math
import signal
import time
from typing import Any

from code_verifier import checkers
from code_verifier.inside import frames
from code_verifier.job import (
    AssertTests,
    CallTests,
    Case,
    CodeStatus,
    Job,
    Limits,
    Outcome,
    StdioTests,
    TestOutcome,
)
from code_verifier.link import Ended, Event, Link, Message, Output, SandboxBroken, wait

__all__ = ["SandboxBroken", "run_job"]

GRACE_S = 8.0
"""How long a warden may take to kill, empty and report before its container counts as broken."""
JUDGE_EXTRA_S = 0.25
NESTING = 90
_STATUSES: frozenset[str] = frozenset(("passed", "wrong_answer", "runtime_error", "memory_limit", "sandbox_error"))
_LOADING: frozenset[str] = frozenset(("syntax_error", "runtime_error", "memory_limit"))


def run_job(candidate: Link, judge: Link, job: Job, limits: Limits) -> Outcome:
    """Run a job to its verdict; raises :class:`SandboxBroken`."""
    if isinstance(job.tests, StdioTests):
        return _Stdio(candidate, judge, job, limits).run(job.tests)
    return _Conversation(candidate, judge, job, limits).run(job.tests)


class _Kept:
    """Head and tail of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        room = self._limit // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self._limit:
            del self._tail[: len(self._tail) - self._limit // 2]

    def text(self) -> str:
        tail = self._tail[max(0, len(self._tail) - self._limit // 2) :] if self._limit else b""
        gap = self._total - len(self._head) - len(tail)
        between = f"\n[... {gap} bytes ...]\n".encode() if gap else b""
        if gap and not self._limit:
            return ""
        return (bytes(self._head) + between + bytes(tail)).decode(errors="replace")


class _Base:
    def __init__(self, candidate: Link, judge: Link, job: Job, limits: Limits) -> None:
        self.candidate = candidate
        self.judge = judge
        self.job = job
        self.limits = limits
        self.started = time.monotonic()
        self.time_s = job.time_s if job.time_s is not None else limits.time_s
        self.tests: list[TestOutcome] = []
        self.kept = {frames.OUT: _Kept(limits.kept_bytes), frames.ERR: _Kept(limits.kept_bytes)}
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

    def finish(self, link: Link) -> Ended:
        """End a run if it has not ended; the warden's account."""
        link.kill()
        deadline = time.monotonic() + GRACE_S
        while True:
            wait((link,), deadline)
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


class _Conversation(_Base):
    """Tests that call the program: judge and candidate take turns."""

    def run(self, tests: AssertTests | CallTests) -> Outcome:
        """To the verdict."""
        wall = min(self.time_s, self.limits.job_s)
        self.loaded = False
        self.imports: bytes | None = None
        self.stack: list[Link] = []
        self.speaker: Link | None = None
        self.asked = False
        self.test_started = self.started
        self.candidate.begin("functions", {"source": self.job.source}, self.settings(wall))
        self.judge.begin("judge", self._body(tests), self.settings(wall + JUDGE_EXTRA_S))
        ends: dict[Link, Ended] = {}
        found: tuple[CodeStatus, str] | None = None
        deadline = self.started + wall + GRACE_S
        links = (self.candidate, self.judge)
        while found is None:
            wait(links, deadline)
            ready = [link for link in links if link.has_event]
            if not ready:
                raise self.candidate.broken("its warden let the deadline pass")
            for link in ready:
                event = link.next()
                if isinstance(event, Ended):
                    ends[link] = event
                found = self._heard(link, event)
                if found is not None:
                    break
        for link in links:
            if link not in ends:
                ends[link] = self.finish(link)
        ended = ends[self.candidate]
        self.peak = ended.peak
        status, reason = found
        if status == "passed" and ended.why != "kill":
            status, reason = self.limit_of(ended)
        return self.outcome(status, reason)

    def _body(self, tests: AssertTests | CallTests) -> dict[str, Any]:
        stop = self.job.stop_at_first_failure
        if isinstance(tests, AssertTests):
            return {
                "kind": "asserts",
                "source": tests.source,
                "entry_point": tests.entry_point,
                "prelude": tests.prelude,
                "stop": stop,
            }
        return {
            "kind": "calls",
            "entry_point": tests.entry_point,
            "cases": [[case.input, case.expected] for case in tests.cases],
            "tolerance": tests.tolerance,
            "stop": stop,
        }

    def _heard(self, link: Link, event: Event) -> tuple[CodeStatus, str] | None:
        if isinstance(event, Output):
            if link is self.candidate:
                self.output(event)
            return None
        if isinstance(event, Ended):
            return self._ended(link, event)
        if not isinstance(event, Message):
            raise link.broken("its warden spoke out of turn")
        if event.kind in {frames.ASK, frames.ANSWER}:
            return self._relay(link, event)
        if link is self.judge:
            return self._from_judge(event)
        if self.loaded:
            return self._violation()
        if event.kind == frames.READY:
            self.loaded = True
            return self._go()
        if event.kind == frames.FAILED:
            try:
                status, reason = json.loads(event.payload)
            except ValueError:
                return self._violation()
            if status not in _LOADING:
                return self._violation()
            return status, str(reason)
        return self._violation()

    def _violation(self) -> tuple[CodeStatus, str]:
        return self._interrupted("runtime_error", "the program spoke on the verifier's channel, out of turn")

    def _interrupted(self, status: CodeStatus, reason: str) -> tuple[CodeStatus, str]:
        if self.speaker is not None:
            self.tests.append(TestOutcome(len(self.tests), status, time.monotonic() - self.test_started, reason))
        return status, reason

    def _go(self) -> None:
        if self.loaded and self.imports is not None:
            self.candidate.tell(frames.GO, self.imports)
            self.judge.tell(frames.GO, b"")
            self.speaker = self.judge
            self.test_started = time.monotonic()

    def _relay(self, link: Link, message: Message) -> tuple[CodeStatus, str] | None:
        other = self.candidate if link is self.judge else self.judge
        right = self.speaker is link
        if message.kind == frames.ANSWER:
            right = right and bool(self.stack) and self.stack[-1] is other
        else:
            right = right and len(self.stack) < NESTING
        if not right:
            if link is self.judge:
                raise link.broken("the judge spoke out of turn")
            return self._violation()
        if message.kind == frames.ASK:
            self.stack.append(link)
            self.asked = True
        else:
            self.stack.pop()
        self.speaker = other
        other.tell(message.kind, message.payload)
        return None

    def _from_judge(self, message: Message) -> tuple[CodeStatus, str] | None:
        try:
            what = json.loads(message.payload)
            if message.kind == frames.READY:
                self.imports = message.payload
                return self._go()
            if message.kind == frames.TEST:
                index, status, reason, seconds = what
                if status not in _STATUSES:
                    raise ValueError(status)
                self.tests.append(TestOutcome(int(index), status, float(seconds), str(reason)))
                self.test_started = time.monotonic()
                return None
            if message.kind == frames.DONE:
                status, reason = what
                if status is not None:
                    return status, str(reason)
                failed = next((test for test in self.tests if test.status != "passed"), None)
                if failed is not None:
                    return failed.status, failed.reason
                if not self.tests:
                    return "sandbox_error", "there are no tests"
                return "passed", ""
        except (ValueError, TypeError) as error:
            raise self.judge.broken(f"the judge spoke nonsense: {error}") from None
        raise self.judge.broken(f"the judge spoke out of turn: {message.kind}")

    def _ended(self, link: Link, ended: Ended) -> tuple[CodeStatus, str]:
        if link is self.candidate:
            return self._interrupted(*self.limit_of(ended))
        if ended.why == "time":
            if self.speaker is self.judge and not self.asked:
                return "sandbox_error", f"the tests took more than {self.time_s:g} s by themselves"
            return self._interrupted("time_limit", f"not done within {self.time_s:g} s")
        if ended.why == "output":
            return "sandbox_error", "the tests printed too much"
        if self.asked and ended.code in {-signal.SIGKILL, -signal.SIGSEGV, None}:
            raise SandboxBroken("judge", f"its child died over what the program gave ({self.limit_of(ended)[1]})")
        raise SandboxBroken("judge", f"its child died: {self.limit_of(ended)[1]}")


class _Stdio(_Base):
    """Whole-program runs."""

    def run(self, tests: StdioTests) -> Outcome:
        """Every case on a fresh process."""
        found: tuple[CodeStatus, str] = ("passed", "")
        if not tests.cases:
            found = ("sandbox_error", "there are no tests")
        checking = False
        try:
            for case in tests.cases:
                begun = time.monotonic()
                status, reason, output = self._case(case)
                if status == "passed":
                    if tests.checker == "custom":
                        status, reason = self._custom(tests, case, output, checking)
                        checking = self.judge.running
                    else:
                        why = checkers.check(tests.checker, output, case.expected)
                        if why is not None:
                            status, reason = "wrong_answer", why
                self.tests.append(TestOutcome(len(self.tests), status, time.monotonic() - begun, reason))
                if status != "passed":
                    found = (status, reason) if found[0] == "passed" else found
                    if self.job.stop_at_first_failure or status in {"syntax_error", "sandbox_error"}:
                        break
        finally:
            if self.judge.running:
                self.finish(self.judge)
        return self.outcome(*found)

    def _left(self) -> float:
        return self.limits.job_s - (time.monotonic() - self.started)

    def _case(self, case: Case) -> tuple[CodeStatus, str, bytes]:
        wall = min(self.time_s, self._left())
        if wall <= 0:
            return "time_limit", f"all tests together took more than {self.limits.job_s:g} s", b""
        self.received = 0
        output: list[bytes] = []
        said: tuple[CodeStatus, str] | None = None
        link = self.candidate
        link.begin("program", {"source": self.job.source, "input": case.input}, self.settings(wall))
        deadline = time.monotonic() + wall + GRACE_S
        while True:
            wait((link,), deadline)
            if not link.has_event:
                raise link.broken("its warden let the deadline pass")
            event = link.next()
            if isinstance(event, Ended):
                break
            if isinstance(event, Output):
                self.output(event)
                if event.kind == frames.OUT:
                    output.append(event.data)
            elif isinstance(event, Message):
                said = said or _said(event)
            else:
                raise link.broken("its warden spoke out of turn")
        self.peak = max(self.peak, event.peak)
        if event.why == "exit" and event.code == 0:
            return "passed", "", b"".join(output)
        if said is not None and event.why == "exit":
            return *said, b""
        status, reason = self.limit_of(event)
        if event.why == "exit" and (event.code or 0) > 0:
            reason = f"exit code {event.code}"
        return status, reason, b""

    def _custom(self, tests: StdioTests, case: Case, output: bytes, checking: bool) -> tuple[CodeStatus, str]:
        judge = self.judge
        if not checking:
            body = {"kind": "checker", "source": tests.checker_source or "", "stop": False}
            judge.begin("judge", body, self.settings(max(1.0, self._left()) + JUDGE_EXTRA_S))
            answer = self._from_checker()
            if answer.kind != frames.READY:
                return self._refusal(answer)
        judge.tell(frames.ASK, json.dumps([case.input, output.decode(errors="replace"), case.expected]).encode())
        answer = self._from_checker()
        if answer.kind != frames.TEST:
            return self._refusal(answer)
        _, status, reason, _ = json.loads(answer.payload)
        return status, reason

    def _refusal(self, answer: Message) -> tuple[CodeStatus, str]:
        if answer.kind == frames.DONE:
            status, reason = json.loads(answer.payload)
            return status, reason
        return "time_limit", "the checker was not done with the output in time"

    def _from_checker(self) -> Message:
        deadline = time.monotonic() + self.limits.job_s + GRACE_S
        while True:
            wait((self.judge,), deadline)
            if not self.judge.has_event:
                raise self.judge.broken("its warden let the deadline pass")
            event = self.judge.next()
            if isinstance(event, Message):
                return event
            if isinstance(event, Ended):
                if event.why == "time":
                    return Message(0, b"")
                raise SandboxBroken("judge", f"the checker's child died: {self.limit_of(event)[1]}")


def _said(message: Message) -> tuple[CodeStatus, str] | None:
    """Why the program's child says it failed. A program can write this itself: it only names a failure."""
    if message.kind != frames.FAILED:
        return None
    try:
        status, reason = json.loads(message.payload)
    except ValueError:
        return None
    return (status, str(reason)) if status in _LOADING else None
