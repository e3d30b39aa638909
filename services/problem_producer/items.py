"""A problem as its source gives it, and the checks that make a row one.

Every reader of a row raises :class:`MalformedRow`; who asked adds the file and the line.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.errors import BadInput
from gristmill.messages import ChatMessage, CodeTests, ProblemKind

Row = Mapping[str, Any]

MAX_TEXT_BYTES = 2 * 1024 * 1024
"""Longest text of one field; what is longer is a broken file, and would not fit into a record."""


class MalformedRow(BadInput):
    """A row that is no problem; the message says which field, and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One problem of a source, before it has an ordinal or a prompt."""

    problem_id: str
    kind: ProblemKind
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    answer: str | None = None
    tests: CodeTests | None = None
    solution: str | None = None
    difficulty: float | None = None
    topic: str | None = None
    starter: str | None = None
    visible_tests: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    row: Row = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Text that decides the split and the default id: case and spacing do not count."""
        text = self.text or "\n".join(message.content for message in self.messages)
        return " ".join(text.casefold().split())


def text_digest(text: str) -> str:
    """Twelve hex digits that name a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def lookup(row: Row, path: str) -> Any:
    """Value at a dotted path; a key that holds dots itself wins over descending.

    Raises:
        MalformedRow: nothing there.
    """
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, Sequence) and not isinstance(value, str) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            has = ", ".join(map(str, row)) or "no field"
            raise MalformedRow(f"field {path!r} is missing; the row has {has[:200]}")
    return value


def checked_text(value: Any, path: str) -> str:
    """A text that can travel.

    Raises:
        MalformedRow: not a string, too long, or with lone surrogates (bytes that were not UTF-8).
    """
    if not isinstance(value, str):
        raise MalformedRow(f"field {path!r} is {_kind_of(value)}, not a text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise MalformedRow(f"field {path!r} is not valid Unicode at character {error.start}") from error
    if size > MAX_TEXT_BYTES:
        raise MalformedRow(f"field {path!r} has {size} bytes; the limit is {MAX_TEXT_BYTES}")
    return value


def required_text(row: Row, path: str) -> str:
    """The text at ``path``, as it stands; blank counts as missing."""
    text = checked_text(lookup(row, path), path)
    if not text.strip():
        raise MalformedRow(f"field {path!r} is empty")
    return text


def optional_text(row: Row, path: str | None) -> str | None:
    """The text at ``path``; None where the path or the value is absent."""
    if path is None or (value := _present(row, path)) is None:
        return None
    return checked_text(value, path) or None


def scalar_text(row: Row, path: str) -> str:
    """A text or a number at ``path``, as stripped text."""
    value = lookup(row, path)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise MalformedRow(f"field {path!r} is {value}, not a number")
        value = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    text = checked_text(value, path).strip()
    if not text:
        raise MalformedRow(f"field {path!r} is empty")
    return text


def text_lines(row: Row, path: str, *, needed: bool = True) -> tuple[str, ...]:
    """A text, or a list of texts, as a tuple without blank entries."""
    value = lookup(row, path) if needed else _present(row, path)
    if value is None and not needed:
        return ()
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, Sequence):
        raise MalformedRow(f"field {path!r} is {_kind_of(value)}, not a text or a list of texts")
    lines = tuple(text for item in values if (text := checked_text(item, path)).strip())
    if needed and not lines:
        raise MalformedRow(f"field {path!r} is empty")
    return lines


def level_number(row: Row, path: str | None) -> float | None:
    """A difficulty: a number, or a text that ends in one."""
    if path is None or (value := _present(row, path)) is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    match = re.search(r"(\d+(?:\.\d+)?)\s*$", value) if isinstance(value, str) else None
    if match is None or len(match[1]) > 20:
        raise MalformedRow(f"field {path!r} is {str(value)[:60]!r}, not a level such as 3 or 'Level 3'")
    return float(match[1])


def chat_messages(row: Row, path: str) -> tuple[ChatMessage, ...]:
    """A list of role and content that ends with the user."""
    value = lookup(row, path)
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise MalformedRow(f"field {path!r} is {_kind_of(value)}, not a list of messages")
    messages: list[ChatMessage] = []
    for number, entry in enumerate(value):
        if not isinstance(entry, Mapping):
            raise MalformedRow(f"field {path!r}: message {number} is {_kind_of(entry)}, not role and content")
        role = required_text(entry, "role")
        if role not in ("system", "user", "assistant"):
            raise MalformedRow(f"field {path!r}: message {number} has the role {role!r}")
        messages.append(ChatMessage(role=role, content=required_text(entry, "content")))
    if messages[-1].role != "user":
        raise MalformedRow(f"field {path!r}: the last message is the {messages[-1].role}'s, not the user's")
    return tuple(messages)


def last_boxed(text: str) -> str | None:
    """What the last ``\\boxed{...}`` or ``\\fbox{...}`` holds, with balanced braces; None where there is none."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    position = begin
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2
            continue
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[begin:position].strip() or None
        position += 1
    return None


def _present(row: Row, path: str) -> Any:
    try:
        return lookup(row, path)
    except MalformedRow:
        return None


def _kind_of(value: Any) -> str:
    names = {
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a mapping",
    }
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
