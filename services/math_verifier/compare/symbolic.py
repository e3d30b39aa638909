"""The last stage: SymPy. Runs only inside a killable worker, since nothing here is bounded."""

from __future__ import annotations

from typing import Any

import sympy

from math_verifier.compare.decision import Decision, no, unknown, yes
from math_verifier.compare.exact import MAX_BITS, MAX_FACTORIAL
from math_verifier.parse.ast import Add, Apply, BaseNum, Big, Const, Fn, Mul, Node, Num, Pow, Sym, integer

_SAME_NAME = "sin cos tan cot sec csc sinh cosh tanh coth sech csch exp floor factorial factorial2 gcd lcm re im arg"
_OTHER_NAME = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "ln": "log", "abs": "Abs", "ceil": "ceiling",
    "binom": "binomial", "perm": "ff", "max": "Max", "min": "Min", "mod": "Mod", "conj": "conjugate", "sgn": "sign",
    "root": "real_root",
}  # fmt: skip
_FUNCTIONS: dict[str, Any] = {
    name: getattr(sympy, other)
    for name, other in {**{name: name for name in _SAME_NAME.split()}, **_OTHER_NAME}.items()
}
_GROWING = frozenset(("factorial", "factorial2", "binom", "perm"))
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "inf": sympy.oo}


class NotSymbolic(Exception):
    """SymPy has no counterpart."""


def to_sympy(node: Node) -> Any:
    """SymPy expression of ``node``.

    Raises:
        NotSymbolic: no counterpart.
    """
    match node:
        case Num():
            return sympy.Rational(node.value.numerator, node.value.denominator)
        case Sym():
            return sympy.Symbol(node.name, real=True)
        case Const() if node.name in _CONSTANTS:
            return _CONSTANTS[node.name]
        case BaseNum():
            return sympy.Integer(int(node.digits, node.base))
        case Add():
            return sympy.Add(*map(to_sympy, node.terms))
        case Mul():
            return sympy.Mul(*map(to_sympy, node.factors))
        case Pow():
            return _power(node)
        case Apply():
            return sympy.Function(node.name)(*map(to_sympy, node.args))
        case Big():
            return _big(node)
        case Fn():
            return _function(node)
    raise NotSymbolic(type(node).__name__)


def _power(node: Pow) -> Any:
    """A power, unless SymPy would multiply it out to millions of digits."""
    base, exponent = to_sympy(node.base), to_sympy(node.exp)
    if base.is_Rational and exponent.is_Rational and base not in {0, 1, -1}:
        bits = max(base.p.bit_length(), base.q.bit_length())
        if abs(exponent) * bits > MAX_BITS:
            raise NotSymbolic("a power with millions of digits")
    return sympy.Pow(base, exponent)


def _function(node: Fn) -> Any:
    args = [to_sympy(arg) for arg in node.args]
    if node.name in _GROWING and any(arg.is_Number and abs(arg) > MAX_FACTORIAL for arg in args):
        raise NotSymbolic("a factorial with millions of digits")
    match node.name:
        case "log":
            return sympy.log(*args)
        case "lg":
            return sympy.log(args[0], 10)
        case "deg":
            return args[0]
        case "pct":
            return args[0] / 100
    if node.name not in _FUNCTIONS:
        raise NotSymbolic(node.name)
    return _FUNCTIONS[node.name](*args)


def _big(node: Big) -> Any:
    var = sympy.Symbol(node.var, real=True)
    body = to_sympy(node.body)
    match node.kind:
        case "sum" | "prod" if node.low is not None and node.high is not None:
            index = sympy.Symbol(node.var, integer=True)
            make = sympy.Sum if node.kind == "sum" else sympy.Product
            return make(body.subs(var, index), (index, to_sympy(node.low), to_sympy(node.high))).doit()
        case "int":
            bounds = (var,) if node.low is None or node.high is None else (var, to_sympy(node.low), to_sympy(node.high))
            return sympy.integrate(body, bounds if len(bounds) == 3 else var)
        case "lim" if node.low is not None:
            point = to_sympy(node.low)
            side = "+-" if node.high is None else "+" if node.high == integer(1) else "-"
            return sympy.limit(body, var, point, side if point.is_finite else "+")
        case "diff":
            return sympy.diff(body, var)
    raise NotSymbolic(node.kind)


def symbolic(a: Node, b: Node) -> Decision:
    """Compare two expressions with SymPy."""
    try:
        left, right = to_sympy(a), to_sympy(b)
        if left.has(sympy.zoo, sympy.nan) or right.has(sympy.zoo, sympy.nan):
            return unknown("symbolic", "not defined")
        if left == right:
            return yes("symbolic")
        if not (left.is_finite is not False and right.is_finite is not False):
            return no("symbolic", "an infinite value")
        difference = sympy.simplify(left - right)
        unknowns = _antiderivative(a) | _antiderivative(b)
        if unknowns and difference != 0:
            difference = difference.replace(_log_of_modulus, lambda part: sympy.log(part.args[0].args[0]))
        for name in unknowns:
            difference = sympy.simplify(sympy.diff(difference, sympy.Symbol(name, real=True)))
        if difference == 0:
            return yes("symbolic")
        found = difference.equals(0)
    except NotSymbolic as error:
        return unknown("symbolic", f"not comparable: {error}")
    except (
        ArithmeticError,
        AttributeError,
        IndexError,
        KeyError,
        NotImplementedError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        # SymPy raises any of these for input it does not handle; none of them says anything about equality.
        return unknown("symbolic", f"SymPy cannot tell: {type(error).__name__}")
    if found is None:
        return unknown("symbolic", "SymPy cannot tell")
    return yes("symbolic") if found else no("symbolic", "the difference is not zero")


def _log_of_modulus(part: Any) -> bool:
    """``log |u|``, which has the derivative of ``log u``."""
    return isinstance(part, sympy.log) and isinstance(part.args[0], sympy.Abs)


def _antiderivative(node: Node) -> set[str]:
    """Variables of integrals without bounds: what they give holds up to a constant."""
    return {part.var for part in node.walk() if isinstance(part, Big) and part.kind == "int" and part.low is None}
