"""Equations and inequalities: which are names for a value, and which say the same."""

from __future__ import annotations

import re

from mpmath import mp

from math_verifier.compare.decision import Decision, no, unknown, yes
from math_verifier.compare.exact import substitute
from math_verifier.compare.numeric import DIGITS, Unbounded, Unsupported, evaluate, points_for, real_value
from math_verifier.parse.ast import (
    MINUS_ONE,
    Add,
    Apply,
    Const,
    Fn,
    Mul,
    Node,
    Num,
    Pow,
    Ratio,
    Rel,
    Seq,
    SetOp,
    Sym,
    Text,
    add,
    multiply,
    negate,
    symbols,
)

FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!=", "~": "~"}
_ALIAS = re.compile(r"[A-Za-z](?:_[a-z])?")
_OPAQUE = frozenset("xyz")
_ARGUMENTS = frozenset("xyztnk")
"""Letters that arguments of a polynomial or a sequence have: ``P(A)`` is the probability of some event."""


def is_name(node: Node) -> bool:
    """Whether ``node`` names a quantity, so that ``node = 5`` is just a way of saying 5."""
    match node:
        case Sym() | Apply() | Text():
            return True
        case Const(name="e" | "i"):
            return True
        case Seq(kind="tuple"):
            return all(is_name(item) for item in node.items)
        case SetOp():
            return is_name(node.left) and is_name(node.right)
        case Ratio():
            return all(is_name(item) for item in node.items)
        case Fn(
            name="abs" | "conj" | "sin" | "cos" | "tan" | "max" | "min" | "det" | "gcd" | "lcm" | "arg" | "re" | "im"
        ):
            return all(is_name(arg) for arg in node.args) or not symbols(node)
        case Mul():
            return all(_letter(factor) for factor in node.factors) or _call_like(node)
        case Add():
            return all(isinstance(term, Sym) and term.name[:1] not in _OPAQUE for term in node.terms)
    return False


def _letter(node: Node) -> bool:
    """A letter that is no unknown, or one over it: ``a/b`` names a quotient, ``x/y`` is part of an equation."""
    if isinstance(node, Pow) and node.exp == MINUS_ONE:
        node = node.base
        if isinstance(node, Mul):
            return all(_letter(factor) for factor in node.factors)
    return isinstance(node, Sym) and node.name[:1] not in _OPAQUE


def _call_like(node: Mul) -> bool:
    """``P(A)``, ``S(10)``: a letter times a bracket cannot be told from a product here, but reads as a call."""
    if len(node.factors) != 2:
        return False
    head, argument = node.factors
    return (
        isinstance(head, Sym)
        and head.name.lower() in {"p", "s", "a", "v", "t", "q", "r", "u", "n", "e", "k", "l", "w"}
        and not isinstance(argument, Pow)
    )


def statement_value(node: Node) -> Node | None:
    """The value that a chain like ``k = 1/3``, ``2 + 3 = 5`` or ``x ~ 11`` states, or None."""
    if not isinstance(node, Rel) or any(op not in {"=", "~", "=>"} for op in node.ops):
        return None
    *front, last = node.terms
    if node.ops[-1] == "=>" and isinstance(last, Node):
        return last
    if is_name(last) and not is_name(front[0]) and not any(symbols(term) or isinstance(term, Text) for term in front):
        return front[-1]
    if is_name(front[0]):
        return last
    if not symbols(last) and all(not symbols(term) and not isinstance(term, Text) for term in front):
        return last
    if any(is_name(term) for term in front) and not symbols(last):
        return last
    return None


def statement_name(node: Node) -> Node | None:
    """The name in ``name = value``, or None."""
    if isinstance(node, Rel) and all(op in {"=", "~"} for op in node.ops):
        if is_name(node.terms[0]):
            return node.terms[0]
        if len(node.terms) == 2 and is_name(node.terms[1]):
            return node.terms[1]
    return None


def base_name(name: Node | None) -> Node | None:
    """``x`` of ``x_1``."""
    return Sym(name.name.partition("_")[0]) if isinstance(name, Sym) else name


def _call(node: Node) -> Apply | None:
    """``P(x)``, which the grammar reads as a product, as a call; None for what is neither."""
    if isinstance(node, Mul) and _call_like(node):
        head, argument = node.factors
        return Apply(head.name, (argument,)) if isinstance(head, Sym) and isinstance(argument, Sym) else None
    return node if isinstance(node, Apply) else None


def aliased(one: Node, two: Node, first: Node, second: Node) -> Node | None:
    """``second`` in the letters of ``first``, where ``one = first`` and ``two = second`` define functions under
    different names: ``y = 2x``, ``f(x) = 2x``, ``g(t) = 2t``; None where the names are not just names."""
    call, other_call = _call(one), _call(two)
    if call is not None and other_call is not None:
        sure = isinstance(one, Apply) and isinstance(two, Apply)
        if len(call.args) != len(other_call.args) or not (sure or call.name.casefold() == other_call.name.casefold()):
            return None
        if not sure and any(
            isinstance(arg, Sym) and arg.name not in _ARGUMENTS for arg in (*call.args, *other_call.args)
        ):
            return None
        for own, other in zip(call.args, other_call.args, strict=True):
            if own == other:
                continue
            if not (isinstance(own, Sym) and isinstance(other, Sym)) or own.name in symbols(second):
                return None
            second = substitute(second, other.name, own)
        return second
    if not (symbols(first) or isinstance(one, Apply) or isinstance(two, Apply)):
        return None
    bases = set()
    for name in (one, two):
        if isinstance(name, Sym) and _ALIAS.fullmatch(name.name):
            bases.add(name.name[0])
        elif not isinstance(name, Apply) or not all(isinstance(arg, Sym) for arg in name.args):
            return None
    if bases & {name.partition("_")[0] for name in symbols(first) | symbols(second)}:
        return None
    return second


