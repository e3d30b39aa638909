"""Trees brought to the form in which they are compared: plus-minus written out, lists flat, units outermost."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from math_verifier.compare.matrices import evaluate_matrix
from math_verifier.compare.relations import statement_name, statement_value
from math_verifier.parse.ast import (
    Add,
    Fn,
    Interval,
    Logic,
    Matrix,
    Mul,
    Named,
    Node,
    Num,
    Pow,
    Quantity,
    Rel,
    Seq,
    SetBuilder,
    SetOp,
    Sym,
    Text,
    add,
    map_children,
    multiply,
    negate,
)
from math_verifier.parse.units import dimension

INTEGER_SETS = frozenset(Named(name) for name in ("Z", "N", "Z+", "N+", "N*", "Z*", "Z-"))
_DOMAIN_WORDS = frozenset({"where", "for", "with", "and", "integer", "is integer", "is any integer", "any integer"})


def prepared(node: Node) -> Node:
    """Plus-minus written out, nested lists flat, matrix algebra done, statements about one value reduced."""
    kinds = {type(part) for part in node.walk()}
    if Fn in kinds and any(isinstance(part, Fn) and part.name in {"pm", "mp"} for part in node.walk()):
        node = _expanded(node)
    if isinstance(node, Seq):
        node = _listed(node)
    if Matrix in kinds:
        node = evaluate_matrix(node)
    if isinstance(node, Add) and kinds & {Named, Seq, SetOp, Interval}:
        node = _set_difference(node)
    if isinstance(node, Add | Mul) and kinds & {Quantity, Text}:
        node = lifted(node)
    if isinstance(node, Quantity):
        inner = prepared(node.value)
        return Quantity(inner, node.unit)
    return node


def _expanded(node: Node) -> Node:
    if isinstance(node, Seq):
        items: list[Node] = []
        for item in node.items:
            grown = _expanded(item)
            items.extend(
                grown.items if isinstance(grown, Seq) and grown.kind == "list" and grown is not item else (grown,)
            )
        return Seq(tuple(items), node.kind)
    plus, minus = _signed(node, True), _signed(node, False)
    return node if plus == minus else Seq((plus, minus), "list")


def _signed(node: Node, upper: bool) -> Node:
    node = map_children(node, lambda child: _signed(child, upper))
    if isinstance(node, Fn) and node.name in {"pm", "mp"}:
        left, right = node.args
        right = right if (node.name == "pm") == upper else negate(right)
        return right if left == Num(Fraction(0), None, "") else add(left, right)
    return node


def _listed(node: Seq) -> Node:
    """Conditions such as ``k in Z`` dropped; ``n = 1, 2, 3`` and ``(x, y) = (5, 8), (8, 5)`` to their values."""
    builder = _integers_with_bounds(node)
    if builder is not None:
        return builder
    items = tuple(item for item in node.items if not is_domain(item)) or node.items
    if (
        node.kind == "list"
        and len(items) > 1
        and statement_name(items[0]) is not None
        and not any(isinstance(item, Rel) for item in items[1:])
    ):
        value = statement_value(items[0])
        if value is not None:
            items = (value, *items[1:])
    items = _excluded(items)
    if len(items) == 2 and node.kind == "list":
        whole = joined_quantity(items[0], items[1])
        items = (whole,) if whole is not None else items
    if len(items) == 1 and node.kind == "list":
        return prepared(items[0])
    return Seq(items, node.kind)


def _integers_with_bounds(node: Seq) -> SetBuilder | None:
    """``x in Z, x > 3`` as the set that it is; None where the domain says nothing about an inequality."""
    domains = [item for item in node.items if is_domain(item) and isinstance(item, Rel)]
    rest = tuple(item for item in node.items if not is_domain(item))
    if len(domains) != 1 or not rest or domains[0].terms[1] not in INTEGER_SETS:
        return None
    letter = domains[0].terms[0]
    for item in rest:
        if not (isinstance(item, Rel) and item.ops[0] in {"<", "<=", ">", ">=", "!="} and letter in item.terms):
            return None
    return SetBuilder(domains[0], rest[0] if len(rest) == 1 else Logic("and", rest))


def _excluded(items: Sequence[Node]) -> tuple[Node, ...]:
    """``x != 1, 2`` says ``x != 1`` and ``x != 2``."""
    first = items[0]
    if (
        len(items) < 2
        or not (isinstance(first, Rel) and first.ops == ("!=",))
        or any(isinstance(item, Rel) for item in items[1:])
    ):
        return tuple(items)
    return (Logic("and", tuple(Rel(("!=",), (first.terms[0], value)) for value in (first.terms[1], *items[1:]))),)


def is_domain(item: Node) -> bool:
    """Whether an item of a list only says what a letter stands for: ``k in Z``."""
    if isinstance(item, Text):
        return item.value in _DOMAIN_WORDS
    return (
        isinstance(item, Rel)
        and item.ops[-1] == "in"
        and isinstance(item.terms[-1], Named)
        and isinstance(item.terms[0], Sym)
    )


def _set_difference(node: Add) -> Node:
    """``R - {0}``, which reads as a sum."""
    result = node.terms[0]
    if not isinstance(result, Named | Interval | SetOp):
        return node
    for term in node.terms[1:]:
        if not (isinstance(term, Mul) and term.factors[0] == Num(Fraction(-1)) and len(term.factors) == 2):
            return node
        result = SetOp("difference", result, term.factors[1])
    return result


def joined_quantity(a: Node, b: Node) -> Quantity | None:
    """``7 hours 30 minutes`` as one quantity, or None where the units do not go together."""
    if not (isinstance(a, Quantity) and isinstance(b, Quantity)):
        return None
    left, right = dimension(a.unit), dimension(b.unit)
    if left is None or right is None or left[0] != right[0] or left[1] <= right[1]:
        return None
    return Quantity(add(a.value, multiply(b.value, Num(right[1] / left[1]))), a.unit)


def lifted(node: Node) -> Node:
    """A sum or product with units inside as one quantity."""
    if isinstance(node, Add):
        units = [term.unit for term in node.terms if isinstance(term, Quantity)]
        if not units or len({unit.casefold() for unit in units}) != 1 or not isinstance(node.terms[-1], Quantity):
            return node
        return Quantity(
            add(*(term.value if isinstance(term, Quantity) else term for term in node.terms)), node.terms[-1].unit
        )
    if isinstance(node, Mul):
        values: list[Node] = []
        units = []
        for factor in node.factors:
            text = _unit_text(factor)
            if isinstance(factor, Quantity):
                values.append(factor.value)
                units.append(factor.unit)
            elif text is not None and values:
                units.append(text)
            else:
                values.append(factor)
        if units and values:
            return Quantity(multiply(*values), " ".join(units))
    return node


def _unit_text(node: Node) -> str | None:
    if isinstance(node, Text):
        return node.value
    if isinstance(node, Pow) and isinstance(node.base, Text) and isinstance(node.exp, Num):
        return f"/ {node.base.value}" if node.exp.value < 0 else f"{node.base.value}^{node.exp.value}"
    return None
