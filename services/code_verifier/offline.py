"""Rows of programs and their tests: how they are read, run and written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO, cast

import msgspec

from code_verifier.api import CodeResult, Pool, verify_many
from code_verifier.task import KINDS, read_tests
from gristmill import offline
from gristmill.errors import BadInput
from gristmill.messages import CodeTests, TestCase
from gristmill.offline import Report


@dataclass(frozen=True, slots=True)
class Row:
    """A case: model text, and how its program is tested."""

    id: Any
    text: str
    tests: CodeTests


def read_row(line: str, number: int) -> Row:
    """A row ``{"id", "completion", "test_type", "tests"}``, with ``prompt``, ``entry_point``, ``checker``,
    ``checker_source`` and ``time_limit_s`` if wanted.

    ``tests`` is Python source for test type ``assert``; a list of ``{"stdin", "stdout"}`` for ``stdio``; a list of
    ``{"input", "expected"}``, an array of arguments and a value, for ``call``. Rows that ``gristmill sample`` made of
    ``gristmill problems export`` have an object there, which holds all of this.

    Raises:
        BadInput: no such row, or tests that cannot be used; the message names the line.
    """
    row = offline.read_object(line, number)
    try:
        text = _text(row, "completion")
        if text is None:
            raise BadInput('"completion" must be text')
        tests = _tests(row)
        read_tests(tests)
    except BadInput as error:
        raise BadInput(f"line {number}: {error}") from error
    return Row(row.get("id", number), text, tests)


def _tests(row: dict[str, Any]) -> CodeTests:
    if isinstance(row.get("tests"), dict):
        try:
            return msgspec.convert(row["tests"], CodeTests)
        except msgspec.ValidationError as error:
            raise BadInput(f'"tests": {error}') from error
    kind = row.get("test_type")
    if kind not in KINDS:
        raise BadInput(f'"test_type" must be one of {", ".join(KINDS)}, not {str(kind)[:40]!r}')
    given = row.get("tests")
    if kind == "assert":
        if isinstance(given, list) and all(isinstance(item, str) for item in given):
            given = "\n".join(given)
        if not isinstance(given, str):
            raise BadInput('"tests" of type assert must be Python source')
    elif not isinstance(given, list):
        raise BadInput(f'"tests" of type {kind} must be a list of cases')
    limit = row.get("time_limit_s")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise BadInput('"time_limit_s" must be a number of seconds')
    return CodeTests(
        kind=cast(Any, kind),
        source=given if isinstance(given, str) else "",
        cases=() if isinstance(given, str) else tuple(_case(case, kind, n) for n, case in enumerate(given)),
        entry_point=_text(row, "entry_point"),
        checker=_text(row, "checker") or "tokens",
        checker_source=_text(row, "checker_source"),
        time_limit_s=None if limit is None else float(limit),
        prompt=_text(row, "prompt"),
    )


def _case(case: Any, kind: str, number: int) -> TestCase:
    names = ("stdin", "stdout") if kind == "stdio" else ("input", "expected")
    if not isinstance(case, dict) or any(name not in case for name in names):
        raise BadInput(f'case {number} of "tests" must be an object with "{names[0]}" and "{names[1]}"')
    given, expected = (case[name] for name in names)
    if kind == "call":
        return TestCase(input=json.dumps(given), expected=json.dumps(expected))
    if not isinstance(given, str) or not isinstance(expected, str):
        raise BadInput(f'case {number} of "tests": "stdin" and "stdout" must be text')
    return TestCase(input=given, expected=expected)


def _text(row: dict[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise BadInput(f'"{name}" must be text')
    return value


def verify_lines(
    lines: Iterable[str],
    out: TextIO,
    report: Report,
    advance: Callable[[int], None],
    *,
    pool: Pool,
    stop_at_first_failure: bool = True,
) -> None:
    """Verify every row of ``lines`` and write its verdict to ``out``: see :func:`gristmill.offline.verify_lines`."""

    def verify(rows: Iterator[Row]) -> Iterator[CodeResult]:
        pairs = ((row.text, row.tests) for row in rows)
        return verify_many(pairs, stop_at_first_failure=stop_at_first_failure, pool=pool)

    offline.verify_lines(lines, out, report, advance, read=read_row, verify=verify, write=result_line)


def result_line(row: Row, result: CodeResult) -> dict[str, Any]:
    """A verdict as a row."""
    tests = [
        {"index": test.index, "status": test.status, "seconds": round(test.seconds, 6)}
        | ({"reason": test.reason} if test.reason else {})
        for test in result.tests
    ]
    line = {
        "id": row.id,
        "status": result.status,
        "correct": result.correct,
        "tests": tests,
        "seconds": round(result.seconds, 6),
        "peak_bytes": result.peak_bytes,
    }
    return {**line, "reason": result.reason} if result.reason else line
