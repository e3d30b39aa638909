"""Remainders of numbers far too large to build: ``7^{7^{7^7}} mod 10^9``.

Everything is integer arithmetic. A tower of powers is reduced by Euler's theorem in the form that also holds where base
and modulus have factors in common: ``b^e = b^(e mod phi + phi)`` for every ``e`` of at least the modulus's bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from math_verifier.compare.exact import NotExact, exact
from math_verifier.parse.ast import Add, Fn, Mul, Node, Num, Pow

MAX_MODULUS: Final = 1 << 64
"""Largest modulus whose powers are reduced."""
TRIAL: Final = 1 << 16
"""Divisors up to here are tried; a modulus with two larger prime factors is given up."""


def residue(node: Node, modulus: int) -> int:
    """``node`` modulo ``modulus``, from 0.

    Raises:
        NotExact: not a whole number, or not within the bounds.
    """
    if not 0 < modulus <= MAX_MODULUS:
        raise NotExact
    if modulus == 1:
        return 0
    match node:
        case Num():
            if node.value.denominator != 1:
                raise NotExact
            return node.value.numerator % modulus
        case Add():
            return sum(residue(term, modulus) for term in node.terms) % modulus
        case Mul():
            result = 1
            for factor in node.factors:
                result = result * residue(factor, modulus) % modulus
            return result
        case Pow():
            return _power(node, modulus)
        case Fn(name="factorial"):
            if capped(node.args[0], modulus) >= modulus:
                return 0
    value = exact(node)
    if value.denominator != 1:
        raise NotExact
    return value.numerator % modulus


def _power(node: Pow, modulus: int) -> int:
    base = residue(node.base, modulus)
    least = modulus.bit_length() + 1
    size = capped(node.exp, 1 << 62)
    if size < 1 << 62:
        return pow(base, size, modulus)
    totient = _totient(modulus)
    return pow(base, residue(node.exp, totient) + totient * -(-least // totient), modulus)


def capped(node: Node, cap: int) -> int:
    """The whole number ``node``, at least 0, or ``cap`` where it is larger.

    Raises:
        NotExact: not known to be one.
    """
    match node:
        case Num():
            if node.value.denominator != 1 or node.value < 0:
                raise NotExact
            return min(node.value.numerator, cap)
        case Add():
            return min(sum(capped(term, cap) for term in node.terms), cap)
        case Mul():
            factors = [capped(factor, cap) for factor in node.factors]
            result = 1
            for factor in factors:
                result = min(result * factor, cap)
            return 0 if 0 in factors else result
        case Pow():
            base, exponent = capped(node.base, cap), capped(node.exp, cap.bit_length() + 1)
            if base < 2 or not exponent:
                return base if exponent else 1
            return min(base**exponent, cap) if exponent <= cap.bit_length() and base < cap else cap
        case Fn(name="factorial"):
            count = capped(node.args[0], cap)
            result = 1
            for factor in range(2, count + 1):
                result *= factor
                if result >= cap:
                    return cap
            return min(result, cap)
    raise NotExact


@lru_cache(maxsize=64)
def _totient(modulus: int) -> int:
    rest, result, divisor = modulus, modulus, 2
    while divisor <= TRIAL and divisor * divisor <= rest:
        if rest % divisor == 0:
            result -= result // divisor
            while rest % divisor == 0:
                rest //= divisor
        divisor += 1 if divisor == 2 else 2
    if rest > 1:
        if divisor * divisor <= rest:
            raise NotExact
        result -= result // rest
    return result
