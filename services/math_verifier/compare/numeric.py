"""Evaluation at high precision, and the probe that compares two expressions at random points.

A difference seen at any point where both sides are real is proof of inequality. Agreement counts only when it holds
at several points, shrinks with the precision (so that it is no accident of cancellation), and no term was lost beside
a larger one; otherwise the probe says that it does not know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import mpmath
from mpmath import mp

from math_verifier.compare.decision import Decision, no, unknown, yes
from math_verifier.compare.exact import MAX_TERMS, NotExact, exact
from math_verifier.parse.ast import Add, Apply, BaseNum, Big, Const, Fn, Mul, Node, Num, Pow, Sym, symbols

DIGITS: Final = 40
MORE_DIGITS: Final = 90
MOST_DIGITS: Final = 700
"""Constants that agree are looked at once more with this many digits: 2^(1/2^1000) is not 1."""
POINTS: Final = (
    (0.7312, 0.519), (1.6180, 0.233), (2.3719, 0.871), (-0.6421, 0.377), (-1.7391, 0.611), (0.2931, 0.127),
    (3.8127, 0.417), (-2.9141, 0.733),
)  # fmt: skip
SIGNS: Final = ("++++", "++++", "-+-+", "+--+", "-+--", "++++", "+-+-", "----")
"""Signs of the coordinates beyond the first, point by point: any two coordinates meet with all signs."""
INTEGER_POINTS: Final = (2, 3, 5, 4)
WHOLE_POINTS: Final = (1, 2, 3, 4, 5, 6, 8, 9, 11, 14, 17, 23)
NEEDED: Final = 3
NEEDED_WHOLE: Final = 9
_TURN: Final = 0.371
"""Imaginary part of the probe points of complex variables, as a share of the real one."""
MAX_MAGNITUDE: Final = 1 << 44
"""Largest power of two, as an exponent, that a value may reach."""


MARGIN: Final = 56
"""Bits within which agreement is not told from equality: a term or argument smaller than that counts as lost."""


class Undefined(Exception):
    """No value at this point."""


class Unbounded(Exception):
    """The value is too large to hold even as an exponent."""


class Unsupported(Exception):
    """Numeric evaluation does not know this node."""


@dataclass(slots=True)
class Evaluator:
    """Evaluates trees at the current mpmath precision; ``lossy`` tells that a term vanished beside a larger one."""

    point: Mapping[str, Any] = field(default_factory=dict)
    lossy: bool = False
    radians: bool = False
    left_reals: bool = False

    def value(self, node: Node) -> Any:
        """Value of ``node``.

        Raises:
            Undefined, Unbounded, Unsupported: see the classes.
        """
        match node:
            case Num():
                top, bottom = node.value.numerator, node.value.denominator
                return mp.mpf(top) if bottom == 1 else mp.mpf(top) / bottom
            case Sym():
                if node.name not in self.point:
                    raise Unsupported(node.name)
                return self.point[node.name]
            case Const():
                return self.constant(node.name)
            case BaseNum():
                return mp.mpf(int(node.digits, node.base))
            case Add():
                return self.total([self.value(term) for term in node.terms])
            case Mul():
                product = mp.mpf(1)
                for factor in node.factors:
                    product = self.bounded(product * self.value(factor))
                return product
            case Pow():
                return self.power(node)
            case Fn():
                return self.function(node)
            case Apply():
                return self.opaque(node)
            case Big(kind="sum" | "prod"):
                return self.series(node)
        raise Unsupported(type(node).__name__)

    def constant(self, name: str) -> Any:
        match name:
            case "pi":
                return +mp.pi
            case "e":
                return +mp.e
            case "i":
                return mp.mpc(0, 1)
        raise Unsupported(name)

    def bounded(self, value: Any) -> Any:
        parts = getattr(value, "_mpf_", None)
        if parts is not None and parts[1] and abs(parts[2] + parts[3]) <= MAX_MAGNITUDE:
            return value
        if not mp.isfinite(value):
            raise Undefined
        if value and abs(mp.mag(value)) > MAX_MAGNITUDE:
            raise Unbounded
        return value

    def total(self, terms: list[Any]) -> Any:
        result = mp.fsum(terms)
        if len(terms) > 1:
            top = max((mp.mag(term) for term in terms if term), default=0)
            if any(term and mp.mag(term) < top - mp.prec + MARGIN for term in terms):
                self.lossy = True
        return result

    def power(self, node: Pow) -> Any:
        base = self.value(node.base)
        exponent = self.value(node.exp)
        if not base:
            if mp.re(exponent) < 0:
                raise Undefined
            return mp.mpf(1) if not exponent else mp.mpf(0)
        if exponent and base != 1 and not (mp.mag(exponent) <= 20 and abs(mp.mag(base)) <= 1 << 20):
            size = mp.mag(exponent) + max(mp.mag(mp.log(abs(base))) if abs(base) != 1 else 0, 0)
            if size > 60:
                raise Unbounded
            if abs(exponent) * abs(mp.log(abs(base))) > MAX_MAGNITUDE:
                raise Unbounded
        if (
            mp.im(base) == 0
            and mp.re(base) < 0
            and isinstance(node.exp, Num)
            and node.exp.value.denominator % 2
            and node.exp.value.denominator > 1
        ):
            magnitude = mp.power(-mp.re(base), exponent)
            return -magnitude if node.exp.value.numerator % 2 else magnitude
        if exponent and mp.mag(exponent) < MARGIN - mp.prec:
            self.lossy = True
        result = self.bounded(mp.power(base, exponent))
        if mp.im(result) and not mp.im(base):
            self.left_reals = True
        return result

    def series(self, node: Big) -> Any:
        if node.low is None or node.high is None:
            raise Unsupported("bounds")
        low, high = self.value(node.low), self.value(node.high)
        if low != mp.floor(mp.re(low)) or high != mp.floor(mp.re(high)) or high - low >= MAX_TERMS:
            raise Unsupported("bounds")
        outer = self.point
        result: list[Any] = []
        product = mp.mpf(1)
        for index in range(int(low), int(high) + 1):
            self.point = {**outer, node.var: mp.mpf(index)}
            term = self.value(node.body)
            if node.kind == "sum":
                result.append(term)
            else:
                product = self.bounded(product * term)
        self.point = outer
        return mp.fsum(result) if node.kind == "sum" else product

    def opaque(self, node: Apply) -> Any:
        """An unknown function stands for some smooth one, fixed by its name."""
        seed = int.from_bytes(hashlib.sha256(node.name.encode()).digest()[:4], "big") / 2**32
        result = mp.mpf(seed) + mp.mpf("0.37")
        for place, arg in enumerate(node.args, start=1):
            result += mp.sin(self.value(arg) * (mp.mpf(seed) + place) / 3 + seed)
        return result

    def function(self, node: Fn) -> Any:
        name = node.name
        if name in _TRIGONOMETRIC:
            outer, self.radians = self.radians, True
            x = self.value(node.args[0])
            self.radians = outer
            if x and mp.mag(x) > 4000:
                raise Unbounded
            if name in _PERIODIC and x and mp.mag(x) > mp.prec - MARGIN:
                raise Unsupported(f"{name} of a number that is not known to a period")
            result = self.bounded(_call(_TRIGONOMETRIC[name], x))
            if x and abs(mp.mag(x)) > 3:
                self.saturation(name, x)
            return result
        args = [self.value(arg) for arg in node.args]
        x = args[0] if args else mp.mpf(0)
        match name:
            case "deg":
                return x * mp.pi / 180 if self.radians else x
            case "pct":
                return x / 100
            case "exp":
                if mp.mag(x) > 44:
                    raise Unbounded
                if x and -mp.mag(x) > mp.prec - MARGIN:
                    self.lossy = True
                return mp.exp(x)
            case "ln" | "log" | "lg":
                return self.logarithm(name, args)
            case "root":
                degree = args[1]
                if degree and mp.mag(degree) > mp.prec - MARGIN:
                    self.lossy = True
                if degree != mp.floor(mp.re(degree)) or degree < 1:
                    return _call(mp.power, x, 1 / degree)
                if mp.im(x) == 0 and mp.re(x) < 0 and int(degree) % 2:
                    return -mp.power(-mp.re(x), 1 / degree)
                return mp.power(x, 1 / degree)
            case "factorial" | "factorial2":
                if x and (mp.mag(x) > 36):
                    raise Unbounded
                return self.bounded(_call(mp.factorial if name == "factorial" else mp.fac2, x))
            case "binom" | "perm":
                if any(arg and mp.mag(arg) > 36 for arg in args):
                    raise Unbounded
                return self.bounded(_call(mp.binomial, *args) if name == "binom" else _call(mp.ff, *args))
            case "abs":
                return abs(x)
            case "floor" | "ceil":
                return self.step(mp.floor if name == "floor" else mp.ceil, x)
            case "max" | "min" if all(mp.im(arg) == 0 for arg in args):
                return (max if name == "max" else min)(mp.re(arg) for arg in args)
            case "re":
                return mp.re(x)
            case "im":
                return mp.im(x)
            case "conj":
                return mp.conj(x)
            case "arg":
                return mp.arg(x)
            case "sgn":
                return mp.sign(x)
            case "gcd" | "lcm" if all(arg == mp.floor(mp.re(arg)) and abs(arg) < 10**12 for arg in args):
                return mp.mpf(exact(Fn(name, tuple(Num(_fraction(arg)) for arg in args))).numerator)
            case "mod" if mp.im(args[0]) == 0 and mp.im(args[1]) == 0 and args[1]:
                return mp.re(x) - mp.re(args[1]) * self.step(mp.floor, mp.re(x) / mp.re(args[1]))
        raise Unsupported(name)

    def saturation(self, name: str, x: Any) -> None:
        """Mark a result that hides its argument: ``tanh 1000`` is 1 and ``cos 10^{-40}`` is 1 as far as one sees."""
        size = mp.mag(x)
        hidden = mp.prec - MARGIN
        self.lossy |= bool(
            (name in _FLAT_AT_ZERO and -2 * size > hidden)
            or (name in {"tanh", "coth"} and 2.8 * abs(x) > hidden)
            or (name in _FLAT_AT_INFINITY and size > hidden)
        )

    def step(self, rounding: Any, x: Any) -> Any:
        """Floor and ceiling, unless the value is too close to a jump to tell."""
        if mp.im(x):
            raise Undefined
        nearest = mp.nint(x)
        if x != nearest and abs(x - nearest) < mp.mpf(10) ** (10 - mp.dps) * max(1, abs(x)):
            raise Unsupported("rounding at a jump")
        return rounding(x)

    def logarithm(self, name: str, args: list[Any]) -> Any:
        if not args[0]:
            raise Undefined
        value = mp.log(args[0])
        if mp.im(value) and not mp.im(args[0]):
            self.left_reals = True
        if name == "lg":
            return value / mp.log(10)
        if len(args) == 2:
            if not args[1] or args[1] == 1:
                raise Undefined
            return value / mp.log(args[1])
        return value


_TRIGONOMETRIC: Final[dict[str, Any]] = {
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "cot": mp.cot, "sec": mp.sec, "csc": mp.csc,
    "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "arccot": mp.acot, "arcsec": mp.asec, "arccsc": mp.acsc,
    "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh, "coth": mp.coth, "sech": mp.sech, "csch": mp.csch,
    "arcsinh": mp.asinh, "arccosh": mp.acosh, "arctanh": mp.atanh,
}  # fmt: skip

_GROWING: Final = frozenset(("factorial", "factorial2", "binom", "perm", "exp", "sinh", "cosh", "sqrt"))
_PERIODIC: Final = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))
_FLAT_AT_ZERO: Final = frozenset(("cos", "sec", "cosh", "sech", "arccos", "arccot"))
_FLAT_AT_INFINITY: Final = frozenset(("arctan", "arcsec", "arccsc", "arccot"))


def _call(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except (ZeroDivisionError, ValueError, OverflowError) as error:
        raise Undefined from error


def _fraction(value: Any) -> Any:
    from fractions import Fraction

    return Fraction(int(value))


@dataclass(frozen=True, slots=True)
class Sample:
    """One evaluation: ``value`` is None where undefined."""

    value: Any
    lossy: bool
    left_reals: bool = False
    """Whether an even root or a logarithm of a negative number was taken on the way."""


def evaluate(node: Node, digits: int, point: Mapping[str, Any] | None = None) -> Sample:
    """Value of ``node`` with ``digits`` digits.

    Raises:
        Unbounded, Unsupported: see the classes.
    """
    with mp.workdps(digits):
        evaluator = Evaluator(point or {})
        try:
            value = evaluator.bounded(evaluator.value(node))
        except (Undefined, ZeroDivisionError, ValueError, OverflowError, mpmath.libmp.NoConvergence):
            return Sample(None, False)
        return Sample(value, evaluator.lossy, evaluator.left_reals)


def real_value(node: Node, digits: int = DIGITS) -> Any | None:
    """Real value of a constant, or None."""
    if symbols(node):
        return None
    try:
        value = evaluate(node, digits).value
    except (Unbounded, Unsupported, NotExact):
        return None
    if value is None or (mp.im(value) and not _negligible(mp.im(value), mp.re(value), digits)):
        return None
    return mp.re(value)


def _negligible(part: Any, beside: Any, digits: int) -> bool:
    return not part or bool(abs(part) <= _ten(8 - digits, mp.prec) * max(abs(beside), mp.mpf(1)))


@lru_cache(maxsize=256)
def _ten(exponent: int, precision: int) -> Any:
    """Power of ten at the current precision, which is ``precision``."""
    del precision
    return mp.mpf(10) ** exponent


def same_at(
    a: Node, b: Node, point: Mapping[str, Any], digits: tuple[int, int] = (DIGITS, MORE_DIGITS)
) -> tuple[bool | None, bool]:
    """Whether both agree at ``point`` (None: undefined or not to be told), and whether both are real there."""
    low, high = digits
    rough_a, rough_b = evaluate(a, low, point), evaluate(b, low, point)
    if rough_a.value is None or rough_b.value is None:
        return None, False
    with mp.workdps(high):
        real = (
            not (rough_a.left_reals or rough_b.left_reals)
            and _negligible(mp.im(rough_a.value), mp.re(rough_a.value), low)
            and _negligible(mp.im(rough_b.value), mp.re(rough_b.value), low)
        )
        rough = abs(rough_a.value - rough_b.value)
        size = max(abs(rough_a.value), abs(rough_b.value))
        if rough > _ten(-(low // 2), mp.prec) * size and size > _ten(-low // 2, mp.prec):
            return (None, real) if (rough_a.lossy or rough_b.lossy) and rough < size / 1000 else (False, real)
    fine_a, fine_b = evaluate(a, high, point), evaluate(b, high, point)
    if fine_a.value is None or fine_b.value is None:
        return None, real
    with mp.workdps(high):
        fine = abs(fine_a.value - fine_b.value)
        size = max(abs(fine_a.value), abs(fine_b.value))
        shrunk = not fine or (rough and fine < rough * _ten(-(high - low) // 2, mp.prec))
        tiny = size <= _ten(-(low + high) // 2 + 8, mp.prec)
        if tiny and not shrunk:
            return (False, real) if rough else (None, real)
        if fine <= _ten(12 - high, mp.prec) * size or (fine <= _ten(-(low + high) // 2, mp.prec) and tiny):
            return (None, real) if fine_a.lossy or fine_b.lossy else (True, real)
        if rough and fine < rough * _ten(-(high - low) // 2, mp.prec) and fine < _ten(-(low + high) // 2, mp.prec):
            return (None, real) if fine_a.lossy or fine_b.lossy else (True, real)
        return False, real


@lru_cache(maxsize=256)
def points_for(names: frozenset[str], whole: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Deterministic probe points: no simple relation between coordinates, some integer, some negative.

    With ``whole``, those symbols are positive integers everywhere.
    """
    ordered = sorted(names)
    points: list[dict[str, Any]] = []
    if whole:
        for turn, number in enumerate(WHOLE_POINTS):
            base, step = POINTS[turn % len(POINTS)]
            points.append(
                {
                    name: mp.mpf(number + 3 * place) if name in whole else mp.mpf(base) + mp.mpf(step) * place
                    for place, name in enumerate(ordered)
                }
            )
        return points
    for row, (base, step) in enumerate(POINTS):
        points.append(
            {name: mp.mpf(_coordinate(row, place, step) if place else base) for place, name in enumerate(ordered)}
        )
    for turn, start in enumerate(INTEGER_POINTS):
        last = len(ordered) - 1 if turn % 2 else 0
        points.append({name: mp.mpf(start + abs(last - place) * 2 + place % 2) for place, name in enumerate(ordered)})
    return points


