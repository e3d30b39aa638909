"""Solutions that repeat: ``pi/4 + k pi`` for all integers k, as sets of residues of one period.

A family counts as such only where one side says that its letter runs over the integers; the other side may leave that
out. ``2 k pi`` and ``k pi`` are different sets, ``pi/4 + k pi`` and ``5 pi/4 + n pi`` the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any, Final

from mpmath import mp

from math_verifier.compare.decision import Decision, costliest, no, unknown, yes
from math_verifier.compare.exact import substitute
from math_verifier.compare.leaf import same_value
from math_verifier.compare.numeric import real_value
from math_verifier.compare.prepare import is_domain, prepared
from math_verifier.compare.relations import statement_name, statement_value
from math_verifier.config import MathPolicy
from math_verifier.parse.ast import Named, Node, Num, Rel, Seq, SetBuilder, Sym, add, integer, multiply, negate, symbols

MAX_RESIDUES: Final = 60
_INTEGERS: Final = Named("Z")
_USUAL: Final = frozenset("klmnpqt")


@dataclass(frozen=True, slots=True)
class Family:
    """``offset + period k`` for all integers k."""

    offset: Node
    period: Node


def integer_letters(node: Node) -> frozenset[str]:
    """Letters that ``node`` says are integers; empty for what is no family."""
    items: Sequence[Node]
    if isinstance(node, Seq):
        items = node.items
    elif isinstance(node, SetBuilder):
        items = node.condition.items if isinstance(node.condition, Seq) else (node.condition,)
    else:
        return frozenset()
    return frozenset(
        item.terms[0].name
        for item in items
        if isinstance(item, Rel)
        and item.ops == ("in",)
        and item.terms[1] == _INTEGERS
        and isinstance(item.terms[0], Sym)
    )


def same_family(a: Node, b: Node, policy: MathPolicy) -> Decision | None:
    """Whether two families are the same set; None where one of them is no family."""
    letters = integer_letters(a), integer_letters(b)
    if not (letters[0] or letters[1]):
        return None
    left, right = _families(a, letters[0], policy), _families(b, letters[1], policy)
    names = _names(a), _names(b)
    if names[0] and names[1] and names[0] != names[1]:
        return no("structural", "different names")
    if left is None or right is None:
        return None
    return _same_residues(left, right, policy)


def _names(node: Node) -> frozenset[Node]:
    items = node.items if isinstance(node, Seq) else (node,)
    return frozenset(name for item in items if (name := statement_name(item)) is not None)


def _families(node: Node, letters: frozenset[str], policy: MathPolicy) -> list[Family] | None:
    if isinstance(node, SetBuilder):
        values: Sequence[Node] = (node.element,)
    else:
        items = node.items if isinstance(node, Seq) and node.kind in {"list", "set"} else (node,)
        values = [item for item in items if not is_domain(item)]
    found: list[Family] = []
    for value in values:
        stated = statement_value(value)
        grown = prepared(value if stated is None else stated)
        for single in grown.items if isinstance(grown, Seq) and grown.kind == "list" else (grown,):
            family = _linear(single, letters, policy)
            if family is None:
                return None
            found.append(family)
    return found or None


def _linear(node: Node, letters: frozenset[str], policy: MathPolicy) -> Family | None:
    names = symbols(node)
    if len(names) != 1 or not names <= (letters or _USUAL):
        return None
    (name,) = names
    at = [substitute(node, name, integer(k)) for k in (0, 1, 2, 7)]
    offset = at[0]
    period = add(at[1], negate(offset))
    if real_value(offset) is None or not real_value(period):
        return None
    for k, value in ((2, at[2]), (7, at[3])):
        if not same_value(value, add(offset, multiply(integer(k), period)), policy).equal:
            return None
    return Family(offset, period)


def _same_residues(left: list[Family], right: list[Family], policy: MathPolicy) -> Decision:
    base = left[0].period
    unit = real_value(base)
    stages: list[str] = []
    ratios: list[Fraction] = []
    for family in (*left, *right):
        ratio = _ratio(family.period, base, unit, policy, stages)
        if ratio is None:
            return no("numeric", "periods without a common multiple")
        ratios.append(ratio)
    denominator = lcm(*(ratio.denominator for ratio in ratios))
    whole = Fraction(lcm(*(abs(int(ratio * denominator)) for ratio in ratios)), denominator)
    sides: list[list[Node]] = []
    for families, own in ((left, ratios[: len(left)]), (right, ratios[len(left) :])):
        residues: list[Node] = []
        for family, ratio in zip(families, own, strict=True):
            count = int(whole / abs(ratio))
            if len(residues) + count > MAX_RESIDUES:
                return unknown("numeric", "too many residues")
            residues += [add(family.offset, multiply(integer(k), family.period)) for k in range(count)]
        sides.append(residues)
    for residues, others in (sides, sides[::-1]):
        for residue in residues:
            if not any(_congruent(residue, other, base, whole, unit, policy, stages) for other in others):
                return no("numeric", "a solution that the other side lacks")
    return yes(costliest(stages))


def _ratio(period: Node, base: Node, unit: Any, policy: MathPolicy, stages: list[str]) -> Fraction | None:
    size = real_value(period)
    if size is None:
        return None
    near = size / unit
    guess = Fraction(str(mp.nstr(near, 18))).limit_denominator(360)
    if not guess:
        return None
    decision = same_value(period, multiply(Num(guess), base), policy)
    stages.append(decision.stage)
    return guess if decision.equal else None


def _congruent(a: Node, b: Node, base: Node, whole: Fraction, unit: Any, policy: MathPolicy, stages: list[str]) -> bool:
    """Whether ``a - b`` is a multiple of ``whole`` times ``base``."""
    left, right = real_value(a), real_value(b)
    if left is None or right is None:
        return False
    turns = (left - right) / (unit * whole.numerator) * whole.denominator
    count = int(mp.nint(turns))
    if abs(turns - count) > mp.mpf(10) ** -12:
        return False
    decision = same_value(a, add(b, multiply(Num(count * whole), base)), policy)
    stages.append(decision.stage)
    return bool(decision.equal)
