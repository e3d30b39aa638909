"""The conversation, with wardens that are played by the test: what is out of turn, late, broken, or a lie."""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stage import CALL, JOB, SUM, Script, Stage, Warden, asking, honest, judging, loaded, waiting

from code_verifier.conduct import SandboxBroken, run_job
from code_verifier.inside import frames
from code_verifier.job import AssertTests, Case, Job, Limits, StdioTests
from code_verifier.link import Link, Message, Note, Output, wait


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def test_passed(stage: Stage) -> None:
    outcome = stage.run(honest, judging)
    assert outcome.status == "passed"
    assert [test.status for test in outcome.tests] == ["passed"]


LIES: dict[str, Script] = {
    "verdict": lambda w: w.say(frames.DONE, b'[null,""]'),
    "test": lambda w: w.say(frames.TEST, b'[0,"passed","",0]'),
    "ready-again": lambda w: w.say(frames.READY),
    "unknown": lambda w: w.say(99, b"x"),
    "huge": lambda w: w.frame(frames.DATA, struct.pack(">IB", 1 << 31, frames.ANSWER)),
    "answer-twice": lambda w: (w.say(frames.ANSWER, b"5"), w.say(frames.ANSWER, b"5"))[0],
    "failed-late": lambda w: w.say(frames.FAILED, b'["passed",""]'),
}


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_candidate_out_of_turn(stage: Stage, lie: str) -> None:
    def script(warden: Warden) -> None:
        loaded(warden)
        warden.until(frames.ASK)
        LIES[lie](warden)
        warden.obey()

    outcome = stage.run(script, asking)
    assert outcome.status == "runtime_error"
    assert "out of turn" in outcome.reason


@pytest.mark.parametrize(
    "message",
    [
        (frames.DONE, b'[null,""]'),
        (frames.TEST, b'[0,"passed","",0]'),
        (frames.ASK, b"x"),
        (frames.ANSWER, b"x"),
        (frames.FAILED, b'["passed",""]'),
        (frames.FAILED, b'["sandbox_error",""]'),
        (frames.FAILED, b'["no_code",""]'),
        (frames.FAILED, b"["),
        (frames.FAILED, b"5"),
        (frames.FAILED, b'[[],""]'),
    ],
)
def test_candidate_lies_while_loading(stage: Stage, message: tuple[int, bytes]) -> None:
    def script(warden: Warden) -> None:
        warden.until(frames.BODY)
        warden.say(*message)
        warden.obey()

    assert stage.run(script, waiting).status == "runtime_error"


def test_candidate_says_why_it_does_not_load(stage: Stage) -> None:
    def script(warden: Warden) -> None:
        warden.until(frames.BODY)
        warden.say(frames.FAILED, b'["syntax_error","line 1"]')
        warden.obey()

    outcome = stage.run(script, waiting)
    assert (outcome.status, outcome.reason) == ("syntax_error", "line 1")


def test_speaking_before_the_judge_is_ready(stage: Stage) -> None:
    def script(warden: Warden) -> None:
        warden.until(frames.BODY)
        warden.say(frames.READY)
        warden.say(frames.ANSWER, b'["ok",5,[],null]')
        warden.obey()

    assert stage.run(script, waiting).status == "runtime_error"


@pytest.mark.parametrize(
    ("account", "status"),
    [
        ({"why": "exit", "code": 0}, "runtime_error"),
        ({"why": "exit", "code": 1}, "runtime_error"),
        ({"why": "exit", "code": -11}, "runtime_error"),
        ({"why": "exit", "code": -9}, "runtime_error"),
        ({"why": "exit", "code": -9, "oom": True}, "memory_limit"),
        ({"why": "exit", "code": -9, "peak": 520 << 20}, "memory_limit"),
        ({"why": "exit", "code": -24}, "time_limit"),
        ({"why": "exit", "code": -60}, "runtime_error"),
        ({"why": "channel"}, "runtime_error"),
        ({"why": "time"}, "time_limit"),
        ({"why": "output"}, "output_limit"),
    ],
)
def test_how_the_candidate_ends(stage: Stage, account: dict[str, Any], status: str) -> None:
    def script(warden: Warden) -> None:
        loaded(warden)
        warden.until(frames.ASK)
        warden.ended(**account)

    outcome = stage.run(script, asking)
    assert outcome.status == status
    assert [test.status for test in outcome.tests] == [status]


