"""Sets of real numbers as sorted, disjoint intervals with exact endpoints kept beside their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mpmath import mp

from math_verifier.compare.exact import NotExact, exact, substitute
from math_verifier.compare.inequalities import NotSolved, pieces
from math_verifier.compare.numeric import DIGITS, real_value
from math_verifier.compare.relations import FLIP, moved
from math_verifier.parse.ast import (  # fmt: skip
    INFINITY,
    ZERO,
    Apply,
    Const,
    Fn,
    Interval,
    Logic,
    Mul,
    Named,
    Node,
    Num,
    Rel,
    Seq,
    SetBuilder,
    SetOp,
    Sym,
    integer,
    map_children,
    negate,
    symbols,
)


class NotReal(Exception):
    """The node is no set of reals with known endpoints."""


@dataclass(frozen=True, slots=True)
class End:
    """An endpoint: ``value`` orders it, ``node`` is what it is exactly."""

    value: Any
    node: Node


@dataclass(frozen=True, slots=True)
class Span:
    low: End
    high: End
    low_open: bool
    high_open: bool


Spans = tuple[Span, ...]
_LOW = End(mp.mpf("-inf"), negate(INFINITY))
_ZERO = End(mp.mpf(0), ZERO)
_HIGH = End(mp.mpf("inf"), INFINITY)
REALS: Spans = (Span(_LOW, _HIGH, True, True),)
MAX_SPANS = 64
_INTEGERS = frozenset((Named("Z"), Named("N"), Named("Z+"), Named("N+"), Named("N*"), Named("Z*")))


def end(node: Node) -> End:
    if node == INFINITY:
        return _HIGH
    if isinstance(node, Mul) and INFINITY in node.factors:
        rest = [factor for factor in node.factors if factor != INFINITY]
        if len(rest) == 1 and isinstance(rest[0], Num):
            return _LOW if rest[0].value < 0 else _HIGH
    value = real_value(node)
    if value is None:
        raise NotReal
    return End(value, node)


def endless(node: Node) -> bool:
    """Whether ``node`` is plus or minus infinity."""
    return node == INFINITY or (isinstance(node, Mul) and INFINITY in node.factors)


def less(a: End, b: End) -> bool:
    return bool(a.value < b.value) and not same(a, b)


def same(a: End, b: End) -> bool:
    if not (mp.isfinite(a.value) and mp.isfinite(b.value)):
        return bool(a.value == b.value)
    with mp.workdps(DIGITS):
        return bool(
            abs(a.value - b.value) <= mp.mpf(10) ** (10 - DIGITS) * max(abs(a.value), abs(b.value), mp.mpf(10) ** -20)
        )


def variable(node: Node) -> str | None:
    """The one variable that relations in ``node`` speak of, or the one value of a function: ``f(x)``."""
    names = symbols(_bare_calls(node.condition if isinstance(node, SetBuilder) else node))
    return next(iter(names)) if len(names) == 1 else None


def _bare_calls(node: Node) -> Node:
    """``0 < f(x) < 1`` with one letter for ``f(x)``; unchanged where ``x`` stands elsewhere too."""
    if not any(isinstance(part, Apply) for part in node.walk()):
        return node
    return _without_calls(node)


def _without_calls(node: Node) -> Node:
    if isinstance(node, Apply):
        return Sym(repr(node))
    return map_children(node, _without_calls)


def to_spans(node: Node) -> Spans:
    """The set of reals that ``node`` is or describes.

    Raises:
        NotReal: none, or endpoints that are not constants.
    """
    match node:
        case Interval():
            return _written(end(node.low), end(node.high), node.low_open, node.high_open)
        case Seq(kind="tuple" | "vector", items=(low, high)):
            return _written(end(low), end(high), True, True)
        case Seq(kind="set" | "list"):
            spans: Spans = ()
            for item in node.items:
                point = end(item)
                spans = union(spans, (Span(point, point, False, False),))
            return spans
        case Named(name="R"):
            return REALS
        case Named(name="R+"):
            return (Span(End(mp.mpf(0), ZERO), _HIGH, True, True),)
        case Named(name="R-"):
            return (Span(_LOW, End(mp.mpf(0), ZERO), True, True),)
        case Named(name="R*"):
            return difference(REALS, (Span(_ZERO, _ZERO, False, False),))
        case Named(name="empty"):
            return ()
        case SetOp():
            left, right = to_spans(node.left), to_spans(node.right)
            return {"union": union, "intersection": intersection, "difference": difference}[node.op](left, right)
        case Logic():
            combine: Callable[[Spans, Spans], Spans] = union if node.op == "or" else intersection
            result = to_spans(node.items[0])
            for item in node.items[1:]:
                result = combine(result, to_spans(item))
            return result
        case SetBuilder():
            return _builder(node)
        case Rel():
            return _relation(node)
    raise NotReal


def _builder(node: SetBuilder) -> Spans:
    """``{x in A | condition on x}``: its condition, within A."""
    element = node.element
    home: Spans | None = REALS
    if isinstance(element, Rel) and element.ops == ("in",):
        home = None if element.terms[1] in _INTEGERS else to_spans(element.terms[1])
        domain, element = element.terms[1], element.terms[0]
    if not isinstance(element, Sym | Const) or symbols(node.condition) != {element.name}:
        raise NotReal
    found = to_spans(node.condition)
    if home is not None:
        return intersection(found, home)
    return _whole_numbers(found, 1 if domain != Named("Z") else None)


def _whole_numbers(spans: Spans, least: int | None) -> Spans:
    """The integers in ``spans``, where they are few."""
    out: Spans = ()
    for span in spans:
        low = mp.mpf(least) if least is not None and not mp.isfinite(span.low.value) else span.low.value
        if not (mp.isfinite(low) and mp.isfinite(span.high.value)) or span.high.value - low > MAX_SPANS:
            raise NotReal
        for whole in range(int(mp.floor(low)), int(mp.ceil(span.high.value)) + 1):
            point = End(mp.mpf(whole), integer(whole))
            inside = intersection((span,), (Span(point, point, False, False),))
            if inside and (least is None or whole >= least):
                out = union(out, inside)
    return out


def related(items: Sequence[Node]) -> Spans:
    """A list of inequalities in one variable: all at once where that leaves anything, else one or the other."""
    every, any_ = REALS, ()  # type: tuple[Spans, Spans]
    for item in items:
        spans = to_spans(item)
        every, any_ = intersection(every, spans), union(any_, spans)
    return every or any_


def _written(low: End, high: End, low_open: bool, high_open: bool) -> Spans:
    """An interval as it stands; one whose ends are the wrong way round is no way to write the empty set."""
    spans = _span(low, high, low_open, high_open)
    if not spans:
        raise NotReal
    return spans


def _span(low: End, high: End, low_open: bool, high_open: bool) -> Spans:
    if less(high, low):
        return ()
    if same(low, high):
        return () if low_open or high_open else (Span(low, high, False, False),)
    low_open = low_open or not mp.isfinite(low.value)
    high_open = high_open or not mp.isfinite(high.value)
    return (Span(low, high, low_open, high_open),)


def _relation(node: Rel) -> Spans:
    bare = _bare_calls(node)
    assert isinstance(bare, Rel)
    node = bare
    result = REALS
    for left, op, right in zip(node.terms, node.ops, node.terms[1:], strict=False):
        if op in {"in", "notin"}:
            if isinstance(left, Sym | Const):
                inner = to_spans(right)
                result = intersection(result, inner if op == "in" else difference(REALS, inner))
                continue
            raise NotReal
        if isinstance(left, Fn) and left.name == "abs" and not symbols(right):
            result = intersection(result, _absolute(left.args[0], op, right))
        elif isinstance(right, Fn) and right.name == "abs" and not symbols(left):
            result = intersection(result, _absolute(right.args[0], FLIP.get(op, op), left))
        elif isinstance(right, Sym) and not symbols(left):
            flipped = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(op, op)
            result = intersection(result, _bound(flipped, end(left)))
        elif isinstance(left, Sym) and not symbols(right):
            result = intersection(result, _bound(op, end(right)))
        else:
            result = intersection(result, _solved(Rel((op,), (left, right))))
    return result


def _absolute(inner: Node, op: str, bound: Node) -> Spans:
    """``|u| < c`` and its kin, for a constant c."""
    if op not in {"<", "<=", ">", ">="}:
        raise NotReal
    if less(end(bound), _ZERO):
        return () if op in {"<", "<="} else REALS
    if op in {"<", "<="}:
        return to_spans(Logic("and", (Rel((op,), (inner, bound)), Rel((FLIP[op],), (inner, negate(bound))))))
    return to_spans(Logic("or", (Rel((op,), (inner, bound)), Rel((FLIP[op],), (inner, negate(bound))))))


def _solved(node: Rel) -> Spans:
    """An inequality in one variable, solved: between rational functions, or linear with a known slope."""
    names = symbols(node)
    if len(names) != 1 or node.ops[0] not in FLIP:
        raise NotReal
    (name,) = names
    difference_ = moved(node)
    solved = _polynomial(difference_, name, node.ops[0])
    if solved is not None:
        return solved
    try:
        at = [exact(substitute(difference_, name, integer(position))) for position in (0, 1, 2, 5)]
    except NotExact as error:
        raise NotReal from error
    slope = at[1] - at[0]
    if not slope or at[2] - at[1] != slope or at[3] - at[0] != 5 * slope:
        raise NotReal
    op = node.ops[0] if slope > 0 else FLIP[node.ops[0]]
    return _bound(op, end(Num(-at[0] / slope)))


def _polynomial(node: Node, name: str, op: str) -> Spans | None:
    try:
        found = pieces(node, name, op.replace("~", "="))
    except (NotSolved, OverflowError):
        return None
    spans: Spans = ()
    for low, high, low_open, high_open in found:
        spans = union(
            spans,
            _span(_LOW if low is None else end(low), _HIGH if high is None else end(high), low_open, high_open),
        )
    return spans


def _bound(op: str, at: End) -> Spans:
    match op:
        case "<" | "<=":
            return _span(_LOW, at, True, op == "<")
        case ">" | ">=":
            return _span(at, _HIGH, op == ">", True)
        case "=" | "~":
            return (Span(at, at, False, False),)
        case "!=":
            return difference(REALS, (Span(at, at, False, False),))
    raise NotReal


def union(a: Spans, b: Spans) -> Spans:
    """Merged and sorted."""
    spans = sorted((*a, *b), key=lambda span: (span.low.value, span.low_open))
    if len(spans) > MAX_SPANS:
        raise NotReal
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        touches = last is not None and (
            less(span.low, last.high) or (same(span.low, last.high) and not (span.low_open and last.high_open))
        )
        if last is None or not touches:
            merged.append(span)
            continue
        if less(last.high, span.high):
            high, high_open = span.high, span.high_open
        elif same(last.high, span.high):
            high, high_open = last.high, last.high_open and span.high_open
        else:
            high, high_open = last.high, last.high_open
        low_open = last.low_open and span.low_open if same(last.low, span.low) else last.low_open
        merged[-1] = Span(last.low, high, low_open, high_open)
    return tuple(merged)


def intersection(a: Spans, b: Spans) -> Spans:
    found: Spans = ()
    for one in a:
        for two in b:
            low, low_open = (one.low, one.low_open) if less(two.low, one.low) else (two.low, two.low_open)
            if same(one.low, two.low):
                low_open = one.low_open or two.low_open
            high, high_open = (one.high, one.high_open) if less(one.high, two.high) else (two.high, two.high_open)
            if same(one.high, two.high):
                high_open = one.high_open or two.high_open
            found = union(found, _span(low, high, low_open, high_open))
    return found


def difference(a: Spans, b: Spans) -> Spans:
    rest = a
    for span in b:
        outside: Spans = ()
        if mp.isfinite(span.low.value):
            outside += _span(_LOW, span.low, True, not span.low_open)
        if mp.isfinite(span.high.value):
            outside += _span(span.high, _HIGH, not span.high_open, True)
        rest = intersection(rest, outside)
    return rest
