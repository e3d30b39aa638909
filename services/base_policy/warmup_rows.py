"""The warm-up data of the tiny policy: rows of worked problems, some of them spoiled on purpose.

A row is a JSON object with ``messages`` (chat, as the line sends them) or ``prompt`` (a string, taken as the user's
message) and ``solution`` (a rationale that ends in ``\\boxed{answer}``). Where rows carry ``level`` and ``topic``,
every pair of them is seen equally often, as in the problem stream, however many distinct rows it has. ``gristmill
problems export`` writes such files.

Real pre-training data is not clean: people leave results unmarked, slip, or stop half-way. A share of the rows is
spoiled the same ways, so that the policy knows the right way among others and reinforcement has something to choose
from.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from gristmill.errors import ConfigError

_BOX = re.compile(r"\s*\\boxed\{(?P<answer>.*)\}\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Row:
    """One worked problem: chat messages, the solution, and the group (level and topic) it is balanced by."""

    messages: tuple[dict[str, str], ...]
    solution: str
    group: str = ""


def read_rows(path: Path) -> list[Row]:
    """All rows of a JSONL file.

    Raises:
        ConfigError: no such file, no rows, or a row that lacks a part (named by its line number).
    """
    try:
        with path.open(encoding="utf-8") as file:
            rows = [_row(line, f"{path}:{number}") for number, line in enumerate(file, 1) if line.strip()]
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the warm-up data: {error.strerror}") from error
    if not rows:
        raise ConfigError(f"{path}: the warm-up data holds no rows")
    return rows


def _row(line: str, where: str) -> Row:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("solution"), str) or not value["solution"].strip():
        raise ConfigError(f"{where}: a warm-up row needs 'solution', a text that ends in \\boxed{{answer}}")
    messages: Any = value.get("messages")
    if messages is None and isinstance(value.get("prompt"), str):
        messages = [{"role": "user", "content": value["prompt"]}]
    try:
        parts = tuple({"role": str(part["role"]), "content": str(part["content"])} for part in messages)
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"{where}: a warm-up row needs 'messages' (a list of role and content) or 'prompt' (a text)"
        ) from error
    if not parts:
        raise ConfigError(f"{where}: 'messages' is empty")
    return Row(parts, value["solution"].strip(), f"{value.get('level')}/{value.get('topic')}")


def spoil(solution: str, way: str, random_: random.Random) -> str:
    """`solution` written in one of the ways of :data:`WAYS`."""
    match = _BOX.search(solution)
    work = solution[: match.start()] if match else solution
    if way == "unboxed":
        return work
    if way == "unfinished":
        words = work.split(" ")
        return " ".join(words[: random_.randint(1, max(1, len(words) - 1))])
    if way == "slip" and match:
        digits = [place for place, letter in enumerate(match["answer"]) if letter.isdecimal()]
        if digits:
            return f"{work} \\boxed{{{_slip(match['answer'], random_.choice(digits), random_)}}}"
    return solution


WAYS = ("clean", "unboxed", "slip", "unfinished")


def _slip(answer: str, place: int, random_: random.Random) -> str:
    """`answer` with the digit at `place` changed to another, never to a leading zero."""
    digits = [digit for digit in "123456789" if digit != answer[place]]
    return answer[:place] + random_.choice(digits) + answer[place + 1 :]


def solutions(rows: Sequence[Row], shares: dict[str, float], clean_first: int, seed: int) -> Iterator[tuple[Row, str]]:
    """Rows without end, each with its solution as it is to be learned.

    The group is drawn anew for every row; within a group all rows come before any comes again. The first
    `clean_first` rows are as they stand. After them a way is drawn for each; `shares` gives the probability of
    every way but ``clean``.
    """
    random_ = random.Random(f"warm-up/{seed}")
    members: dict[str, list[Row]] = {}
    for row in rows:
        members.setdefault(row.group, []).append(row)
    streams = [_rounds(group, random_) for group in members.values()]
    ways = list(shares)
    weights = list(shares.values())
    ways.append("clean")
    weights.append(1.0 - sum(weights))
    for given in count():
        row = next(random_.choice(streams))
        way = "clean" if given < clean_first else random_.choices(ways, weights)[0]
        yield row, spoil(row.solution, way, random_)


def _rounds(rows: Sequence[Row], random_: random.Random) -> Iterator[Row]:
    """`rows` in a new random order, again and again."""
    order = list(rows)
    while True:
        random_.shuffle(order)
        yield from order