def _coordinate(row: int, place: int, step: float) -> float:
    """A coordinate beyond the first: its size and sign have nothing to do with those of the others."""
    size = 0.23 + 3.1 * ((0.7548776662 * (5 * place + 2) + 0.6180339887 * (3 * row + 1) + step) % 1)
    return -size if SIGNS[row][(place - 1) % len(SIGNS[row])] == "-" else size


def probe(a: Node, b: Node) -> Decision:
    """Compare two expressions numerically."""
    names = symbols(a) | symbols(b)
    try:
        if not names:
            return _constants(a, b)
        return _functions(a, b, names, counted(a) | counted(b))
    except Unbounded:
        return _unbounded(a, b)
    except (Unsupported, NotExact) as error:
        return unknown("numeric", f"no numeric value: {error}")


def _constants(a: Node, b: Node) -> Decision:
    same, _ = same_at(a, b, {})
    if same is not False:
        same, _ = same_at(a, b, {}, (MORE_DIGITS, MOST_DIGITS))
    if same is None:
        return unknown("numeric", "beyond the precision")
    return yes("numeric") if same else no("numeric", "values differ")


def counted(node: Node) -> frozenset[str]:
    """Symbols in the bounds of sums and products: they stand for integers."""
    found: set[str] = set()
    for part in node.walk():
        if isinstance(part, Big) and part.kind in {"sum", "prod"}:
            for bound in (part.low, part.high):
                found |= symbols(bound) if bound is not None else frozenset()
    return frozenset(found)


