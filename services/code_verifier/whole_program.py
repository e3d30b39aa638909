"""Tests of a whole program: every case is a fresh process with its input on standard input.

The output is compared here, or by a checker that the judge runs. Nothing of the expected output is in the candidate's
container.
"""

from __future__ import annotations

import json
import time

from code_verifier import checkers
from code_verifier.bout import GRACE_S, OUT_OF_TURN, Bout, said_of_failure
from code_verifier.inside import frames
from code_verifier.job import Case, CodeStatus, Outcome, StdioTests, TestOutcome
from code_verifier.link import Ended, Message, Output, SandboxBroken, wait


class WholePrograms(Bout):
    """Whole-program runs."""

    checking = False
    """Whether a checker was begun whose end has not been heard of, though it may be over."""

    def run(self, tests: StdioTests) -> Outcome:
        """Every case on a fresh process."""
        found: tuple[CodeStatus, str] = ("passed", "")
        if not tests.cases:
            found = ("sandbox_error", "there are no tests")
        try:
            for case in tests.cases:
                begun = time.monotonic()
                status, reason, output = self._case(case)
                if status == "passed":
                    if tests.checker == "custom":
                        status, reason = self._custom(tests, case, output)
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
            if self.checking:
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
                known = said_of_failure(event.payload) if event.kind == frames.FAILED and said is None else None
                if known is None:
                    self.peak = max(self.peak, self.finish(link).peak)
                    return "runtime_error", OUT_OF_TURN, b""
                said = known
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

    def _custom(self, tests: StdioTests, case: Case, output: bytes) -> tuple[CodeStatus, str]:
        judge = self.judge
        if not self.checking:
            body = {"kind": "checker", "source": tests.checker_source or "", "stop": False}
            # Longer than the programs may take, with all that is swept up after them: each answer is waited for by
            # itself, and a checker that has no time left would look like one that is broken.
            judge.begin("judge", body, self.settings(self.limits.job_s + 2 * (GRACE_S + self.time_s)))
            self.checking = True
            answer = self._from_checker()
            if answer.kind != frames.READY:
                return self._refusal(answer)
        if case.expected.strip():
            # First the output that it should be: a checker that cannot take that is broken, whatever the program does.
            refused = self._control(case)
            if refused is not None:
                return refused
        answer = self._ask(case, output.decode(errors="replace"), control=False)
        if answer.kind != frames.TEST:
            return self._refusal(answer)
        _, status, reason, _ = json.loads(answer.payload)
        return status, reason

    def _ask(self, case: Case, output: str, control: bool) -> Message:
        self.judge.tell(frames.ASK, json.dumps([case.input, output, case.expected, control]).encode())
        return self._from_checker()

    def _control(self, case: Case) -> tuple[CodeStatus, str] | None:
        try:
            answer = self._ask(case, case.expected, control=True)
        except SandboxBroken as error:
            if self.checking:
                raise
            return "sandbox_error", f"on the expected output: {error.why}"
        if answer.kind != frames.TEST:
            return "sandbox_error", "the checker was not done with the expected output in time"
        _, status, reason, _ = json.loads(answer.payload)
        return ("sandbox_error", reason) if status == "sandbox_error" else None

    def _refusal(self, answer: Message) -> tuple[CodeStatus, str]:
        if answer.kind == frames.DONE:
            status, reason = json.loads(answer.payload)
            return status, reason
        return "time_limit", "the checker was not done with the output in time"

    def _from_checker(self) -> Message:
        deadline = time.monotonic() + self.time_s
        while True:
            wait((self.judge,), deadline)
            if not self.judge.has_event:
                self.checking = False
                self.finish(self.judge)
                return Message(0, b"")
            event = self.judge.next()
            if isinstance(event, Message):
                return event
            if isinstance(event, Ended):
                self.checking = False
                if event.why == "time":
                    return Message(0, b"")
                raise SandboxBroken("judge", f"the checker's child died: {self.limit_of(event)[1]}")
