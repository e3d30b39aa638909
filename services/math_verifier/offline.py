"""Rows of a JSONL file in, verdict rows out, in order; bad rows are reported and skipped."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

from gristmill.errors import BadInput
from math_verifier.api import MathResult, verify_many
from math_verifier.check import Kind
from math_verifier.config import MathPolicy
from math_verifier.pool import Pool


@dataclass(frozen=True, slots=True)
class Row:
    """A case: ``text`` is a bare answer or a whole completion, by ``kind``."""

    id: Any
    gold: str
    text: str
    kind: Kind


@dataclass(slots=True)
class Report:
    """What came of a file."""

    statuses: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)


def read_row(line: str, number: int) -> Row:
    """A row ``{"id", "gold", "pred" or "completion"}``; a row with ``"kind": "completion"`` may hold one in ``pred``.

    Raises:
        BadInput: no such row; the message names the line.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise BadInput(f"line {number}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise BadInput(f"line {number}: a row must be an object, not {type(row).__name__}")
    gold, pred, completion = row.get("gold"), row.get("pred"), row.get("completion")
    if isinstance(gold, int | float) and not isinstance(gold, bool):
        gold = str(gold)
    if not isinstance(gold, str):
        raise BadInput(f'line {number}: "gold" must be text')
    if (pred is None) == (completion is None):
        raise BadInput(
            f'line {number}: a row needs "pred" (a bare answer) or "completion" (model text), one of the two'
        )
    text = completion if pred is None else pred
    if isinstance(text, int | float) and not isinstance(text, bool):
        text = str(text)
    if not isinstance(text, str):
        raise BadInput(f'line {number}: "pred" or "completion" must be text')
    said = row.get("kind")
    if said not in {None, "answer", "completion"}:
        raise BadInput(f'line {number}: "kind" is {said!r}: it can be answer or completion')
    kind: Kind = "completion" if pred is None or said == "completion" else "answer"
    return Row(row.get("id", number), gold, text, kind)


def verify_lines(
    lines: Iterable[str],
    out: TextIO,
    policy: MathPolicy,
    pool: Pool,
    report: Report,
    advance: Callable[[int], None],
) -> None:
    """Verify every row of ``lines`` and write its verdict to ``out``; ``advance`` is told the characters read."""
    waiting: deque[tuple[Row, int]] = deque()

    def rows() -> Iterator[tuple[str, str, Kind]]:
        for number, line in enumerate(lines, start=1):
            size = len(line)
            if not line.strip():
                advance(size)
                continue
            try:
                row = read_row(line, number)
            except BadInput as error:
                report.bad.append(str(error))
                advance(size)
                continue
            waiting.append((row, size))
            yield row.gold, row.text, row.kind

    for result in verify_many(rows(), policy=policy, pool=pool):
        row, size = waiting.popleft()
        out.write(json.dumps(_line(row, result), ensure_ascii=False) + "\n")
        report.statuses[result.status] += 1
        advance(size)


def _line(row: Row, result: MathResult) -> dict[str, Any]:
    line = {
        "id": row.id,
        "status": result.status,
        "correct": result.correct,
        "extracted": result.extracted,
        "stage": result.stage,
        "seconds": round(result.seconds, 6),
    }
    return {**line, "reason": result.reason} if result.reason else line
