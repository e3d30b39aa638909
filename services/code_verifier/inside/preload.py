"""Modules that programs usually import: loaded once in PID 1, so that every child has them for nothing."""

from __future__ import annotations

import importlib

NAMES = (
    *("abc", "bisect", "cmath", "collections", "collections.abc", "contextlib", "copy", "dataclasses", "datetime"),
    *("decimal", "enum", "fractions", "functools", "heapq", "io", "itertools", "json", "math", "numbers", "operator"),
    *("os.path", "random", "re", "statistics", "string", "struct", "sys", "threading", "time", "traceback", "types"),
    *("typing", "warnings", "weakref"),
)


def preload() -> None:
    """Import them."""
    for name in NAMES:
        importlib.import_module(name)
