"""Rows of math cases: how they are read, checked and written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from gristmill import offline
from gristmill.errors import BadInput
from gristmill.offline import Report
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


def read_row(line: str, number: int) -> Row:
    """A row ``{"id", "gold", "pred" or "completion"}``; a row with ``"kind": "completion"`` may hold one in ``pred``.

    Raises:
        BadInput: no such row; the message names the line.
    """
    row = offline.read_object(line, number)
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
    report: Report,
    advance: Callable[[int], None],
    *,
    policy: MathPolicy,
    pool: Pool,
) -> None:
    """Verify every row of ``lines`` and write its verdict to ``out``: see :func:`gristmill.offline.verify_lines`."""

    def verify(rows: Iterator[Row]) -> Iterator[MathResult]:
        return verify_many(((row.gold, row.text, row.kind) for row in rows), policy=policy, pool=pool)

    offline.verify_lines(lines, out, report, advance, read=read_row, verify=verify, write=_line)


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
