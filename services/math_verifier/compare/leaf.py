"""Two single values: exact, then as trees, then numerically, then by SymPy."""

from __future__ import annotations

from fractions import Fraction

from mpmath import mp

from math_verifier.compare.decision import Decision, no, unknown, yes
from math_verifier.compare.exact import NotExact, exact, substitute
from math_verifier.compare.numeric import Unbounded, Unsupported, evaluate, probe, real_value
from math_verifier.config import MathPolicy
from math_verifier.parse.ast import (
    INFINITY,
    MINUS_ONE,
    Add,
    Big,
    Const,
    Mul,
    Node,
    Num,
    Pow,
    Sym,
    map_children,
    symbols,
)
from math_verifier.parse.tokens import MAX_EXPONENT

_CONSTANTS = frozenset(("C", "C_1", "c_1"))
_ANY_CONSTANTS = _CONSTANTS | frozenset(("K", "A", "c", "k", "C_0", "c_0", "K_1"))
"""Names of arbitrary constants; two letters that are both only sometimes one are not the same."""
_TEN = Num(Fraction(10), None, "10")

NOISE_DIGITS = 15
MOST_NOISE_DIGITS = 19
"""Binary floating point leaves its noise after about 15 digits, and prints no more than 17."""


def same_value(a: Node, b: Node, policy: MathPolicy) -> Decision:
    """Whether two expressions have the same value."""
    a, b = _one_literal(a), _same_constant(_one_literal(b), a)
    left, right = _exact(a), _exact(b)
    if policy.decimal_tolerance and _decimal(a, b) and (left is None or left != right):
        return _tolerated(a, b, policy.decimal_tolerance)
    if left is not None and right is not None:
        if left == right:
            return yes("exact")
        return yes("exact") if _close(a, b, left, right, policy) else no("exact", "different numbers")
    if a == b:
        return yes("structural")
    if policy.decimal_digits and (isinstance(a, Num) or isinstance(b, Num)):
        number, other = (a, b) if isinstance(a, Num) else (b, a)
        assert isinstance(number, Num)
        if number.places and not symbols(other) and _rounds_irrational(number, other, policy.decimal_digits):
            return yes("numeric")
    ends = endless(a), endless(b)
    if ends[0] or ends[1]:
        return yes("structural") if ends[0] == ends[1] else _not_endless(b if ends[0] else a, a, b)
    if _calculus(a) or _calculus(b) or _infinite(a) or _infinite(b):
        return _symbolic(a, b)
    decision = probe(a, b)
    if decision.equal is not None:
        return decision
    if canonical(a) == canonical(b):
        return yes("structural")
    last = _symbolic(a, b)
    return last if last.equal is not None else unknown("symbolic", decision.reason)


def _same_constant(node: Node, other: Node) -> Node:
    """``node`` with the letter of its arbitrary constant as ``other`` has it: ``x^2 + C`` is ``x^2 + K``.

    Beside a variable only, and not beside other capitals, which are points.
    """
    own, theirs = symbols(node) - symbols(other), symbols(other) - symbols(node)
    shared = symbols(node) & symbols(other)
    if len(own) != 1 or len(theirs) != 1 or not shared or any(name[0].isupper() for name in shared):
        return node
    (name,), (letter,) = own, theirs
    if not ({name, letter} <= _ANY_CONSTANTS and {name, letter} & _CONSTANTS):
        return node
    return substitute(node, name, Sym(letter))


def _one_literal(node: Node) -> Node:
    r"""``2.5 \times 10^{-3}`` as the decimal that it is, with the digits it shows."""
    if not isinstance(node, Mul):
        return node
    sign, rest = (-1, node.factors[1:]) if node.factors[0] == MINUS_ONE else (1, node.factors)
    if len(rest) != 2:
        return node
    number, power = rest
    if not (isinstance(number, Num) and number.places and isinstance(power, Pow) and power.base == _TEN):
        return node
    if not isinstance(power.exp, Num) or power.exp.value.denominator != 1 or abs(power.exp.value) > MAX_EXPONENT:
        return node
    exponent = power.exp.value.numerator
    return Num(sign * number.value * Fraction(10) ** exponent, max(0, number.places - exponent) or None)


