"""Inequalities in one variable between rational functions, solved: signs between the exact roots.

Coefficients are exact, roots are rational or of square factors, so the endpoints are exact as well. What has other
roots is not solved here.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import isqrt
from typing import Final

from math_verifier.compare.exact import NotExact, exact
from math_verifier.parse.ast import (
    HALF,
    Add,
    Mul,
    Node,
    Num,
    Pow,
    Sym,
    add,
    multiply,
    symbols,
)

MAX_DEGREE: Final = 8
Poly = tuple[Fraction, ...]
"""Coefficients, constant first, without trailing zeros; empty for 0."""
Root = tuple[Node, float, Fraction | None]


class NotSolved(Exception):
    """The inequality is not one that is solved here."""


def _trim(values: list[Fraction]) -> Poly:
    while values and not values[-1]:
        values.pop()
    if len(values) > MAX_DEGREE + 1:
        raise NotSolved
    return tuple(values)


def _plus(a: Poly, b: Poly) -> Poly:
    size = max(len(a), len(b))
    return _trim([(a[k] if k < len(a) else Fraction(0)) + (b[k] if k < len(b) else Fraction(0)) for k in range(size)])


def _times(a: Poly, b: Poly) -> Poly:
    if not a or not b:
        return ()
    out = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return _trim(out)


def value_at(poly: Poly, x: Fraction) -> Fraction:
    """Value at a rational point."""
    total = Fraction(0)
    for coefficient in reversed(poly):
        total = total * x + coefficient
    return total


def quotient(node: Node, name: str) -> tuple[Poly, Poly]:
    """Numerator and denominator of a rational function of ``name``.

    Raises:
        NotSolved: it is none, or of too high a degree.
    """
    if name not in symbols(node):
        try:
            value = exact(node)
        except NotExact as error:
            raise NotSolved from error
        return ((value,) if value else (), (Fraction(1),))
    match node:
        case Sym():
            return (Fraction(0), Fraction(1)), (Fraction(1),)
        case Add():
            top, bottom = (), (Fraction(1),)  # type: tuple[Poly, Poly]
            for term in node.terms:
                a, b = quotient(term, name)
                top, bottom = (
                    (_plus(top, a), bottom)
                    if b == bottom
                    else (_plus(_times(top, b), _times(a, bottom)), _times(bottom, b))
                )
            return top, bottom
        case Mul():
            top, bottom = (Fraction(1),), (Fraction(1),)
            for factor in node.factors:
                a, b = quotient(factor, name)
                top, bottom = _times(top, a), _times(bottom, b)
            return top, bottom
        case Pow(exp=Num() as exponent) if exponent.value.denominator == 1 and abs(exponent.value) <= MAX_DEGREE:
            a, b = quotient(node.base, name)
            if exponent.value < 0:
                a, b = b, a
            top, bottom = (Fraction(1),), (Fraction(1),)
            for _ in range(abs(int(exponent.value))):
                top, bottom = _times(top, a), _times(bottom, b)
            return top, bottom
    raise NotSolved


def roots(poly: Poly) -> list[Root]:
    """Real roots as exact nodes, in no order.

    Raises:
        NotSolved: a root that is neither rational nor of a square factor, or the zero polynomial.
    """
    if not poly:
        raise NotSolved
    found: list[Root] = []
    rest = list(poly)
    while len(rest) > 3:
        root = _rational_root(tuple(rest))
        if root is None:
            return found + _surds_of_factors(tuple(rest))
        found.append((Num(root), float(root), root))
        rest = _deflated(rest, root)
    if len(rest) == 2:
        root = -rest[0] / rest[1]
        found.append((Num(root), float(root), root))
    elif len(rest) == 3:
        found += _quadratic(*rest)
    return found


def _quadratic(c: Fraction, b: Fraction, a: Fraction) -> list[Root]:
    delta = b * b - 4 * a * c
    if delta < 0:
        return []
    top, bottom = isqrt(delta.numerator), isqrt(delta.denominator)
    if top * top == delta.numerator and bottom * bottom == delta.denominator:
        step = Fraction(top, bottom)
        return [(Num(value), float(value), value) for value in {(-b + step) / (2 * a), (-b - step) / (2 * a)}]
    result: list[Root] = []
    for sign in (1, -1):
        node = add(Num(-b / (2 * a)), multiply(Num(sign / (2 * a)), Pow(Num(delta), HALF)))
        result.append((node, float(-b / (2 * a)) + float(sign / (2 * a)) * float(delta) ** 0.5, None))
    return result


def _rational_root(poly: Poly) -> Fraction | None:
    if not poly[0]:
        return Fraction(0)
    scale = 1
    for value in poly:
        scale = scale * value.denominator // _gcd(scale, value.denominator)
    first, last = abs(int(poly[0] * scale)), abs(int(poly[-1] * scale))
    if max(first, last) > 10_000:
        return None
    for p in _divisors(first):
        for q in _divisors(last):
            for candidate in (Fraction(p, q), Fraction(-p, q)):
                if not value_at(poly, candidate):
                    return candidate
    return None


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def _divisors(value: int) -> list[int]:
    return [k for k in range(1, value + 1) if value % k == 0]


def _deflated(poly: list[Fraction], root: Fraction) -> list[Fraction]:
    out: list[Fraction] = []
    carry = Fraction(0)
    for coefficient in reversed(poly):
        carry = carry * root + coefficient
        out.append(carry)
    return out[:-1][::-1]


def _surds_of_factors(poly: Poly) -> list[Root]:
    """Roots of what has no rational ones, where it splits into quadratics."""
    import sympy

    x = sympy.Symbol("x")
    expression = sum(sympy.Rational(c.numerator, c.denominator) * x**k for k, c in enumerate(poly))
    found: list[Root] = []
    for factor, _ in sympy.factor_list(expression, x)[1]:
        parts = [Fraction(int(c.p), int(c.q)) for c in sympy.Poly(factor, x).all_coeffs()]
        if len(parts) > 3:
            if sympy.Poly(factor, x).count_roots():
                raise NotSolved
            continue
        found += _quadratic(parts[2], parts[1], parts[0]) if len(parts) == 3 else roots(tuple(reversed(parts)))
    return found


def between(low: Root | None, high: Root | None) -> Fraction:
    """A rational number between two roots; None stands for infinity."""
    if low is None and high is None:
        return Fraction(0)
    if low is None:
        assert high is not None
        return Fraction(int(high[1])) - 2
    if high is None:
        return Fraction(int(low[1])) + 2
    middle = Fraction((low[1] + high[1]) / 2)
    if not low[1] < float(middle) < high[1]:
        raise NotSolved
    return middle


def _holds(op: str, value: Fraction) -> bool:
    sign = (value > 0) - (value < 0)
    return sign in {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1), "=": (0,), "!=": (-1, 1)}[op]


def pieces(difference: Node, name: str, op: str) -> list[tuple[Node | None, Node | None, bool, bool]]:
    """Pieces ``(low, high, low_open, high_open)`` where ``difference op 0`` holds; None stands for infinity.

    Raises:
        NotSolved: see :func:`quotient` and :func:`roots`.
    """
    top, bottom = quotient(difference, name)
    if not bottom:
        raise NotSolved
    zeros = roots(top) if len(top) > 1 else []
    poles = roots(bottom) if len(bottom) > 1 else []
    points: list[tuple[Root, bool]] = []
    for root, is_pole in sorted([(p, True) for p in poles] + [(z, False) for z in zeros], key=lambda item: item[0][1]):
        if points and abs(points[-1][0][1] - root[1]) < 1e-9 * max(1.0, abs(root[1])):
            points[-1] = (points[-1][0], points[-1][1] or is_pole)
        else:
            points.append((root, is_pole))
    edges: list[Root | None] = [None, *(point[0] for point in points), None]
    out: list[tuple[Node | None, Node | None, bool, bool]] = []
    for index, (low, high) in enumerate(pairwise(edges)):
        x = between(low, high)
        below = value_at(bottom, x)
        if not below:
            raise NotSolved
        if _holds(op, value_at(top, x) / below):
            out.append((low[0] if low else None, high[0] if high else None, True, True))
        if high is not None and not points[index][1] and _holds(op, Fraction(0)):
            out.append((high[0], high[0], False, False))
    return out
