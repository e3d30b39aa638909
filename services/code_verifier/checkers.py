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
LONGEST = 400
"""Digits, beyond which a number is equal only to one with the same digits."""
_NUMBER = re.compile(  # every text has one way at most to match: time is linear in it
    r"(?P<sign>[+-]?)(?:0*+(?P<whole>\d*+)(?:\.(?P<part>\d*+))?(?:e(?P<power>[+-]?\d+))?|(?P<name>inf|nan))",
    re.IGNORECASE | re.ASCII,
)


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
    want = expected.split()
    got = text.split(None, len(want))  # the rest in one piece: it is too much, however much it is
    for number, (first, second) in enumerate(zip(got, want, strict=False), 1):
        if first != second and not (checker == "float" and _close(first, second)):
            return f"word {number} is {_short(first)}, expected {_short(second)}"
    if len(got) != len(want):
        return f"{'more' if len(got) > len(want) else len(got)} words, expected {len(want)}"
    return None


def _close(first: str, second: str) -> bool:
    one, other = _read(first), _read(second)
    if one is None or other is None:
        return False
    if one[0] is not None and one[0] == other[0]:
        return True  # whole numbers, of any size: 007 is 7
    if one[1] is None or other[1] is None or (one[2] and other[2]):
        return False
    if math.isnan(one[1]) or math.isnan(other[1]):
        return math.isnan(one[1]) and math.isnan(other[1])
    return math.isclose(one[1], other[1], rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _read(word: str) -> tuple[str | None, float | None, bool] | None:
    """A number: its digits if it is whole, its value unless it is too long or too large, and whether it is written as a
    whole number; none for what is no number."""
    found = _NUMBER.fullmatch(word)
    if found is None:
        return None
    sign, name, power = found["sign"], found["name"], found["power"]
    if name:
        return None, float(sign + name), False
    whole, part = found["whole"], found["part"]
    if not whole and not part and not word[len(sign) :].startswith("0"):
        return None  # a point, a sign or a power by itself
    fraction = (part or "").rstrip("0")
    digits = (sign.rstrip("+") + whole if whole else "0") if not fraction and power is None else None
    simple = part is None and power is None
    if len(whole) > LONGEST or (power is not None and len(power) > LONGEST):
        return digits, None, simple
    value = float(f"{sign}{whole or '0'}.{fraction[:LONGEST]}e{power or '0'}")
    return digits, None if math.isinf(value) else value, simple


def _difference_exact(got: str, expected: str) -> str:
    wanted = expected.split("\n")
    for number, (first, second) in enumerate(zip(got.split("\n", len(wanted)), wanted, strict=False), 1):
        if first != second:
            return f"line {number} is {_short(first)}, expected {_short(second)}"
    return "the number of lines differs"


def _short(text: str) -> str:
    return repr(text) if len(text) <= 100 else repr(text[:100]) + "..."