def coordinates(node: Node) -> Seq | None:
    """``(x, y) = (1, 2)`` as ``x = 1, y = 2``; None for anything else."""
    if not (isinstance(node, Rel) and node.ops == ("=",)):
        return None
    left, right = node.terms
    if not (isinstance(left, Seq) and isinstance(right, Seq) and left.kind == right.kind == "tuple"):
        return None
    if len(left.items) != len(right.items) or not all(isinstance(item, Sym) for item in left.items):
        return None
    return Seq(tuple(Rel(("=",), pair) for pair in zip(left.items, right.items, strict=True)), "list")


def value_before_rounding(node: Rel) -> Node | None:
    """``1/3`` of ``x = 1/3 ~ 0.33``, or None."""
    if "~" not in node.ops:
        return None
    before = node.terms[node.ops.index("~")]
    return None if is_name(before) else before


def consistent(node: Rel) -> bool:
    """Whether the constants of a chain agree to a twentieth, as far as they have values: ``5 = 6`` states nothing."""
    values = [value for term in node.terms if not is_name(term) and (value := real_value(term)) is not None]
    return all(abs(value - values[-1]) <= abs(values[-1]) / 20 for value in values)


def moved(node: Rel) -> Node:
    """``left - right`` of a simple relation."""
    return add(node.terms[0], negate(node.terms[1]))


def proportional(a: Node, b: Node) -> tuple[bool | None, int]:
    """Whether ``a = c b`` for a constant c other than 0, and the sign of c (0: not real or not known)."""
    names = symbols(a) | symbols(b)
    if not names or symbols(a) != symbols(b):
        return (False if names else None), 0
    ratio = None
    seen = 0
    try:
        for point in points_for(names):
            left, right = evaluate(a, DIGITS, point), evaluate(b, DIGITS, point)
            if left.value is None or right.value is None or left.lossy or right.lossy:
                continue
            with mp.workdps(DIGITS):
                tiny = mp.mpf(10) ** (-DIGITS // 2)
                zero = [abs(sample.value) < tiny for sample in (left, right)]
                if all(zero):
                    continue
                if any(zero):
                    return False, 0
                now = left.value / right.value
                if ratio is not None and abs(now - ratio) > mp.mpf(10) ** (12 - DIGITS) * abs(ratio) * 1000:
                    return False, 0
                ratio = now
                seen += 1
    except (Unbounded, Unsupported):
        return None, 0
    if ratio is None or seen < 4:
        return None, 0
    if abs(mp.im(ratio)) > mp.mpf(10) ** (12 - DIGITS) * abs(ratio):
        return True, 0
    return True, 1 if mp.re(ratio) > 0 else -1


def same_relation(a: Rel, b: Rel) -> Decision:
    """Two simple relations between expressions: the same up to moving terms and scaling."""
    op_a, op_b = (rel.ops[0].replace("~", "=") for rel in (a, b))
    if op_a not in FLIP or op_b not in FLIP:
        return no("structural", "different relations") if op_a != op_b else unknown("structural", f"relation {op_a}")
    if op_b not in {op_a, FLIP[op_a]}:
        return no("structural", "different relations")
    if a.terms == b.terms[::-1] and op_b == FLIP[op_a]:
        return yes("structural")
    same, sign = proportional(moved(a), moved(b))
    if same is None:
        return unknown("numeric", "the relation cannot be evaluated")
    if not same:
        if op_a == op_b == "=":
            return _cleared(a, b)
        return no("numeric", "the relations are not equivalent")
    if op_a in {"=", "!="}:
        return yes("numeric")
    if sign == 0:
        return unknown("numeric", "the factor between the sides is not real")
    wanted = op_a if sign > 0 else FLIP[op_a]
    return yes("numeric") if op_b == wanted else no("numeric", "the inequality points the other way")


def _denominator(node: Node) -> bool:
    """Whether ``node`` is a power that can be cleared from an equation: not of a polynomial."""
    if not isinstance(node, Pow) or not symbols(node):
        return False
    return not (isinstance(node.exp, Num) and node.exp.value > 0 and node.exp.value.denominator == 1)


def _cleared(a: Rel, b: Rel) -> Decision:
    """Two equations after both are multiplied by their denominators."""
    if symbols(a) == symbols(b) and any(_denominator(node) for rel in (a, b) for node in rel.walk()):
        same, _ = proportional(_numerator(moved(a)), _numerator(moved(b)))
        if same:
            return yes("numeric")
    return no("numeric", "the equations are not equivalent")


def _numerator(node: Node) -> Node:
    """``node`` times each of its denominators, to the highest power in which it occurs."""
    powers: dict[Node, Num] = {}
    for part in node.walk():
        if isinstance(part, Pow) and isinstance(part.exp, Num) and part.exp.value < 0 and symbols(part):
            highest = powers.get(part.base)
            if highest is None or highest.value < -part.exp.value:
                powers[part.base] = Num(-part.exp.value)
    return multiply(node, *(Pow(base, power) for base, power in powers.items()))
