"""Comparison of whole answers: statements, lists, sets, matrices, quantities. Single values go to ``leaf``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import reduce
from typing import Final

from math_verifier.compare.decision import Decision, costliest, every, no, yes
from math_verifier.compare.families import same_family
from math_verifier.compare.leaf import is_zero, same_value
from math_verifier.compare.lists import all_whole, assignments, in_order, key, without_common
from math_verifier.compare.matrices import unit_vector
from math_verifier.compare.prepare import prepared
from math_verifier.compare.realsets import NotReal, Spans, endless, related, to_spans, union, variable
from math_verifier.compare.relations import (
    aliased,
    base_name,
    consistent,
    coordinates,
    same_relation,
    statement_name,
    statement_value,
    value_before_rounding,
)
from math_verifier.config import MathPolicy
from math_verifier.parse.ast import (
    Apply,
    BaseNum,
    Clock,
    Fn,
    Interval,
    Logic,
    Matrix,
    Mul,
    Named,
    Node,
    Num,
    Quantity,
    Ratio,
    Rel,
    Seq,
    SetBuilder,
    SetOp,
    Sym,
    Text,
    divide,
    multiply,
)  # fmt: skip
from math_verifier.parse.shapes import plain
from math_verifier.parse.units import dimension

_SETS: Final = (Interval, SetOp, Named)
_ORDERED: Final = frozenset({"tuple", "vector", "bracket"})


def compare(a: Node, b: Node, policy: MathPolicy) -> Decision:
    """Whether two parsed answers are the same; symmetric in ``a`` and ``b``."""
    if a == b:
        return yes("structural")
    if isinstance(a, Seq | SetBuilder) or isinstance(b, Seq | SetBuilder):
        family = same_family(a, b, policy)
        if family is not None:
            return family
    a, b = _by_name(a, b), _by_name(b, a)
    a, b = prepared(a), prepared(b)
    if a == b:
        return yes("structural")
    if _rank(b) < _rank(a):
        a, b = b, a
    return _RULES[_rank(a)](a, b, policy)


def _by_name(node: Node, other: Node) -> Node:
    """``(x, y) = (1, 2)`` as ``x = 1, y = 2`` where the other side has names too, perhaps in another order."""
    if (isinstance(other, Rel) and other.ops == ("=",)) or (
        isinstance(other, Seq) and all(isinstance(item, Rel) for item in other.items)
    ):
        return coordinates(node) or node
    return node


def _rank(node: Node) -> int:
    """Which rule a node asks for; of two sides, the lower rank has its way, so order never matters."""
    match node:
        case Text():
            return 0
        case Rel() | Logic() | SetBuilder():
            return 1
        case Seq(kind="set" | "list", items=(_,)):
            return 2
        case Interval() | SetOp() | Named():
            return 3
        case Matrix():
            return 4
        case Seq():
            return 5
        case Ratio():
            return 6
        case BaseNum():
            return 7
        case Clock():
            return 8
        case Quantity() | Fn(name="pct" | "deg"):
            return 9
    return 10


def _singles(a: Node, b: Node, policy: MathPolicy) -> Decision:
    """A list or set of one against anything but text and statements."""
    assert isinstance(a, Seq)
    if isinstance(b, Seq):
        only = a.items[0]
        if b.kind in _ORDERED and isinstance(only, Seq) and only.kind in _ORDERED:
            return compare(only, b, policy)
        return _sequences(a, b, policy)
    return _sets(a, b, policy) if isinstance(b, _SETS) else compare(a.items[0], b, policy)


def _lists(a: Node, b: Node, policy: MathPolicy) -> Decision:
    assert isinstance(a, Seq)
    if isinstance(b, Seq):
        return _sequences(a, b, policy)
    vector = unit_vector(b, len(a.items)) if a.kind in _ORDERED else None
    return _sequences(a, Seq(vector, a.kind), policy) if vector is not None else _repeated(a, b, policy)


def _clocks(a: Node, b: Node, policy: MathPolicy) -> Decision:
    del a, b, policy
    return no("structural", "different times of day, or a time against something else")


def _leaves(a: Node, b: Node, policy: MathPolicy) -> Decision:
    classes = [isinstance(node, Fn) and node.name == "pmod" for node in (a, b)]
    if classes[0] != classes[1]:
        return no("structural", "a residue class against something else")
    if isinstance(a, Fn) and isinstance(b, Fn) and classes[0] and len(a.args) == len(b.args):
        return every(compare(one, two, policy) for one, two in zip(a.args, b.args, strict=True))
    return same_value(_bare(a, policy), _bare(b, policy), policy)


# -- texts


def _texts(a: Node, b: Node, policy: MathPolicy) -> Decision:
    assert isinstance(a, Text)
    if isinstance(b, Rel):
        value = statement_value(b)
        if value is not None:
            return compare(a, value, policy)
    if isinstance(b, Text):
        return yes("structural") if _spelling(a.value) == _spelling(b.value) else no("structural", "different words")
    if isinstance(b, Sym | Apply):
        return yes("structural") if a.value == b.name.casefold() else no("structural", "different words")
    if isinstance(b, Mul) and all(isinstance(factor, Sym) for factor in b.factors):
        return yes("structural") if a.value == plain(b).casefold() else no("structural", "different words")
    return no("structural", "words against mathematics")


def _spelling(text: str) -> str:
    return " ".join(text.replace("-", " ").replace(".", " ").split())


# -- statements


def _statements(a: Node, b: Node, policy: MathPolicy) -> Decision:
    if isinstance(b, Rel | Logic | SetBuilder):
        return _two_statements(a, b, policy)
    if isinstance(a, Rel):
        value = statement_value(a)
        if value is not None:
            if not consistent(a):
                return no("structural", "the statement is false")
            decision = compare(value, b, policy)
            before = value_before_rounding(a)
            return decision if decision.equal or before is None else compare(before, b, policy)
        if a.ops == ("in",):
            return compare(a.terms[1], b, policy)
        if a.ops == ("equiv",):
            return compare(a.terms[1], b, policy)
    if isinstance(a, Logic) and isinstance(b, Seq):
        return compare(Seq(a.items, "list"), b, policy)
    if isinstance(b, _SETS) or (isinstance(b, Seq) and b.kind in {"tuple", "set", "list"}):
        return _sets(a, b, policy)
    return no("structural", "a statement against a value")


def _two_statements(a: Node, b: Node, policy: MathPolicy) -> Decision:
    if isinstance(a, Rel) and isinstance(b, Rel):
        names = statement_name(a), statement_name(b)
        values = statement_value(a), statement_value(b)
        if names[0] is not None and names[1] is not None and values[0] is not None and values[1] is not None:
            if names[0] == names[1]:
                return compare(values[0], values[1], policy)
            other = aliased(names[0], names[1], values[0], values[1])
            if other is not None:
                return compare(values[0], other, policy)
        if len(a.ops) == len(b.ops) == 1 and not {a.ops[0], b.ops[0]} & {"in", "notin", "equiv", "=>", "to"}:
            decision = same_relation(a, b)
            if decision.equal is not False:
                return decision
        elif a.ops == b.ops and len(a.ops) == 1:
            return every(compare(one, two, policy) for one, two in zip(a.terms, b.terms, strict=True))
        elif len(a.ops) == len(b.ops) > 1 and set(a.ops) <= {"=", "~"} and set(b.ops) <= {"=", "~"}:
            decision = every(compare(one, two, policy) for one, two in zip(a.terms, b.terms, strict=True))
            if decision.equal:
                return decision
        if {a.ops, b.ops} == {("in",), ("=",)} and a.terms[0] == b.terms[0]:
            return compare(a.terms[1], b.terms[1], policy)
        for one, two in ((a, b), (b, a)):
            value = statement_value(one)
            if value is not None and statement_name(one) is None and statement_value(two) is not None:
                return compare(value, two, policy)
    if variable(a) is not None and variable(a) == variable(b):
        return _sets(a, b, policy)
    if isinstance(a, Logic) and isinstance(b, Logic) and a.op == b.op:
        return _unordered(a.items, b.items, policy)
    return no("structural", "different statements")


# -- sets


def _sets(a: Node, b: Node, policy: MathPolicy) -> Decision:
    if isinstance(a, Interval) and isinstance(b, Interval):
        if _openness(a) != _openness(b):
            return no("structural", "one interval has an endpoint that the other lacks")
        return every((compare(a.low, b.low, policy), compare(a.high, b.high, policy)))
    if isinstance(a, Interval) and isinstance(b, Matrix):
        cells = [cell for row in b.rows for cell in row]
        if a.low_open or a.high_open or len(cells) != 2:
            return no("structural", "an interval against a matrix")
        return every((compare(a.low, cells[0], policy), compare(a.high, cells[1], policy)))
    if isinstance(a, Named) and isinstance(b, Named):
        return no("structural", "different sets")
    try:
        left, right = _spans_of(a), _spans_of(b)
    except NotReal:
        return _symbolic_sets(a, b, policy)
    if left is None or right is None:
        return no("structural", "a set against a single value")
    if len(left) != len(right):
        return no("structural", "sets with different numbers of pieces")
    decisions: list[Decision] = []
    for one, two in zip(left, right, strict=True):
        if (one.low_open, one.high_open) != (two.low_open, two.high_open):
            return no("structural", "one set has an endpoint that the other lacks")
        decisions += [compare(one.low.node, two.low.node, policy), compare(one.high.node, two.high.node, policy)]
    return every(decisions)


def _openness(node: Interval) -> tuple[bool, bool]:
    """Open ends; infinity is never in an interval, whatever the bracket."""
    return node.low_open or endless(node.low), node.high_open or endless(node.high)


def _spans_of(node: Node) -> Spans | None:
    if isinstance(node, Seq) and node.kind == "list" and len(node.items) > 1:
        if all(isinstance(item, Interval | SetOp) or _pair(item) for item in node.items):
            return reduce(union, (to_spans(item) for item in node.items))
        if all(isinstance(item, Rel) and item.ops[0] != "=" for item in node.items) and variable(node) is not None:
            return related(node.items)
    if (
        isinstance(node, Seq)
        and node.kind == "list"
        and not all(isinstance(item, Interval | Seq | SetOp) for item in node.items)
    ):
        return (
            None
            if len(node.items) > 1 and any(isinstance(item, Rel) for item in node.items)
            else to_spans(Seq(node.items, "set"))
        )
    if not isinstance(node, Interval | Seq | SetOp | Named | Logic | Rel | SetBuilder):
        return None
    return to_spans(node)


def _pair(node: Node) -> bool:
    return isinstance(node, Seq) and node.kind == "tuple" and len(node.items) == 2


def _symbolic_sets(a: Node, b: Node, policy: MathPolicy) -> Decision:
    """Sets whose endpoints are no constants: piece by piece."""
    if isinstance(a, SetOp) and isinstance(b, SetOp) and a.op == b.op:
        straight = every((compare(a.left, b.left, policy), compare(a.right, b.right, policy)))
        if straight.equal or a.op == "difference":
            return straight
        return every((compare(a.left, b.right, policy), compare(a.right, b.left, policy)))
    if isinstance(a, Interval) and isinstance(b, Seq) and b.kind == "tuple" and len(b.items) == 2:
        if not (a.low_open and a.high_open):
            return no("structural", "one interval has an endpoint that the other lacks")
        return every((compare(a.low, b.items[0], policy), compare(a.high, b.items[1], policy)))
    return no("structural", "different sets")


# -- lists


def _repeated(a: Seq, b: Node, policy: MathPolicy) -> Decision:
    """A list against one value: only where every item is that value, said in several ways."""
    if a.kind == "list" and len(a.items) <= 4:
        decision = every(compare(item, b, policy) for item in _values(a.items)[0])
        if decision.equal:
            return decision
    return no("structural", "a list against a single value")


def _values(items: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node | None, ...]]:
    """Items with ``name =`` dropped, and the names."""
    values: list[Node] = []
    names: list[Node | None] = []
    for item in items:
        value = statement_value(item)
        values.append(item if value is None else value)
        names.append(None if value is None else statement_name(item))
    return tuple(values), tuple(names)


def _sequences(a: Seq, b: Seq, policy: MathPolicy) -> Decision:
    kinds = {a.kind, b.kind}
    left, left_names = _values(a.items)
    right, right_names = _values(b.items)
    if (None in left_names) != (None in right_names):
        left, right = in_order(left_names, left), in_order(right_names, right)
    if kinds <= {"list", "set"}:
        groups = assignments(left_names, left), assignments(right_names, right)
        if groups[0] or groups[1]:
            return _groups(a, groups[0], b, groups[1], policy)
    if "set" in kinds:
        if kinds & _ORDERED:
            return no("structural", "a set against an ordered list")
        if any(len({base_name(name) for name in names if name}) > 1 for names in (left_names, right_names)):
            return no("structural", "a set against values of different names")
        return _same_set(left, right, policy)
    if len(left) != len(right):
        if all(isinstance(item, Seq) and item.kind in _ORDERED for item in (*left, *right)):
            return _same_set(left, right, policy)
        return no("structural", "lists of different lengths")
    if a.kind == b.kind == "list" and None not in left_names and None not in right_names:
        return _named(left_names, left, right_names, right, policy)
    if kinds & _ORDERED and any(_repeats(names) for names in (left_names, right_names)):
        return no("structural", "several values of one unknown against a tuple")
    named = any(len(set(names)) == len(names) > 1 and None not in names for names in (left_names, right_names))
    loose = policy.tuple_order == "ignore" and kinds <= {"tuple", "list"}
    if (
        (kinds & _ORDERED and not loose)
        or (policy.list_order == "keep" and not loose)
        or named
        or _has_dots(left)
        or _has_dots(right)
    ):
        return every(compare(one, two, policy) for one, two in zip(left, right, strict=True))
    return _unordered(left, right, policy)


def _groups(
    a: Seq, left: list[dict[Node, Node]] | None, b: Seq, right: list[dict[Node, Node]] | None, policy: MathPolicy
) -> Decision:
    """``p = 5, q = 2, p = 7, q = 2`` against the same, or against ``(5, 2), (7, 2)`` or ``5, 2, 7, 2``."""
    if left and right:
        if set(left[0]) != set(right[0]):
            return no("structural", "different names")
        order = list(left[0])
        sides = [[Seq(tuple(group[name] for name in order), "tuple") for group in groups] for groups in (left, right)]
        return _same_set(sides[0], sides[1], policy)
    groups, other = (left, b) if left else (right, a)
    assert groups is not None
    tuples = [Seq(tuple(group.values()), "tuple") for group in groups]
    others, names = _values(other.items)
    if any(isinstance(name, Sym | Apply) for name in names):
        return no("structural", "different names")
    if all(isinstance(item, Seq) for item in others):
        return _same_set(tuples, others, policy)
    flat = [value for group in tuples for value in group.items]
    if len(flat) != len(others):
        return no("structural", "lists of different lengths")
    return every(compare(one, two, policy) for one, two in zip(flat, others, strict=True))


def _repeats(names: Sequence[Node | None]) -> bool:
    return len(names) > 1 and None not in names and len(set(names)) == 1


def _has_dots(items: Sequence[Node]) -> bool:
    from math_verifier.parse.ast import Const

    return Const("dots") in items


def _named(
    left_names: Sequence[Node | None],
    left: Sequence[Node],
    right_names: Sequence[Node | None],
    right: Sequence[Node],
    policy: MathPolicy,
) -> Decision:
    """``x = 1, y = 2`` against ``y = 2, x = 1``; one name that repeats makes it a plain list of values."""
    a, b = dict(zip(left_names, left, strict=True)), dict(zip(right_names, right, strict=True))
    if len(a) == len(left) and len(b) == len(right) and len(a) > 1:
        if set(a) != set(b):
            return (
                every(compare(one, two, policy) for one, two in zip(left, right, strict=True))
                if not set(a) & set(b)
                else no("structural", "different names")
            )
        return every(compare(value, b[name], policy) for name, value in a.items())
    bases = [{base_name(name) for name in names} for names in (a, b)]
    if bases[0] != bases[1]:
        one, two = left_names[0], right_names[0]
        if len(bases[0]) == len(bases[1]) == 1 and one is not None and two is not None:
            renamed = [aliased(one, two, left[0], value) for value in right]
            if None not in renamed:
                return _unordered(left, [value for value in renamed if value is not None], policy)
        return no("structural", "different names")
    if len(bases[0]) == 1:
        return _unordered(left, right, policy)
    pairs = [list(zip(names, values, strict=True)) for names, values in ((left_names, left), (right_names, right))]
    items = [[Rel(("=",), (name, value)) for name, value in side if name is not None] for side in pairs]
    return _unordered(items[0], items[1], policy)


def _unordered(left: Sequence[Node], right: Sequence[Node], policy: MathPolicy) -> Decision:
    """A one-to-one match in any order."""
    if len(left) != len(right):
        return no("structural", "lists of different lengths")
    left, rest = without_common(left, right)
    if left and all_whole((*left, *rest)):
        return no("exact", "an item has no counterpart")
    stages: list[str] = []
    doubt: Decision | None = None
    for item in left:
        for position, candidate in enumerate(rest):
            decision = compare(item, candidate, policy)
            if decision.equal:
                stages.append(decision.stage)
                del rest[position]
                break
            doubt = decision if decision.equal is None else doubt
        else:
            return doubt or no(costliest(stages), "an item has no counterpart")
    return yes(costliest(stages))


def _same_set(left: Sequence[Node], right: Sequence[Node], policy: MathPolicy) -> Decision:
    """Every item of each in the other; repetition does not count."""
    stages: list[str] = []
    whole = all_whole((*left, *right))
    for items, others in ((left, right), (right, left)):
        known = frozenset(map(key, others))
        for item in items:
            if key(item) in known:
                continue
            if whole:
                return no("exact", "an item has no counterpart")
            decisions = list(_matches(item, others, policy))
            found = next((decision for decision in decisions if decision.equal), None)
            if found is None:
                doubt = next((decision for decision in decisions if decision.equal is None), None)
                return doubt or no(costliest(stages), "an item has no counterpart")
            stages.append(found.stage)
    return yes(costliest(stages))


def _matches(item: Node, others: Sequence[Node], policy: MathPolicy) -> Iterator[Decision]:
    """Comparisons with each of ``others``, up to the first that is equal."""
    nested = isinstance(item, Seq) and item.kind == "set"
    for other in others:
        if nested == (isinstance(other, Seq) and other.kind == "set"):
            decision = compare(item, other, policy)
            yield decision
            if decision.equal:
                return


def _matrices(a: Node, b: Node, policy: MathPolicy) -> Decision:
    assert isinstance(a, Matrix)
    if isinstance(b, Seq) and (len(a.rows) == 1 or len(a.rows[0]) == 1):
        cells = [cell for row in a.rows for cell in row]
        if b.kind == "set" or len(cells) != len(b.items):
            return no("structural", "a vector against another list")
        return every(compare(one, two, policy) for one, two in zip(cells, b.items, strict=True))
    vector = unit_vector(b, len(a.rows)) if len(a.rows[0]) == 1 else None
    if vector is not None:
        return every(compare(row[0], item, policy) for row, item in zip(a.rows, vector, strict=True))
    if not isinstance(b, Matrix):
        if len(a.rows) == len(a.rows[0]) == 1:
            return compare(a.rows[0][0], b, policy)
        return no("structural", "a matrix against something else")
    if len(a.rows) != len(b.rows) or len(a.rows[0]) != len(b.rows[0]):
        return no("structural", "matrices of different shapes")
    return every(
        compare(one, two, policy)
        for row, other in zip(a.rows, b.rows, strict=True)
        for one, two in zip(row, other, strict=True)
    )


# -- numbers with something about them


def _ratios(a: Node, b: Node, policy: MathPolicy) -> Decision:
    assert isinstance(a, Ratio)
    if isinstance(b, Ratio):
        if len(a.items) != len(b.items):
            return no("structural", "ratios of different lengths")
        decision = every(compare(one, two, policy) for one, two in zip(a.items, b.items, strict=True))
        if decision.equal or not policy.ratio_scaling or any(is_zero(item) for item in (*a.items, *b.items)):
            return decision
        scaled = (
            same_value(multiply(a.items[0], two), multiply(b.items[0], one), policy)
            for one, two in zip(a.items[1:], b.items[1:], strict=True)
        )
        return every(scaled)
    if len(a.items) == 2 and not isinstance(b, Seq | Clock):
        return same_value(divide(*a.items), _bare(b, policy), policy)
    return no("structural", "a ratio against something else")


def _bases(a: Node, b: Node, policy: MathPolicy) -> Decision:
    assert isinstance(a, BaseNum)
    if isinstance(b, BaseNum):
        same = (a.digits.lstrip("0"), a.base) == (b.digits.lstrip("0"), b.base)
        return yes("exact") if same else no("exact", "different digits or bases")
    if policy.base_subscript == "optional" and isinstance(b, Num) and b.digits:
        return yes("exact") if a.digits == b.digits else no("exact", "different digits")
    return no("exact", "one side names no base")


def _parts(node: Node) -> tuple[Node, str | None]:
    """Value and unit."""
    if isinstance(node, Quantity):
        value, inner = _parts(node.value)
        return value, node.unit if inner is None else inner
    if isinstance(node, Fn) and node.name == "pct":
        return node.args[0], "percent"
    if isinstance(node, Fn) and node.name == "deg":
        return node.args[0], "degree"
    return node, None


def _quantities(a: Node, b: Node, policy: MathPolicy) -> Decision:
    (left, unit_a), (right, unit_b) = _parts(a), _parts(b)
    if "degree" in {unit_a, unit_b} and {unit_a, unit_b} & {"celsius", "fahrenheit"}:
        return compare(left, right, policy)
    if isinstance(left, Rel | Seq) or isinstance(right, Rel | Seq | Matrix):
        return compare(left, right, policy)
    if "percent" in {unit_a, unit_b}:
        return _percent(left, unit_a, right, unit_b, policy)
    if policy.degrees == "angle" and "degree" in {unit_a, unit_b}:
        from math_verifier.parse.ast import Const, integer

        scale: Callable[[Node], Node] = lambda value: divide(multiply(value, Const("pi")), integer(180))  # noqa: E731
        return same_value(
            scale(left) if unit_a == "degree" else left, scale(right) if unit_b == "degree" else right, policy
        )
    if policy.units == "ignore":
        return compare(left, right, policy)
    if policy.units == "strict" and (unit_a is None) != (unit_b is None):
        return no("structural", "one side has no unit")
    if unit_a is not None and unit_b is not None:
        one, two = dimension(unit_a), dimension(unit_b)
        if one is not None and two is not None:
            if one[0] != two[0]:
                return no("structural", f"units {unit_a} and {unit_b}")
            if one[1] != two[1]:
                return same_value(multiply(left, Num(one[1])), multiply(right, Num(two[1])), policy)
        elif policy.units == "strict" and unit_a.casefold().rstrip("s") != unit_b.casefold().rstrip("s"):
            return no("structural", f"units {unit_a} and {unit_b}")
    return compare(left, right, policy)


def _percent(left: Node, unit_a: str | None, right: Node, unit_b: str | None, policy: MathPolicy) -> Decision:
    if unit_a == unit_b:
        return compare(left, right, policy)
    if unit_a is not None and unit_b is not None:
        return no("structural", "a percentage against a quantity")
    share, other = (left, right) if unit_a == "percent" else (right, left)
    decisions: list[Decision] = []
    if policy.percent in {"either", "literal"}:
        decisions.append(compare(share, other, policy))
    if policy.percent in {"either", "fraction"}:
        decisions.append(compare(divide(share, Num(Fraction(100))), other, policy))
    return next((decision for decision in decisions if decision.equal), decisions[-1])


def _bare(node: Node, policy: MathPolicy) -> Node:
    """Value without its unit, where a unit stands against none."""
    if isinstance(node, Quantity) and policy.units != "strict":
        return _bare(node.value, policy)
    return node


_RULES: Final[tuple[Callable[[Node, Node, MathPolicy], Decision], ...]] = (
    _texts, _statements, _singles, _sets, _matrices, _lists, _ratios, _bases, _clocks, _quantities, _leaves,
)  # fmt: skip
"""By rank."""
