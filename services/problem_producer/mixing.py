"""Which source the next problem comes from.

The schedule is Tijdeman's for the chairman assignment problem: after any number of steps each source has had its
share to within less than one problem. It is deterministic and periodic with the sum of the integer weights, so a
position far along is found without walking there. A source that runs out leaves the mix and the others share its
weight from then on.

Reference: R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980), 323-330.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple


class Turn(NamedTuple):
    """Source number, and how many problems that source has given before (its own index)."""

    source: int
    number: int


def turns(weights: Sequence[float], totals: Sequence[int | None], start: int = 0) -> Iterator[Turn]:
    """The schedule from step ``start`` (0-based) on; it ends when every source has run out.

    Args:
        weights: positive share of each source.
        totals: problems that each source has in all; None for a source without end.
        start: steps to skip.
    """
    given = [0] * len(weights)
    live = [source for source in range(len(weights)) if totals[source] != 0]
    skip = start
    while live:
        shares = _integer_weights([weights[source] for source in live])
        period = sum(shares)
        left = [total - given[source] for source in live if (total := totals[source]) is not None]
        limited = [share for source, share in zip(live, shares, strict=True) if totals[source] is not None]
        # Only periods in which nobody runs out: the mix changes at the very turn that takes a source's last problem.
        whole = min([skip // period, *((rest - 1) // share for rest, share in zip(left, limited, strict=True))])
        for source, share in zip(live, shares, strict=True):
            given[source] += whole * share
        skip -= whole * period
        had = [0] * len(live)
        step = 0
        while all(totals[source] is None or given[source] < totals[source] for source in live):  # type: ignore[operator]
            step += 1
            chosen = _choose(shares, period, had, step)
            source = live[chosen]
            if skip:
                skip -= 1
            else:
                yield Turn(source, given[source])
            given[source] += 1
            had[chosen] += 1
        live = [source for source in live if totals[source] is None or given[source] != totals[source]]


def _choose(shares: Sequence[int], period: int, had: Sequence[int], step: int) -> int:
    """Of the sources far enough behind to be served, the one whose turn is due first.

    With share p, behind by d = step·p - had, and k sources: served only where d >= 1/(2k - 2); due at the step
    where d would reach 1 - 1/(2k - 2). All in integers: multiply by period·(2k - 2).
    """
    count = len(shares)
    if count == 1:
        return 0
    scale = 2 * count - 2
    best, best_due = -1, (0, 1)
    for source, share in enumerate(shares):
        behind = (step * share - had[source] * period) * scale
        if behind < period:
            continue
        due = (period * (scale - 1) - behind, share)
        if best < 0 or due[0] * best_due[1] < best_due[0] * due[1]:
            best, best_due = source, due
    return best


def _integer_weights(weights: Sequence[float]) -> list[int]:
    """The smallest integers in the same proportion (decimals are taken as written: 0.1 is one tenth)."""
    exact = [Fraction(repr(float(weight))) for weight in weights]
    common = math.lcm(*(value.denominator for value in exact))
    whole = [int(value * common) for value in exact]
    shared = math.gcd(*whole)
    return [value // shared for value in whole]