def endless(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, 0 for anything else."""
    if node == INFINITY:
        return 1
    if isinstance(node, Mul) and len(node.factors) == 2 and INFINITY in node.factors:
        rest = next((factor for factor in node.factors if factor != INFINITY), None)
        if isinstance(rest, Num) and rest.value:
            return 1 if rest.value > 0 else -1
    return 0


def _not_endless(other: Node, a: Node, b: Node) -> Decision:
    """Infinity against something else: no number, but perhaps a limit or a series."""
    if not (_calculus(other) or _infinite(other)) or endless(other):
        return no("structural", "an infinite value")
    return _symbolic(a, b)


def is_zero(node: Node) -> bool:
    """Whether ``node`` is exactly 0."""
    return _exact(node) == 0


def _decimal(*nodes: Node) -> bool:
    return any(isinstance(node, Num) and node.places is not None for node in nodes)


def _tolerated(a: Node, b: Node, tolerance: float) -> Decision:
    """Whether two constants, of which one is a decimal, differ by no more than a share of the larger."""
    left, right = real_value(a), real_value(b)
    if left is None or right is None:
        return no("numeric", "a decimal against what is no real number")
    close = abs(left - right) <= mp.mpf(tolerance) * max(abs(left), abs(right))
    return yes("numeric") if close else no("numeric", "different numbers")


def _exact(node: Node) -> Fraction | None:
    try:
        return exact(node)
    except NotExact:
        return None


def _symbolic(a: Node, b: Node) -> Decision:
    from math_verifier.compare.symbolic import symbolic

    return symbolic(a, b)


def canonical(node: Node) -> Node:
    """``node`` with the terms of sums and the factors of products in one order."""
    node = map_children(node, canonical)
    if isinstance(node, Num):
        return Num(node.value)
    if isinstance(node, Add):
        return Add(tuple(sorted(node.terms, key=repr)))
    return Mul(tuple(sorted(node.factors, key=repr))) if isinstance(node, Mul) else node


def _calculus(node: Node) -> bool:
    """Sums without end, integrals, limits and derivatives have no value point by point."""
    return any(
        isinstance(part, Big) and (part.kind in {"int", "lim", "diff"} or part.high is None or _infinite(part.high))
        for part in node.walk()
    )


def _infinite(node: Node) -> bool:
    return any(isinstance(part, Const) and part.name == "inf" for part in node.walk())


def _terminating(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def significant(value: Fraction, places: int) -> int:
    """Significant digits of a decimal with ``places`` decimals."""
    return len(str(abs(value.numerator * 10**places // value.denominator)))


def _close(a: Node, b: Node, left: Fraction, right: Fraction, policy: MathPolicy) -> bool:
    places = [node.places if isinstance(node, Num) else None for node in (a, b)]
    if places[0] is not None and places[1] is not None:
        longer, shorter = (
            ((left, places[0]), (right, places[1]))
            if places[0] > places[1]
            else ((right, places[1]), (left, places[0]))
        )
        return (
            NOISE_DIGITS <= significant(*longer) <= MOST_NOISE_DIGITS
            and significant(*shorter) <= 12
            and _rounds(longer[0], shorter[0], longer[1] - 3)
        )
    if not policy.decimal_digits:
        return False
    for decimals, decimal, value in ((places[0], left, right), (places[1], right, left)):
        if decimals is not None and significant(decimal, decimals) >= policy.decimal_digits:
            if not _terminating(value):
                return _rounds(value, decimal, decimals)
            noisy = NOISE_DIGITS <= significant(decimal, decimals) <= MOST_NOISE_DIGITS
            if noisy and (value * 10**12).denominator == 1 and significant(value, 12) <= 12:
                return _rounds(decimal, value, decimals - 3)
    return False


def _rounds(value: Fraction, decimal: Fraction, places: int) -> bool:
    """Whether ``decimal`` is ``value`` rounded or cut to ``places`` decimals."""
    if places <= 0 or (value < 0) != (decimal < 0):
        return False
    step = Fraction(1, 10**places)
    return 2 * abs(value - decimal) <= step or 0 <= abs(value) - abs(decimal) < step


def _rounds_irrational(number: Num, other: Node, digits: int) -> bool:
    assert number.places is not None
    if significant(number.value, number.places) < digits or number.places > 300:
        return False
    try:
        sample = evaluate(other, number.places + significant(number.value, number.places) + 20)
    except (Unbounded, Unsupported, NotExact):
        return False
    if sample.value is None or sample.lossy or mp.im(sample.value):
        return False
    with mp.workdps(number.places + 320):
        value = mp.re(sample.value)
        decimal = mp.mpf(number.value.numerator) / number.value.denominator
        step = mp.mpf(10) ** -number.places
        return bool(2 * abs(value - decimal) <= step or (0 <= abs(value) - abs(decimal) < step and value * decimal > 0))
