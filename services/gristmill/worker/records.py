"""What a handler takes and gives.

These are msgspec structs rather than dataclasses because one of each is made per message; they are immutable
and compare by value all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec

from gristmill.messages import Message
from gristmill.topics import Topic

M = TypeVar("M", bound=Message)

Headers = Mapping[str, bytes]
"""Kafka headers by name; of a repeated name the last value counts, a null value reads as empty."""

NO_HEADERS: Headers = MappingProxyType({})


class Incoming(msgspec.Struct, Generic[M], frozen=True):
    """A decoded record, as handlers get it."""

    message: M
    topic: str
    """Full topic name, prefix included."""
    partition: int
    offset: int
    key: str | None
    headers: Headers
    timestamp_ms: int
    """Milliseconds since the epoch, by the writer's clock; 0 when the record has none."""

    def header(self, name: str) -> str | None:
        """Text of a header, None when it is absent."""
        return _text(self.headers.get(name))


class Outgoing(msgspec.Struct, frozen=True):
    """A message to write. ``key`` defaults to the message's own (group id or run id)."""

    topic: Topic
    message: Message
    key: str | None = None
    headers: Mapping[str, str | bytes] | None = None


class RawRecord(msgspec.Struct, frozen=True):
    """A record as it came, which is all there is when it cannot be decoded."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = NO_HEADERS
    timestamp_ms: int = 0

    @property
    def key_text(self) -> str | None:
        """The key as text; bytes that are not UTF-8 are replaced."""
        return _text(self.key)

    def header(self, name: str) -> str | None:
        """Text of a header, None when it is absent."""
        return _text(self.headers.get(name))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="replace")
