"""Modules that programs usually import: loaded once in PID 1, so that every child has them for nothing."""

from __future__ import annotations

import importlib

NAMES = (
    *("abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "collections.abc", "contextlib", "copy"),
    *("csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq"),
    *("inspect", "io", "itertools", "json", "linecache", "locale", "math", "numbers", "operator", "os.path", "pathlib"),
    *("pickle", "pprint", "queue", "random", "re", "secrets", "shutil", "signal", "statistics", "string", "struct"),
    *("subprocess", "sys", "tempfile", "textwrap", "threading", "time", "timeit", "traceback", "types", "typing"),
    *("unicodedata", "unittest", "uuid", "warnings", "weakref", "zlib"),
)


def preload() -> None:
    """Import them."""
    for name in NAMES:
        importlib.import_module(name)