def test_candidate_that_ended_before_the_judge_was_done_does_not_pass(stage: Stage) -> None:
    def script(warden: Warden) -> None:
        loaded(warden)
        warden.until(frames.ASK)
        warden.say(frames.ANSWER, b'["ok",5,[],null]')
        warden.until(frames.KILL)
        warden.ended("exit", code=0)

    assert stage.run(script, judging).status == "runtime_error"


def test_judge_that_hangs_by_itself_says_nothing_of_the_program(stage: Stage) -> None:
    def judge(warden: Warden) -> None:
        loaded(warden, b"[]")
        warden.ended("time")

    def candidate(warden: Warden) -> None:
        loaded(warden)
        warden.obey()

    assert stage.run(candidate, judge, dataclasses.replace(JOB, time_s=60.0)).status == "sandbox_error"


def test_slow_loading_does_not_make_the_tests_hang(stage: Stage) -> None:
    """No verdict in place of a bad one, for a program that sleeps until just before the deadline."""

    def candidate(warden: Warden) -> None:
        warden.until(frames.BODY)
        time.sleep(0.3)
        warden.say(frames.READY)
        warden.until(frames.GO)
        warden.ended("time")

    assert stage.run(candidate, waiting).status == "time_limit"


def test_judge_that_hangs_on_a_value_is_the_programs_time(stage: Stage) -> None:
    def judge(warden: Warden) -> None:
        loaded(warden, b"[]")
        warden.say(frames.ASK, CALL)
        warden.until(frames.ANSWER)
        warden.ended("time")

    assert stage.run(honest, judge).status == "time_limit"


BROKEN_JUDGES: dict[str, Script] = {
    "dies": lambda w: w.ended("exit", code=-9),
    "answers": lambda w: w.say(frames.ANSWER, b""),
    "nonsense-test": lambda w: w.say(frames.TEST, b"{}"),
    "nonsense-status": lambda w: w.say(frames.TEST, b'[0,"maybe","",0]'),
    "unknown": lambda w: w.say(99),
    "gone": lambda w: w._sock.shutdown(socket.SHUT_RDWR),
    "no-frame": lambda w: w.raw(b"\xff" * 64),
    "no-docker": lambda w: w._sock.sendall(b"\xff" * 64),
    "no-account": lambda w: w.frame(frames.ENDED, b"{}"),
    "odd-code": lambda w: w.ended(code="0"),
    "odd-peak": lambda w: w.ended(peak=float("inf")),
    "deep-account": lambda w: w.frame(frames.ENDED, b"[" * 60_000),
}


@pytest.mark.parametrize("how", BROKEN_JUDGES, ids=str)
def test_broken_judge(stage: Stage, how: str) -> None:
    def judge(warden: Warden) -> None:
        loaded(warden, b"[]")
        BROKEN_JUDGES[how](warden)
        warden.obey()

    def candidate(warden: Warden) -> None:
        loaded(warden)
        warden.obey()

    with pytest.raises(SandboxBroken) as caught:
        stage.run(candidate, judge)
    assert caught.value.which == "judge"


