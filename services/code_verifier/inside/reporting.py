"""What is reported of tests, and how the end of a test is put into words."""

from __future__ import annotations

import linecache
import os
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from . import frames, values
from .judge_peer import JudgePeer, Stop
from .mirrors import FromCandidate

FILE = "tests.py"


class Unusable(Exception):
    """Tests that cannot be run."""


class Reporter:
    """Sends what is found, test by test.

    Args:
        channel: to the host.
        stop_at_first_failure: whether a failure is the end.
        waited_for: whether the host waits for each result before it goes on.
    """

    def __init__(self, channel: frames.Channel, stop_at_first_failure: bool, waited_for: bool) -> None:
        self._channel = channel
        self._waited_for = waited_for
        self.stops = stop_at_first_failure
        self.count = 0

    def test(self, run: Callable[[], tuple[str, str]]) -> bool:
        """Run one test and report it; whether to go on."""
        started = time.monotonic()
        status, reason = run()
        return self.result(status, reason, time.monotonic() - started)

    def result(self, status: str, reason: str, seconds: float) -> bool:
        """Report a test; whether to go on."""
        # A good result can go with the next message: one at the end, if not before.
        tell = self._channel.hold if status == "passed" and not self._waited_for else self._channel.send
        tell(frames.TEST, values.dumps([self.count, status, reason[:4000], seconds]))
        self.count += 1
        return status == "passed" or (not self.stops and status not in {"sandbox_error"})

    def done(self, status: str | None = None, reason: str = "") -> NoReturn:
        """The end: a status overrides the tests'. Nothing of the tests runs any more, nobody need end the process."""
        self._channel.send(frames.DONE, values.dumps([status, reason[:4000]]))
        os._exit(0)


def classify(peer: JudgePeer, run: Callable[[], object]) -> tuple[str, str]:
    """Run something of the tests' and put its end into words."""
    try:
        run()
    except Stop:
        return peer.found or ("sandbox_error", "stopped for no reason")
    except SystemExit as error:
        if peer.found is not None:
            return peer.found
        for cause in _causes(error):
            if isinstance(cause, Exception):
                return of_exception(peer, cause)
        code = error.code
        good = not isinstance(error, FromCandidate) and (code is None or (type(code) in {int, bool} and code == 0))
        return ("passed", "") if good else ("wrong_answer", f"the tests exited with {_shown(code)}")
    except BaseException as error:  # noqa: BLE001 - the tests may raise anything
        return peer.found or of_exception(peer, error)
    return peer.found or ("passed", "")


def of_exception(peer: JudgePeer, error: BaseException) -> tuple[str, str]:
    """Status and reason of an exception that left a test."""
    where = _place(error)
    text = _text(error)
    if isinstance(error, FromCandidate):
        status = "memory_limit" if isinstance(error, MemoryError) else "runtime_error"
        there = f" ({error._gristmill_where} of the program)" if error._gristmill_where else ""
        return status, f"{text}{there}{where}"
    if isinstance(error, AssertionError):
        return "wrong_answer", f"{text}{where}"
    if isinstance(error, NameError) and getattr(error, "name", None) in peer.missing:
        return "runtime_error", f"the program does not define {error.name!r}{where}"
    if isinstance(error, values.Uncarried) and peer.unwieldy:
        return "runtime_error", f"what the program gave cannot be passed on: {error}{where}"
    if isinstance(error, values.Uncarried):
        return "sandbox_error", f"the tests pass what cannot be carried: {error}{where}"
    if isinstance(error, Unusable):
        return "sandbox_error", str(error)
    if not peer.heard:
        return "sandbox_error", f"the tests failed by themselves: {text}{where}"
    if isinstance(error, MemoryError):
        return "memory_limit", f"the tests ran out of memory over what the program gave{where}"
    return "wrong_answer", f"the tests failed on what the program gave: {text}{where}"


def _text(error: BaseException) -> str:
    try:
        said = str(error)
    except BaseException as second:  # noqa: BLE001 - KeyError(remote), say, asks the candidate for its repr
        said = f"(no text: {type(second).__name__})"
    return f"{type(error).__name__}: {said[:4000]}" if said else type(error).__name__


def _shown(value: object) -> str:
    return repr(value) if type(value) in {int, bool, str} else f"a {type(value).__name__}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = 0
    found = error.__context__
    while found is not None and seen < 50:
        yield found
        found = found.__context__
        seen += 1


def _place(error: BaseException) -> str:
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is None:
        return ""
    return f" at line {line} of the tests: {linecache.getline(FILE, line).strip()[:500]}"
