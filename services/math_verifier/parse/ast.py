"""Syntax tree of an answer.

Nodes are immutable and hashable, so equality of trees is plain ``==``. The tree keeps what a grader needs and an
algebra system drops: how a number was written, brackets, units, bases, relations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias


class ParseError(ValueError):
    """The text is not an answer that the grammar knows."""


@dataclass(frozen=True, slots=True)
class Node:
    """Base of all nodes."""

    def children(self) -> Iterator[Node]:
        """Direct sub-nodes, in order."""
        name: str
        for name in self.__match_args__:
            value = getattr(self, name)
            if isinstance(value, Node):
                yield value
            elif isinstance(value, tuple):
                for item in value:
                    if isinstance(item, Node):
                        yield item
                    elif isinstance(item, tuple):
                        yield from (cell for cell in item if isinstance(cell, Node))

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            yield node
            if type(node) not in _LEAVES:
                stack.extend(node.children())


@dataclass(frozen=True, slots=True)
class Num(Node):
    """An exact number. ``places`` counts decimals where it was written so; ``digits`` is a bare integer's text."""

    value: Fraction
    places: int | None = None
    digits: str = ""


@dataclass(frozen=True, slots=True)
class Sym(Node):
    name: str


@dataclass(frozen=True, slots=True)
class Const(Node):
    """``pi``, ``e``, ``i``, ``inf``, ``dots``."""

    name: str


@dataclass(frozen=True, slots=True)
class Add(Node):
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mul(Node):
    factors: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Pow(Node):
    base: Node
    exp: Node


@dataclass(frozen=True, slots=True)
class Fn(Node):
    """A known function; also ``pm``/``mp`` (plus-minus), ``deg``, ``pct``, ``pmod``."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Apply(Node):
    """An unknown function at some arguments."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Big(Node):
    """``sum``, ``prod``, ``int``, ``lim`` or ``diff`` over ``var``; ``low`` and ``high`` are None where not given.

    A limit is at ``low``, from above (``high`` 1), from below (-1) or from both sides (None).
    """

    kind: Literal["sum", "prod", "int", "lim", "diff"]
    var: str
    low: Node | None
    high: Node | None
    body: Node


SeqKind: TypeAlias = Literal["list", "tuple", "set", "bracket", "vector"]


@dataclass(frozen=True, slots=True)
class Seq(Node):
    """``1, 2`` (list), ``(1, 2)``, ``{1, 2}``, ``[1, 2, 3]``, ``<1, 2>``."""

    items: tuple[Node, ...]
    kind: SeqKind


@dataclass(frozen=True, slots=True)
class Interval(Node):
    low: Node
    high: Node
    low_open: bool
    high_open: bool


@dataclass(frozen=True, slots=True)
class SetOp(Node):
    """``union``, ``intersection`` or ``difference``."""

    op: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Named(Node):
    """``R``, ``Z``, ``N``, ``Q``, ``C``, ``empty``."""

    name: str


@dataclass(frozen=True, slots=True)
class SetBuilder(Node):
    element: Node
    condition: Node


@dataclass(frozen=True, slots=True)
class Matrix(Node):
    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Rel(Node):
    """A chain of relations: ``terms[0] ops[0] terms[1] ops[1] ...``; ops are = != < <= > >= ~ in equiv."""

    ops: tuple[str, ...]
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Logic(Node):
    """``and`` or ``or`` of statements."""

    op: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Text(Node):
    """Words, case-folded, without articles and punctuation."""

    value: str


@dataclass(frozen=True, slots=True)
class Quantity(Node):
    """A value with a unit as it was written, e.g. ``cm^2`` or ``$``."""

    value: Node
    unit: str


@dataclass(frozen=True, slots=True)
class BaseNum(Node):
    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Ratio(Node):
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Clock(Node):
    """A time of day, in seconds since midnight."""

    seconds: int


_LEAVES = frozenset({Num, Sym, Const, Named, Text, BaseNum, Clock})
"""Nodes without children."""
_NO_NAMES: frozenset[str] = frozenset()
ZERO = Num(Fraction(0))
MINUS_ONE = Num(Fraction(-1))
HALF = Num(Fraction(1, 2))
INFINITY = Const("inf")


def integer(value: int) -> Num:
    return Num(Fraction(value))


def negate(node: Node) -> Node:
    """``-node``, folded into literals and endpoints."""
    if isinstance(node, Num):
        return Num(-node.value, node.places)
    if isinstance(node, Quantity):
        return Quantity(negate(node.value), node.unit)
    if isinstance(node, Fn) and node.name in {"pct", "deg"}:
        return Fn(node.name, (negate(node.args[0]),))
    if isinstance(node, Mul):
        return Mul((MINUS_ONE, *node.factors))
    return Mul((MINUS_ONE, node))


def multiply(*nodes: Node) -> Node:
    """Product, flat."""
    factors: list[Node] = []
    for node in nodes:
        factors.extend(node.factors if isinstance(node, Mul) else (node,))
    return factors[0] if len(factors) == 1 else Mul(tuple(factors))


def divide(top: Node, bottom: Node) -> Node:
    """Quotient; of two integers, the exact number."""
    if (
        isinstance(top, Num)
        and isinstance(bottom, Num)
        and top.places is None
        and bottom.places is None
        and bottom.value
    ):
        return Num(top.value / bottom.value)
    return multiply(top, Pow(bottom, MINUS_ONE))


def add(*nodes: Node) -> Node:
    """Sum, flat."""
    terms: list[Node] = []
    for node in nodes:
        terms.extend(node.terms if isinstance(node, Add) else (node,))
    return terms[0] if len(terms) == 1 else Add(tuple(terms))


def symbols(node: Node) -> frozenset[str]:
    """Free symbols."""
    if isinstance(node, Sym):
        return frozenset((node.name,))
    if type(node) in _LEAVES:
        return _NO_NAMES
    if isinstance(node, Big):
        open_ = node.kind == "diff" or (node.kind == "int" and node.low is None)
        inner = symbols(node.body) if open_ else symbols(node.body) - {node.var}
        bounds = [symbols(bound) for bound in (node.low, node.high) if bound is not None]
        return inner.union(*bounds)
    return frozenset().union(*(symbols(child) for child in node.children()))


def map_children(node: Node, change: object) -> Node:
    """Rebuild ``node`` with ``change`` applied to each direct child."""
    assert callable(change)
    values = []
    name: str
    for name in node.__match_args__:
        value = getattr(node, name)
        if isinstance(value, Node):
            value = change(value)
        elif isinstance(value, tuple):
            value = tuple(
                change(item)
                if isinstance(item, Node)
                else tuple(change(cell) for cell in item)
                if isinstance(item, tuple)
                else item
                for item in value
            )
        values.append(value)
    return type(node)(*values)
