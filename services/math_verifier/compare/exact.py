"""Exact rational values, bounded: no result above ``MAX_BITS`` is ever built, and no float is ever used."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from typing import Final

from math_verifier.parse.ast import Add, BaseNum, Big, Fn, Mul, Node, Num, Pow, Sym, map_children

MAX_BITS: Final = 1 << 19
MAX_TERMS: Final = 2000
"""Longest sum or product that is written out."""
MAX_FACTORIAL: Final = 25_000


class NotExact(Exception):
    """The node has no exact rational value within the bounds."""


def exact(node: Node) -> Fraction:
    """Value of ``node`` as a fraction.

    Raises:
        NotExact: irrational, symbolic, undefined or too large.
    """
    match node:
        case Num():
            return node.value
        case Add():
            return reduce(lambda total, term: _small(total + exact(term)), node.terms, Fraction(0))
        case Mul():
            result = Fraction(1)
            for factor in node.factors:
                result = _small(result * exact(factor))
            return result
        case Pow():
            return _power(node)
        case BaseNum():
            return Fraction(int(node.digits, node.base))
        case Fn():
            return _function(node.name, node.args)
        case Big(kind="sum" | "prod"):
            return _series(node)
    raise NotExact


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _small(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise NotExact
    return value


def _power(node: Pow) -> Fraction:
    exponent = exact(node.exp)
    base = exact(node.base)
    if base == 0:
        if exponent > 0:
            return Fraction(0)
        if exponent == 0:
            return Fraction(1)
        raise NotExact
    if base == 1:
        return base
    if exponent.denominator != 1:
        base = root(base, exponent.denominator)
        exponent = Fraction(exponent.numerator)
    count = abs(exponent.numerator)
    if abs(base) != 1 and count * (_bits(base) - 1) > MAX_BITS:
        raise NotExact
    if abs(base) == 1:
        return base if count % 2 else Fraction(1)
    return base**exponent.numerator


def root(value: Fraction, degree: int) -> Fraction:
    """Exact real root; of a negative number only for odd degrees.

    Raises:
        NotExact: irrational or not real.
    """
    if not 0 < degree <= 1000:
        raise NotExact
    sign = 1
    if value < 0:
        if degree % 2 == 0:
            raise NotExact
        sign = -1
    return sign * Fraction(_iroot(abs(value.numerator), degree), _iroot(value.denominator, degree))


def _iroot(value: int, degree: int) -> int:
    if value < 2 or degree == 1:
        return value
    if degree == 2:
        guess = math.isqrt(value)
    else:
        guess = 1 << -(-value.bit_length() // degree)
        while True:
            step = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
            if step >= guess:
                break
            guess = step
    if guess**degree != value:
        raise NotExact
    return guess


def _integer(node: Node, low: int | None = None) -> int:
    value = exact(node)
    if value.denominator != 1 or (low is not None and value < low):
        raise NotExact
    return value.numerator


def _whole(value: Fraction) -> int:
    if value.denominator != 1:
        raise NotExact
    return value.numerator


def _function(name: str, args: tuple[Node, ...]) -> Fraction:
    match name:
        case "abs":
            return abs(exact(args[0]))
        case "floor":
            return Fraction(math.floor(exact(args[0])))
        case "ceil":
            return Fraction(math.ceil(exact(args[0])))
        case "sgn":
            value = exact(args[0])
            return Fraction((value > 0) - (value < 0))
        case "factorial":
            return _factorial(_integer(args[0], 0), 1)
        case "factorial2":
            return _factorial(_integer(args[0], 0), 2)
        case "binom" | "perm" if len(args) == 2:
            total, chosen = _integer(args[0], 0), _integer(args[1], 0)
            if min(chosen, abs(total - chosen)) > 5000 or total.bit_length() > 64:
                raise NotExact
            return _small(Fraction(math.comb(total, chosen) if name == "binom" else math.perm(total, chosen)))
        case "gcd":
            return Fraction(math.gcd(*(_integer(arg) for arg in args)))
        case "lcm":
            return _small(Fraction(math.lcm(*(_integer(arg) for arg in args))))
        case "max":
            return max(exact(arg) for arg in args)
        case "min":
            return min(exact(arg) for arg in args)
        case "mod" if len(args) == 2:
            modulus = exact(args[1])
            if not modulus:
                raise NotExact
            try:
                return exact(args[0]) % modulus
            except NotExact:
                from math_verifier.compare.modular import residue

                return Fraction(residue(args[0], _whole(modulus)))
        case "root":
            return root(exact(args[0]), _integer(args[1], 1))
        case "log" if len(args) == 2:
            return _log(exact(args[0]), exact(args[1]))
        case "lg":
            return _log(exact(args[0]), Fraction(10))
        case "deg":
            return exact(args[0])
    raise NotExact


def _factorial(value: int, step: int) -> Fraction:
    if value > MAX_FACTORIAL:
        raise NotExact
    return _small(Fraction(math.factorial(value) if step == 1 else math.prod(range(value, 0, -2))))


def _log(value: Fraction, base: Fraction) -> Fraction:
    if value <= 0 or base <= 1 or _bits(value) > 4096:
        raise NotExact
    if value < 1:
        return -_log(1 / value, base)
    count, power = 0, Fraction(1)
    while power < value:
        power *= base
        count += 1
        if count > 4096:
            raise NotExact
    if power != value:
        raise NotExact
    return Fraction(count)


def _series(node: Big) -> Fraction:
    if node.low is None or node.high is None:
        raise NotExact
    low, high = _integer(node.low), _integer(node.high)
    if high - low >= MAX_TERMS:
        raise NotExact
    total = Fraction(0 if node.kind == "sum" else 1)
    for index in range(low, high + 1):
        term = exact(substitute(node.body, node.var, Num(Fraction(index))))
        total = _small(total + term if node.kind == "sum" else total * term)
    return total


def substitute(node: Node, name: str, value: Node) -> Node:
    """``node`` with the symbol ``name`` replaced."""
    if isinstance(node, Sym):
        return value if node.name == name else node
    if isinstance(node, Big) and node.var == name:
        return node
    return map_children(node, lambda child: substitute(child, name, value))
