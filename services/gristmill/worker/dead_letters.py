"""What a dead letter looks like: the raw record, and headers that say where it came from and what was wrong."""

from __future__ import annotations

from gristmill.messages import now_ms
from gristmill.worker.records import RawRecord

MAX_ERROR_CHARS = 2000


def dead_letter_headers(record: RawRecord, error: BaseException, service: str) -> list[tuple[str, bytes]]:
    """Headers of a dead letter: the record's own first, then ``error``, ``error_class``, ``topic``, ``partition``,
    ``offset``, ``service`` and ``timestamp_ms`` (when it was given up), all as text."""
    ours = {
        "error": str(error)[:MAX_ERROR_CHARS],
        "error_class": type(error).__name__,
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "service": service,
        "timestamp_ms": str(now_ms()),
    }
    kept = [(name, value) for name, value in record.headers.items() if name not in ours]
    return kept + [(name, value.encode()) for name, value in ours.items()]
