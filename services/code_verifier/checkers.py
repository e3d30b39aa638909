"""Whether the output of a program is the expected one.

``exact``: the same bytes; a newline at the end may be missing or be one too many. ``tokens``: the same words, whatever
the space between them. ``float``: the same words, where words that are numbers may differ by 1e-6, absolutely or
relatively (``5.0`` is ``5``), but for two whole numbers. Output that is not UTF-8 is equal to nothing but the same
bytes.
"""

from __future__ import annotations

import math
import re

TOLERANCE = 1e-6
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE | re.ASCII)


def check(checker: str, output: bytes, expected: str) -> str | None:
    """Why ``output`` is not ``expected``; none if it is. ``checker`` is exact, tokens or float."""
    wanted = expected.encode("utf-8", "surrogatepass")
    if output == wanted:
        return None
    try:
        text = output.decode()
    except UnicodeDecodeError as error:
        return f"the output is not UTF-8 (at byte {error.start})"
    if checker == "exact":
        return None if output.removesuffix(b"\n") == wanted.removesuffix(b"\n") else _difference_exact(text, expected)
    got, want = text.split(), expected.split()
    for number, (first, second) in enumerate(zip(got, want, strict=False), 1):
        if first != second and not (checker == "float" and _close(first, second)):
            return f"word {number} is {_short(first)}, expected {_short(second)}"
    if len(got) != len(want):
        return f"{len(got)} words, expected {len(want)}"
    return None


def _close(first: str, second: str) -> bool:
    if not (_NUMBER.fullmatch(first) and _NUMBER.fullmatch(second)):
        return False
    try:
        one, other = float(first), float(second)
        if not any(c in (first + second).lower() for c in ".en"):
            return int(first) == int(second)  # whole numbers, of any size, have no tolerance: 007 is 7
    except ValueError:
        return False
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _difference_exact(got: str, expected: str) -> str:
    for number, (first, second) in enumerate(zip(got.split("\n"), expected.split("\n"), strict=False), 1):
        if first != second:
            return f"line {number} is {_short(first)}, expected {_short(second)}"
    return "the number of lines differs"


def _short(text: str) -> str:
    return repr(text) if len(text) <= 100 else repr(text[:100]) + "..."
