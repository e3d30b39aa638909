"""Helpers of the grammar that look at trees and tokens only."""

from __future__ import annotations

from math_verifier.parse.ast import (
    Add,
    Const,
    Interval,
    Logic,
    Matrix,
    Mul,
    Node,
    Num,
    ParseError,
    Pow,
    Rel,
    Seq,
    SetOp,
    Sym,
    Text,
    integer,
    map_children,
)
from math_verifier.parse.tokens import Token


def joined(items: list[Node], joint: str) -> Node:
    """One statement, or the list of several."""
    if not items:
        raise ParseError("nothing to read")
    if len(items) == 1:
        return items[0]
    if all(isinstance(item, Rel) and item.ops[0] not in {"="} for item in items) and joint in {"or", "and"}:
        return Logic(joint, tuple(items))
    if all(isinstance(item, Interval | SetOp) for item in items) and joint == "or":
        union = items[0]
        for item in items[1:]:
            union = SetOp("union", union, item)
        return union
    if any(isinstance(item, Num) and len(item.digits) > 1 and item.digits[0] == "0" for item in items):
        raise ParseError("a number in a list with leading zeros")
    return Seq(tuple(items), "list")


def grouped(node: Node) -> Node:
    """Curly braces around one term in a product are brackets, not a set."""
    if isinstance(node, Seq) and node.kind == "set" and len(node.items) == 1:
        return node.items[0]
    return node


def rows(items: list[Node]) -> Node:
    rows = []
    for item in items:
        if isinstance(item, Seq):
            rows.append(item.items)
        elif isinstance(item, Interval):
            rows.append((item.low, item.high))
    if len({len(row) for row in rows}) != 1:
        raise ParseError("a matrix with rows of different lengths")
    return Matrix(tuple(rows))


def transpose(matrix: Matrix) -> Matrix:
    return Matrix(tuple(zip(*matrix.rows, strict=True)))


def symbol(letter: str) -> Node:
    if letter == "e":
        return Const("e")
    if letter == "i":
        return Const("i")
    return Sym(letter)


def rename_i(node: Node) -> Node:

    if node == Const("i"):
        return Sym("i")
    return map_children(node, rename_i)


def one_sided(point: Node) -> tuple[Node, Node | None]:
    """Point and side of a limit at ``3^+``: 1 from above, -1 from below, None from both sides."""
    if isinstance(point, Pow) and point.exp in (Sym("+"), Sym("-")):
        return point.base, integer(1 if point.exp == Sym("+") else -1)
    return point, None


def plain(node: Node) -> str:
    """Short text of a subscript or unit power."""
    match node:
        case Num():
            return str(node.value)
        case Sym() | Const():
            return node.name
        case Text():
            return node.value
        case Mul():
            return "".join(plain(factor) for factor in node.factors)
        case Add():
            return "+".join(plain(term) for term in node.terms)
        case Seq():
            return ",".join(plain(item) for item in node.items)
    return repr(node)


def is_separator(token: Token) -> bool:
    return token.text.lower().strip(" ,.;:") in {"and", "or"}


def wordy(word: str) -> bool:
    return any(letter in "aeiouyAEIOUY" for letter in word) or len(word) > 4