def test_warden_that_lets_the_deadline_pass(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("code_verifier.conduct.GRACE_S", 0.2)

    def script(warden: Warden) -> None:
        warden.hear()

    with pytest.raises(SandboxBroken, match="deadline"):
        stage.run(script, waiting, Job("", AssertTests(""), time_s=0.2))


def test_warden_that_does_not_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("code_verifier.bout.GRACE_S", 0.2)

    def script(warden: Warden) -> None:
        loaded(warden)
        warden.until(frames.ASK)
        warden.say(frames.ANSWER, b'["ok",5,[],null]')
        warden.until(frames.KILL)

    with pytest.raises(SandboxBroken, match="not idle") as caught:
        stage.run(script, judging)
    assert caught.value.which == "candidate"


def test_what_the_warden_says_on_standard_error_is_told(stage: Stage) -> None:
    def script(warden: Warden) -> None:
        warden.raw(b"Traceback: boom", 2)
        warden._sock.shutdown(socket.SHUT_RDWR)

    with pytest.raises(SandboxBroken, match="boom"):
        stage.run(script, waiting)


def test_warden_that_is_not_idle(stage: Stage) -> None:
    def script(warden: Warden) -> None:
        warden.idle = False
        warden.until(frames.KILL)

    with pytest.raises(SandboxBroken, match="not idle before"):
        stage.run(script, waiting)


def test_what_was_said_before_the_run(stage: Stage) -> None:
    """A program of an earlier run that could write to its warden's output."""

    def script(warden: Warden) -> None:
        warden.ended()
        honest(warden)

    with pytest.raises(SandboxBroken, match="not idle before"):
        stage.run(script, judging)


def test_unclean_container_is_suspected(stage: Stage) -> None:
    def script(warden: Warden) -> None:
        loaded(warden)
        warden.until(frames.ASK)
        warden.say(frames.ANSWER, b'["ok",5,[],null]')
        warden.until(frames.KILL)
        warden.ended(unclean="processes that do not die")

    assert stage.run(script, judging).status == "passed"
    assert stage.links[0].suspicion == "processes that do not die"
    assert stage.links[1].suspicion is None


def test_kept_output_is_bounded(stage: Stage) -> None:
    limits = Limits(time_s=5.0, kept_bytes=100, output_bytes=1 << 20)

    def script(warden: Warden) -> None:
        warden.hear()
        warden.frame(frames.OUT, b"first" + b"x" * 50_000)
        warden.frame(frames.OUT, b"\xff" * 50_000 + b"last")
        warden.frame(frames.ERR, b"error")
        honest(warden)

    outcome = stage.run(script, judging, JOB, limits)
    assert outcome.stdout.startswith("first")
    assert outcome.stdout.endswith("last")
    assert len(outcome.stdout) < 200
    assert outcome.stderr == "error"


def test_candidate_warden_that_lets_too_much_through(stage: Stage) -> None:
    def script(warden: Warden) -> None:
        warden.hear()
        while True:
            warden.frame(frames.OUT, b"x" * 60_000)

    with pytest.raises(SandboxBroken, match="more output"):
        stage.run(script, waiting, JOB, Limits(output_bytes=100_000))


def test_large_messages_pass_both_ways(stage: Stage) -> None:
    size = 3 << 20
    seen: list[int] = []

    def candidate(warden: Warden) -> None:
        loaded(warden)
        seen.append(len(warden.until(frames.ASK)))
        warden.say(frames.ANSWER, b"y" * size)
        warden.obey()

    def judge(warden: Warden) -> None:
        loaded(warden, b"[]")
        warden.say(frames.ASK, b"x" * size)
        seen.append(len(warden.until(frames.ANSWER)))
        warden.say(frames.DONE, b'["wrong_answer","no"]')
        warden.obey()  # one that does not leave by itself is ended

    assert stage.run(candidate, judge, JOB, Limits(time_s=10.0)).status == "wrong_answer"
    assert seen == [size, size]


def test_callbacks_keep_turns(stage: Stage) -> None:
    def candidate(warden: Warden) -> None:
        loaded(warden)
        warden.until(frames.ASK)
        warden.say(frames.ASK, b"back")
        warden.until(frames.ANSWER)
        warden.say(frames.ANSWER, b"5")
        warden.obey()

    def judge(warden: Warden) -> None:
        loaded(warden, b"[]")
        warden.say(frames.ASK, b"call")
        assert warden.until(frames.ASK) == b"back"
        warden.say(frames.ANSWER, b"1")
        warden.until(frames.ANSWER)
        warden.say(frames.TEST, b'[0,"passed","",0.1]')
        warden.say(frames.DONE, b'[null,""]')
        warden.ended("exit", code=0)

    assert stage.run(candidate, judge).status == "passed"


def test_nothing_expected_goes_to_the_candidate(stage: Stage) -> None:
    got: list[bytes] = []

    def candidate(warden: Warden) -> None:
        warden.hear()
        warden.say(frames.READY)
        while True:
            _, kind, payload = warden.hear()
            got.append(payload)
            if kind == frames.ASK:
                warden.say(frames.ANSWER, b'["ok",5,[],null]')
            if kind == frames.KILL:
                warden.ended()

    job = Job(
        "def add(a, b): ...", AssertTests("assert add(2, 3) == 'expected-value'", "add", "prelude-text"), time_s=1.0
    )
    stage.run(candidate, judging, job)
    assert b"def add" in b"".join(got)
    assert b"expected-value" not in b"".join(got)
    assert b"prelude-text" not in b"".join(got)


def test_whole_program_gets_its_input_and_nothing_else(stage: Stage) -> None:
    got: list[bytes] = []

    def candidate(warden: Warden) -> None:
        got.append(warden.until(frames.BODY))
        warden.frame(frames.OUT, b"5\n")
        warden.ended("exit", code=0)
        got.append(warden.until(frames.KILL))

    job = Job("print(5)", StdioTests((Case("the input", "5"),)), time_s=1.0)
    assert stage.run(candidate, waiting, job).status == "passed"
    assert json.loads(got[0]) == {"source": "print(5)", "input": "the input"}


@pytest.mark.parametrize(
    ("said", "account", "status"),
    [
        (b'["syntax_error","x"]', {"why": "exit", "code": 1}, "syntax_error"),
        (b'["memory_limit","x"]', {"why": "exit", "code": 1}, "memory_limit"),
        (b'["passed","x"]', {"why": "exit", "code": 1}, "runtime_error"),
        (b"nonsense", {"why": "exit", "code": 1}, "runtime_error"),
        (b"5", {"why": "exit", "code": 1}, "runtime_error"),
        (b'["syntax_error","x"]', {"why": "time"}, "time_limit"),
        (None, {"why": "exit", "code": 3}, "runtime_error"),
        (None, {"why": "output"}, "output_limit"),
    ],
)
def test_how_a_whole_program_fails(stage: Stage, said: bytes | None, account: dict[str, Any], status: str) -> None:
    def candidate(warden: Warden) -> None:
        warden.until(frames.BODY)
        warden.frame(frames.OUT, b"5\n")
        if said is not None:
            warden.say(frames.FAILED, said)
        warden.ended(**account)

    assert stage.run(candidate, waiting, SUM).status == status


@pytest.mark.parametrize(
    "messages",
    [
        [(frames.READY, b"")],
        [(frames.FAILED, b"")],
        [(frames.FAILED, b"[" * 10_000)],
        [(frames.FAILED, json.dumps(["runtime_error", "x" * (1 << 20)]).encode())],
        [(frames.FAILED, b'["passed", ""]')],
        [(frames.FAILED, b'["runtime_error", ""]')] * 2,
    ],
    ids=["ready", "empty", "nonsense", "large", "passed", "twice"],
)
def test_whole_program_that_speaks(stage: Stage, messages: list[tuple[int, bytes]]) -> None:
    """The first message that is not its one word of failure ends the run; what comes after it is not read."""

    def script(warden: Warden) -> None:
        warden.until(frames.BODY)
        warden.frame(frames.OUT, b"5\n")
        for kind, payload in messages:
            warden.say(kind, payload)
        for _ in range(2000):
            warden.say(99)
        warden.until(frames.KILL)
        warden.say(99)
        warden.ended()

    outcome = stage.run(script, waiting, SUM)
    assert outcome.status == "runtime_error"
    assert "out of turn" in outcome.reason


def test_whole_job_has_a_deadline(stage: Stage) -> None:
    job = Job("print(5)", StdioTests((Case("", "5"),) * 3), time_s=1.0)

    def candidate(warden: Warden) -> None:
        for _ in range(3):
            warden.until(frames.BODY)
            time.sleep(0.15)
            warden.frame(frames.OUT, b"5\n")
            warden.ended("exit", code=0)

    outcome = stage.run(candidate, waiting, job, Limits(job_s=0.2))
    assert outcome.status == "time_limit"
    assert [test.status for test in outcome.tests] == ["passed", "passed", "time_limit"]


def test_early_stop_and_going_on(stage: Stage) -> None:
    def candidate(warden: Warden) -> None:
        while True:
            warden.until(frames.BODY)
            warden.frame(frames.OUT, b"5\n")
            warden.ended("exit", code=0)

    tests = StdioTests((Case("", "4"), Case("", "5")))
    first = stage.run(candidate, waiting, Job("", tests, time_s=1.0))
    assert [test.status for test in first.tests] == ["wrong_answer"]
    both = stage.run(candidate, waiting, Job("", tests, stop_at_first_failure=False, time_s=1.0))
    assert [test.status for test in both.tests] == ["wrong_answer", "passed"]
    assert both.status == "wrong_answer"


def test_link_waits_for_any_and_sends_meanwhile() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = Link(ours, "candidate")
        warden = Warden(theirs)
        link.ping()
        wait((link,), time.monotonic() + 0.01)
        assert not link.has_event
        theirs.recv(99)
        data = (
            frames.pack(frames.HELLO, b'{"uid":5}')
            + frames.pack(frames.OUT, b"a")
            + frames.pack(frames.DATA, frames.pack(7, b"b"))
        )
        for at in range(len(data)):  # byte by byte, in Docker frames of one byte
            warden.raw(data[at : at + 1])
        events = []
        while len(events) < 3:
            wait((link,), time.monotonic() + 5)
            events.append(link.next())
        assert events == [Note(frames.HELLO, {"uid": 5}), Output(frames.OUT, b"a"), Message(7, b"b")]
        theirs.shutdown(socket.SHUT_RDWR)
        wait((link,), time.monotonic() + 5)
        with pytest.raises(SandboxBroken, match="ended"):
            link.next()


def test_hello_that_does_not_come() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(SandboxBroken, match="no sign of life"):
        Link(ours, "candidate").hello(0.05)


def test_first_request_goes_along_with_go(stage: Stage) -> None:
    def candidate(warden: Warden) -> None:
        warden.until(frames.BODY)
        warden.say(frames.READY)
        assert warden.hear()[1:] == (frames.GO, b"[]")
        assert warden.hear()[1:] == (frames.ASK, b"first")
        warden.say(frames.ANSWER, b"1")
        warden.obey()

    def judge(warden: Warden) -> None:
        warden.until(frames.BODY)
        warden.say(frames.OPENING, b"first")
        warden.say(frames.READY, b"[]")
        assert warden.hear()[1:] == (frames.ANSWER, b"1")
        warden.say(frames.TEST, b'[0,"passed","",0.1]')
        warden.say(frames.DONE, b'[null,""]')
        warden.ended("exit", code=0)

    assert stage.run(candidate, judge).status == "passed"


@pytest.mark.parametrize("kinds", [(frames.OPENING, frames.OPENING), (frames.READY, frames.OPENING)])
def test_first_request_out_of_turn(stage: Stage, kinds: tuple[int, int]) -> None:
    def judge(warden: Warden) -> None:
        warden.until(frames.BODY)
        for kind in kinds:
            warden.say(kind, b"[]")
        warden.obey()

    with pytest.raises(SandboxBroken, match="out of turn"):
        stage.run(waiting, judge)


def test_first_request_is_the_judges_only(stage: Stage) -> None:
    def candidate(warden: Warden) -> None:
        warden.until(frames.BODY)
        warden.say(frames.OPENING, b"first")
        warden.obey()

    assert "out of turn" in stage.run(candidate, waiting).reason


def test_tests_that_are_not_ready_in_time_are_at_fault(stage: Stage) -> None:
    def candidate(warden: Warden) -> None:
        warden.until(frames.BODY)
        warden.say(frames.READY)
        warden.ended("time")

    def judge(warden: Warden) -> None:
        warden.until(frames.BODY)
        warden.obey()

    outcome = stage.run(candidate, judge)
    assert (outcome.status, "by themselves" in outcome.reason) == ("sandbox_error", True)


def test_checker_that_is_over_leaves_nothing_for_the_next_run(stage: Stage) -> None:
    """Its last words and its end come together: both are heard before the judge is used again."""

    def candidate(warden: Warden) -> None:
        for _ in range(2):
            warden.until(frames.BODY)
            warden.frame(frames.OUT, b"5\n")
            warden.ended("exit", code=0)

    def judge(warden: Warden) -> None:
        for _ in range(2):
            warden.until(frames.BODY)
            done = frames.pack(frames.DONE, b'["sandbox_error","no check"]')
            ended = {"why": "exit", "code": 0, "left": 0, "peak": 1, "oom": False, "unclean": None}
            warden.raw(frames.pack(frames.DATA, done) + frames.pack(frames.ENDED, json.dumps(ended).encode()))

    pair = stage.link("candidate", candidate), stage.link("judge", judge)
    job = Job("", StdioTests((Case("", "5"),), "custom", "def check(a, b, c): return True"), time_s=5.0)
    for _ in range(2):
        outcome = run_job(*pair, job, Limits(time_s=5.0))
        assert (outcome.status, outcome.reason) == ("sandbox_error", "no check")
