"""What the makers of built-in problems share: seeded draws, a draft of a problem, and small LaTeX helpers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Draft(NamedTuple):
    """A problem before it has an identity.

    `canonical` is equal for problems that differ only in the order of commuting operands or in wording; `work`
    is the rationale without the boxed answer.
    """

    canonical: str
    text: str
    answer: str
    work: str


class Draw:
    """Uniform choices from a source of floats in [0, 1)."""

    __slots__ = ("_random",)

    def __init__(self, source: Callable[[], float]) -> None:
        self._random = source

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self._random() * (high - low + 1))

    def nonzero(self, low: int, high: int) -> int:
        """An integer from `low` (< 0) to `high` (> 0), never 0."""
        value = self.between(low, high - 1)
        return value if value < 0 else value + 1

    def pick(self, options: Sequence[T]) -> T:
        """One of `options`."""
        return options[int(self._random() * len(options))]


Maker = Callable[[Draw], Draft | None]
"""Makes one problem of a level and kind; None where the draw gave an ill-posed one (the caller draws again)."""


def latex_number(value: Fraction | int) -> str:
    """`7`, `-3`, `\\frac{5}{4}`, `-\\frac{1}{2}`."""
    if isinstance(value, int) or value.denominator == 1:
        return str(int(value))
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def plain_number(value: Fraction | int) -> str:
    """`7`, `-3`, `5/4`."""
    return str(value)


def polynomial(coefficients: Sequence[int], variable: str = "x") -> str:
    """`x^2 - 3x + 2` for `[1, -3, 2]` (highest power first); `0` for no terms."""
    parts: list[str] = []
    degree = len(coefficients) - 1
    for offset, coefficient in enumerate(coefficients):
        if coefficient == 0:
            continue
        power = degree - offset
        letter = "" if power == 0 else variable if power == 1 else f"{variable}^{power}"
        size = abs(coefficient)
        body = letter if letter and size == 1 else f"{size}{letter}"
        if not parts:
            parts.append(f"-{body}" if coefficient < 0 else body)
        else:
            parts.append(f"- {body}" if coefficient < 0 else f"+ {body}")
    return " ".join(parts) if parts else "0"