def _complex(node: Node) -> bool:
    """Whether ``node`` is of complex variables: their conjugates, parts and arguments mean nothing of real ones."""
    return isinstance(node, Fn) and node.name in {"conj", "re", "im", "arg"} and bool(symbols(node))


def _functions(a: Node, b: Node, names: frozenset[str], whole: frozenset[str] = frozenset()) -> Decision:
    agreed = complex_agreed = 0
    complex_differ = False
    turned = not whole and any(_complex(part) for node in (a, b) for part in node.walk())
    factor = mp.mpc(1, _TURN) if turned else mp.mpf(1)
    for real_point in points_for(names, whole):
        point = {name: value * factor for name, value in real_point.items()} if turned else real_point
        same, real = same_at(a, b, point)
        if same is None:
            continue
        if real and not same:
            return no("numeric", "values differ at a point")
        if real:
            agreed += 1
        elif same:
            complex_agreed += 1
        else:
            complex_differ = True
    if agreed >= (NEEDED_WHOLE if whole else NEEDED):
        return yes("numeric")
    if whole:
        return unknown("numeric", "too few integers where both are defined")
    if complex_differ:
        return no("numeric", "values differ at a complex point")
    if agreed + complex_agreed >= NEEDED:
        return yes("numeric")
    return unknown("numeric", "too few points where both are defined")


def _unbounded(a: Node, b: Node) -> Decision:
    """Beyond all exponents against an ordinary number is a difference; two such giants are not told apart here."""
    finite = [real_value(node) for node in (a, b)]
    giant = a if finite[0] is None else b
    other = finite[1] if finite[0] is None else finite[0]
    grows = isinstance(giant, Pow) or (isinstance(giant, Fn) and giant.name in _GROWING)
    if other is not None and grows and not symbols(giant):
        return no("numeric", "one value is out of all bounds, the other is not")
    return unknown("numeric", "values out of all bounds")
