"""Structured logs: one event per line, JSON or for people, always on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog


def configure_logging(level: str, log_format: Literal["auto", "console", "json"], **bound: Any) -> None:
    """Set up structlog for this process. ``bound`` (service, run) goes on every line of every thread."""

    def add_bound(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**bound, **event}

    severity = getattr(logging, level.upper())
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_bound,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if console else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(severity),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=max(severity, logging.WARNING), stream=sys.stderr, format="%(name)s: %(message)s", force=True
    )


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """Logger of this process."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
