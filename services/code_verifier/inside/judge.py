"""The child that runs the tests. It alone has them; the program is on the other side of its channel.

Tests of kind assert run statement by statement in a namespace that looks up what it lacks in the candidate. A statement
that fails by an AssertionError of its own, or by an error of its own after the program supplied something, is a wrong
answer; the program's own exception is a runtime error; tests that fail by themselves, or that never use the program,
say nothing about it (``sandbox_error``).
"""

from __future__ import annotations

import linecache
from typing import Any, NoReturn

from . import compare, frames, values
from .asserts import SPACE, run_asserts
from .judge_peer import JudgePeer
from .reporting import FILE, Reporter, classify


def main(channel: frames.Channel) -> NoReturn:
    """The child's life: read the tests, say ready, wait for the candidate, run."""
    _, payload = channel.receive()
    body = values.loads(payload)
    reporter = Reporter(channel, body["stop"], waited_for=body["kind"] == "checker")
    if body["kind"] == "checker":
        check_outputs(channel, reporter, body["source"])
    peer = JudgePeer(channel, SPACE)
    if body["kind"] == "calls":
        channel.send(frames.READY, values.dumps([]))
        channel.receive()
        run_calls(peer, reporter, body)
    else:
        run_asserts(channel, peer, reporter, body)
    reporter.done()


def run_calls(peer: JudgePeer, reporter: Reporter, body: dict[str, Any]) -> None:
    """Tests of kind call: JSON arguments, a JSON value."""
    names = body["entry_point"].split(".")
    try:
        cases = [(values.plain_json(c[0]), values.plain_json(c[1])) for c in body["cases"]]
    except values.Malformed as error:
        reporter.done("sandbox_error", f"a test is no JSON: {error}")
    if not all(isinstance(arguments, list) for arguments, _ in cases):
        reporter.done("sandbox_error", "the input of a call is a JSON array of arguments")

    def found() -> Any:
        try:
            target = peer.name(names[0])
        except KeyError:
            peer.end("runtime_error", f"the program does not define {names[0]!r}")
        for name in names[1:]:
            if getattr(target, "_gristmill_kind", "") == "class":
                target = target()
            target = getattr(target, name)
        return target

    for arguments, expected in cases:

        def run(arguments: list[Any] = arguments, expected: Any = expected) -> None:
            got = found()(*arguments)
            if not compare.equal(got, expected, body["tolerance"]):
                raise AssertionError(f"got {_short(got)}, expected {_short(expected)}")

        if not reporter.test(lambda: classify(peer, run)):
            return


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError, MemoryError):
        return f"a {type(value).__name__}"
    return text if len(text) <= 300 else text[:300] + "..."


def check_outputs(channel: frames.Channel, reporter: Reporter, source: str) -> NoReturn:
    """A checker of standard output: its ``check(input, output, expected)`` for every request of the host."""
    space: dict[str, Any] = {"__name__": "checker"}
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    try:
        exec(compile(source, FILE, "exec", dont_inherit=True), space)  # noqa: S102
        check = space["check"]
    except KeyError:
        reporter.done("sandbox_error", "the checker defines no check(input, output, expected)")
    except BaseException as error:  # noqa: BLE001 - a checker may raise anything
        reporter.done("sandbox_error", f"the checker failed: {type(error).__name__}: {error}")
    channel.send(frames.READY, values.dumps([]))
    while True:
        _, payload = channel.receive()
        given, output, expected, control = values.loads(payload)

        def run(
            given: str = given, output: str = output, expected: str = expected, control: bool = control
        ) -> tuple[str, str]:
            failed = "sandbox_error" if control else "wrong_answer"
            try:
                right = check(given, output, expected)
                good = right is True or right == 1
            except BaseException as error:  # noqa: BLE001 - over hostile output anything may happen
                on = "the checker, on the expected output" if control else "the checker"
                return failed, f"{on}: {type(error).__name__}: {error}"
            if control and right is None:
                return failed, "the checker gives None"
            return ("passed", "") if good else ("wrong_answer", "the checker said no")

        reporter.test(run)
