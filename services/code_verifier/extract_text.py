"""The text of a completion before anything is looked for in it: line ends, end of turn, thoughts, JSON around it."""

from __future__ import annotations

import json
import re
from typing import Final

_THINK: Final = re.compile(
    r"(?P<open>^[ \t]*+<(?:think|thinking|reasoning|thought)>)"
    r"|(?<!['\"`])</(?:think|thinking|reasoning|thought)>(?!['\"]|`(?!``))",
    re.M | re.I,
)
_END_OF_TURN: Final = re.compile(
    r"(?:<\|(?:im_end|endoftext|eot_id|end_of_text|end|eom_id)\|>|</s>|<eos>|<end_of_turn>|<｜end▁of▁sentence｜>)\s*\Z"
)
_NEXT_TURN: Final = re.compile(r"<\|(?:im_end|endoftext|eot_id|end_of_text)\|>")


def first_turn(text: str) -> str:
    """The text up to the end of the model's turn."""
    text = _END_OF_TURN.sub("", text)
    turn = _NEXT_TURN.search(text)
    if turn is not None and text[: turn.start()].strip() and not _within_line(text, turn.start()):
        return text[: turn.start()]
    return text


def normal(text: str) -> str:
    """With plain line ends, and without invisible characters at the beginning of lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub("^[\ufeff\u200b\u2060]++", "", text, flags=re.M)


def _within_line(text: str, position: int) -> bool:
    """Whether quotes or code stand around a mark: then it is part of a program about such marks."""
    before = text[max(0, position - 3) : position]
    return before.endswith(("'", '"')) or (before.endswith("`") and before != "```")


def without_thoughts(text: str) -> str:
    """Without thinking blocks; an unfinished one reaches to the end, one without a beginning starts with the text."""
    kept: list[str] = []
    start, opened = 0, False
    for mark in _THINK.finditer(text):
        if mark["open"]:
            if not opened:
                kept.append(text[start : mark.start()])
                opened = True
        else:
            if not opened:
                kept.clear()
            start, opened = mark.end(), False
    if not opened:
        kept.append(text[start:])
    return "".join(kept)


def from_json(text: str) -> str | None:
    """The program in a JSON object with one field for it."""
    if len(text) > 1_000_000:
        return None
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    names = ("code", "solution", "program", "python", "completion", "answer")
    return next((value[name] for name in names if isinstance(value.get(name), str)), None)
