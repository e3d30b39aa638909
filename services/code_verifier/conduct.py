"""One program against its tests, on a pair of idle containers: who may speak when, and what it means.

The candidate's side supplies values and the reasons of its own failures; nothing that it says can make a verdict of
``passed``, which takes the judge's word (or, for standard output, the comparison made by the verifier) and a candidate
that was still alive when the judge was done. A message out of turn is a runtime error of the program.

Every way out of :func:`run_job` leaves both containers idle and clean, or raises :class:`SandboxBroken`. A container
that should be retired although it answers says so in :attr:`Link.suspicion`.
"""

from __future__ import annotations

import json
import signal
import time
from typing import Any

from code_verifier.bout import GRACE_S, JUDGE_EXTRA_S, LEAVING_S, OUT_OF_TURN, Bout, said_of_failure
from code_verifier.inside import frames
from code_verifier.job import AssertTests, CallTests, CodeStatus, Job, Limits, Outcome, StdioTests, TestOutcome
from code_verifier.link import Ended, Event, Link, Message, Output, SandboxBroken, wait
from code_verifier.whole_program import WholePrograms

__all__ = ["SandboxBroken", "run_job"]

NESTING = 90
_STATUSES: frozenset[str] = frozenset(("passed", "wrong_answer", "runtime_error", "memory_limit", "sandbox_error"))


def run_job(candidate: Link, judge: Link, job: Job, limits: Limits) -> Outcome:
    """Run a job to its verdict; raises :class:`SandboxBroken`."""
    if isinstance(job.tests, StdioTests):
        return WholePrograms(candidate, judge, job, limits).run(job.tests)
    return Conversation(candidate, judge, job, limits).run(job.tests)


class Conversation(Bout):
    """Tests that call the program: judge and candidate take turns."""

    def __init__(self, candidate: Link, judge: Link, job: Job, limits: Limits) -> None:
        super().__init__(candidate, judge, job, limits)
        self.loaded = False
        self.imports: bytes | None = None
        self.opening: Message | None = None
        self.stack: list[Link] = []
        self.speaker: Link | None = None
        self.asked = False
        self.done = False
        self.test_started = self.started

    def run(self, tests: AssertTests | CallTests) -> Outcome:
        """To the verdict."""
        wall = min(self.time_s, self.limits.job_s)
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
                ends[link] = self.finish(link, LEAVING_S if self.done and link is self.judge else 0.0)
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
            if event.kind == frames.OPENING and self.imports is None and self.opening is None:
                self.opening = Message(frames.ASK, event.payload)
                return None
            return self._from_judge(event)
        if self.loaded:
            return self._violation()
        if event.kind == frames.READY:
            self.loaded = True
            self._go()
            return None
        if event.kind == frames.FAILED:
            return said_of_failure(event.payload) or self._violation()
        return self._violation()

    def _violation(self) -> tuple[CodeStatus, str]:
        return self._interrupted("runtime_error", OUT_OF_TURN)

    def _interrupted(self, status: CodeStatus, reason: str) -> tuple[CodeStatus, str]:
        if self.speaker is not None:
            self.tests.append(TestOutcome(len(self.tests), status, time.monotonic() - self.test_started, reason))
        return status, reason

    def _go(self) -> None:
        if self.loaded and self.imports is not None:
            self.candidate.tell(frames.GO, self.imports)
            self.speaker = self.judge
            self.test_started = time.monotonic()
            if self.opening is None:
                self.judge.tell(frames.GO, b"")
            else:
                self._relay(self.judge, self.opening)

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
                self._go()
                return None
            if message.kind == frames.TEST:
                index, status, reason, seconds = what
                if status not in _STATUSES:
                    raise ValueError(status)
                self.tests.append(TestOutcome(int(index), status, float(seconds), str(reason)))
                self.test_started = time.monotonic()
                return None
            if message.kind == frames.DONE:
                self.done = True
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

    def _tests_hang(self) -> bool:
        # A program that takes most of the time to load must not be able to make the tests seem slow.
        loading = self.test_started - self.started
        if self.loaded and self.imports is None:
            return True
        return self.speaker is self.judge and not self.asked and loading < min(self.time_s, self.limits.job_s) / 4

    def _ended(self, link: Link, ended: Ended) -> tuple[CodeStatus, str]:
        if ended.why == "time" and self._tests_hang():
            return "sandbox_error", f"the tests took more than {self.time_s:g} s by themselves"
        if link is self.candidate:
            return self._interrupted(*self.limit_of(ended))
        if ended.why == "time":
            return self._interrupted("time_limit", f"not done within {self.time_s:g} s")
        if ended.why == "output":
            if self.asked:
                return self._interrupted("output_limit", "the tests printed too much of what the program gave")
            return "sandbox_error", "the tests print too much"
        if ended.code is not None and ended.code >= 0 and not (self.asked and ended.code):
            # Nothing that a program supplies makes the judge leave with 0; an exit code of 1 can be its death.
            return "sandbox_error", f"the tests ended their own process with exit code {ended.code}"
        if self.asked and ended.code in {-signal.SIGKILL, -signal.SIGSEGV, None}:
            raise SandboxBroken("judge", f"its child died over what the program gave ({self.limit_of(ended)[1]})")
        raise SandboxBroken("judge", f"its child died: {self.limit_of(ended)[1]}")
