"""Decoded records as plain values: what ``gristmill tap`` prints and filters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from gristmill.errors import ConfigError
from gristmill.messages import Message, unpack_ids, unpack_logprobs
from gristmill.reader import Record

HEAD_VALUES = 8
"""Token ids or logprobs shown before the rest is left out."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on one field, for example ``status=wrong`` or ``reward>=0.5``."""

    field: str
    operator: str
    value: str

    def matches(self, row: dict[str, Any]) -> bool:
        """Whether the row has the field and it fits. Numbers compare as numbers, everything else as text."""
        if self.field not in row:
            return False
        found = row[self.field]
        number = _number(self.value)
        if isinstance(found, int | float) and not isinstance(found, bool) and number is not None:
            return _OPERATORS[self.operator](float(found), number)
        if self.operator in ("=", "!="):
            text = "null" if found is None else str(found)
            return (text == self.value) == (self.operator == "=")
        return False


_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "!=": lambda a, b: a != b,
    "=": lambda a, b: a == b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}


def parse_filter(text: str) -> Filter:
    """Read ``field OPERATOR value``.

    Raises:
        ConfigError: no operator among ``= != > < >= <=``.
    """
    for operator in _OPERATORS:
        field, found, value = text.partition(operator)
        if found and field.strip():
            return Filter(field.strip(), operator, value.strip())
    raise ConfigError(f"filter {text!r}: write field=value, or use !=, >, <, >= or <=")


def check_fields(filters: Iterable[Filter], message: type[Message] | None) -> None:
    """Refuse filters on fields that the topic's message does not have.

    Raises:
        ConfigError: names the field and the known ones.
    """
    known = (
        {"key", "partition", "offset", "error", "service", "topic"}
        if message is None
        else set(message.__struct_fields__)
    )
    for item in filters:
        if item.field not in known:
            raise ConfigError(f"no field {item.field!r}; the fields are {', '.join(sorted(known))}")


def as_row(record: Record[Message], *, full: bool = False) -> dict[str, Any]:
    """The record's fields as JSON values. Packed ids and logprobs become lists, cut short unless ``full``."""
    if record.message is None:
        headers = {name: value.decode(errors="replace") for name, value in record.headers.items()}
        row: dict[str, Any] = {"key": record.key, "partition": record.partition, "offset": record.offset}
        row |= headers
        if record.error is not None:
            row["error"] = str(record.error)
        row["value_bytes"] = None if record.value is None else len(record.value)
        return row
    row = msgspec.to_builtins(record.message, builtin_types=(bytes,))
    for name, value in row.items():
        if isinstance(value, bytes):
            unpacked = unpack_logprobs(value) if name == "logprobs" else unpack_ids(value)
            row[name] = _shorten([_finite(item) for item in unpacked.tolist()], full)
    return row


def matching(records: Iterable[Record[Message]], filters: list[Filter]) -> Iterator[Record[Message]]:
    """Records that every filter lets through."""
    for record in records:
        if not filters:
            yield record
            continue
        row = as_row(record)
        if all(item.matches(row) for item in filters):
            yield record


def _shorten(values: list[Any], full: bool) -> list[Any]:
    if full or len(values) <= HEAD_VALUES:
        return values
    return [*values[:HEAD_VALUES], f"… {len(values) - HEAD_VALUES} more"]


def _finite(value: float) -> float | str:
    """JSON has no infinities."""
    return value if math.isfinite(value) else str(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
