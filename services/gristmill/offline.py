"""Rows of a JSONL file in, verdict rows out, in order; bad rows are reported and skipped: for every verifier."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO, TypeVar

from gristmill.errors import BadInput


class Result(Protocol):
    """What a verifier found."""

    @property
    def status(self) -> str: ...


RowT = TypeVar("RowT")
ResultT = TypeVar("ResultT", bound=Result)


@dataclass(slots=True)
class Report:
    """What came of a file."""

    statuses: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)


def read_object(line: str, number: int) -> dict[str, Any]:
    """The JSON object of a line.

    Raises:
        BadInput: it holds none; the message names the line.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise BadInput(f"line {number}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise BadInput(f"line {number}: a row must be an object, not {type(row).__name__}")
    return row


def verify_lines(
    lines: Iterable[str],
    out: TextIO,
    report: Report,
    advance: Callable[[int], None],
    *,
    read: Callable[[str, int], RowT],
    verify: Callable[[Iterator[RowT]], Iterable[ResultT]],
    write: Callable[[RowT, ResultT], dict[str, Any]],
) -> None:
    """Verify every row of ``lines`` and write its verdict to ``out``; ``advance`` is told the characters read.

    Args:
        lines: JSONL.
        out: where the verdict rows go.
        report: gets statuses and bad rows.
        advance: called with the characters of every line that is done with.
        read: the row of a line and its number; raises :class:`BadInput` for a bad one.
        verify: results of rows, in their order; it may read ahead.
        write: the verdict row.
    """
    waiting: deque[tuple[RowT, int]] = deque()

    def rows() -> Iterator[RowT]:
        for number, line in enumerate(lines, start=1):
            size = len(line)
            if not line.strip():
                advance(size)
                continue
            try:
                row = read(line, number)
            except BadInput as error:
                report.bad.append(str(error))
                advance(size)
                continue
            waiting.append((row, size))
            yield row

    for result in verify(rows()):
        row, size = waiting.popleft()
        out.write(json.dumps(write(row, result), ensure_ascii=False) + "\n")
        report.statuses[result.status] += 1
        advance(size)
