"""Sums, multiples, products, powers and transposes of written-out matrices, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence

from math_verifier.compare.exact import substitute
from math_verifier.compare.numeric import real_value
from math_verifier.parse.ast import (
    MINUS_ONE,
    Add,
    Fn,
    Matrix,
    Mul,
    Node,
    Num,
    ParseError,
    Pow,
    Sym,
    add,
    integer,
    map_children,
    multiply,
    negate,
    symbols,
)
from math_verifier.parse.shapes import rename_i

MAX_CELLS = 400


def evaluate_matrix(node: Node) -> Node:
    """``node`` with its matrix arithmetic carried out.

    Raises:
        ParseError: shapes do not fit.
    """
    node = map_children(node, evaluate_matrix)
    match node:
        case Mul() if any(isinstance(factor, Matrix) for factor in node.factors):
            return _product(node.factors)
        case Add() if any(isinstance(term, Matrix) for term in node.terms):
            return _sum(node.terms)
        case Pow(base=Matrix() as matrix, exp=Num() as exponent) if (
            exponent.value.denominator == 1 and 0 < exponent.value <= 16
        ):
            return _product([matrix] * int(exponent.value))
        case Pow(base=Matrix() as matrix, exp=Num() as exponent) if (
            exponent.value == -1 and len(matrix.rows) == len(matrix.rows[0]) <= 3
        ):
            return _inverse(matrix.rows)
        case Fn(name="tr", args=(Matrix() as matrix,)) if len(matrix.rows) == len(matrix.rows[0]):
            return add(*(row[place] for place, row in enumerate(matrix.rows)))
        case Fn(name="det", args=(Matrix() as matrix,)) if len(matrix.rows) == len(matrix.rows[0]) <= 4:
            return determinant(matrix.rows)
    return node


def _product(factors: Sequence[Node]) -> Node:
    scalars = [factor for factor in factors if not isinstance(factor, Matrix)]
    result: Matrix | None = None
    for factor in factors:
        if not isinstance(factor, Matrix):
            continue
        result = factor if result is None else _times(result, factor)
    assert result is not None
    if not scalars:
        return result
    return Matrix(tuple(tuple(multiply(*scalars, cell) for cell in row) for row in result.rows))


def _times(a: Matrix, b: Matrix) -> Matrix:
    if len(a.rows[0]) != len(b.rows) or len(a.rows) * len(b.rows[0]) > MAX_CELLS:
        raise ParseError("matrices whose shapes do not fit a product")
    columns = list(zip(*b.rows, strict=True))
    return Matrix(
        tuple(
            tuple(add(*(multiply(x, y) for x, y in zip(row, column, strict=True))) for column in columns)
            for row in a.rows
        )
    )


def _sum(terms: Sequence[Node]) -> Node:
    matrices = [term for term in terms if isinstance(term, Matrix)]
    if len(matrices) != len(terms) or len({(len(matrix.rows), len(matrix.rows[0])) for matrix in matrices}) != 1:
        raise ParseError("matrices whose shapes do not fit a sum")
    return Matrix(
        tuple(
            tuple(add(*cells) for cells in zip(*rows, strict=True))
            for rows in zip(*(m.rows for m in matrices), strict=True)
        )
    )


def _inverse(rows: Sequence[Sequence[Node]]) -> Matrix:
    size = range(len(rows))
    over = Pow(determinant(rows), MINUS_ONE)
    if len(rows) == 1:
        return Matrix(((over,),))

    def cofactor(i: int, j: int) -> Node:
        minor = determinant([[rows[r][c] for c in size if c != i] for r in size if r != j])
        return multiply(over, negate(minor) if (i + j) % 2 else minor)

    return Matrix(tuple(tuple(cofactor(i, j) for j in size) for i in size))


def unit_vector(node: Node, size: int) -> tuple[Node, ...] | None:
    """Components of ``2i - 3j + k``; None for what is no sum of multiples of the unit vectors."""
    if size not in {2, 3} or Sym("j") not in node.walk():
        return None
    names = ("i", "j", "k")
    node = rename_i(node)
    if not symbols(node) <= set(names[:size]):
        return None

    def at(point: Sequence[int]) -> Node:
        result = node
        for name, value in zip(names, point, strict=True):
            result = substitute(result, name, integer(value))
        return result

    units = ((1, 0, 0), (0, 1, 0), (0, 0, 1))[:size]
    parts = tuple(at(unit) for unit in units)
    combined = add(*(multiply(integer(weight), part) for weight, part in zip((2, 3, 5), parts, strict=False)))
    whole = at((2, 3, 5) if size == 3 else (2, 3, 0))
    found, expected, zero = real_value(whole), real_value(combined), real_value(at((0, 0, 0)))
    if found is None or expected is None or zero is None or zero:
        return None
    return parts if abs(found - expected) <= 1e-25 * (1 + abs(found)) else None


def determinant(rows: Sequence[Sequence[Node]]) -> Node:
    """Determinant by expansion along the first row."""
    if len(rows) == 1:
        return rows[0][0]
    terms = []
    for column, cell in enumerate(rows[0]):
        minor = [[*row[:column], *row[column + 1 :]] for row in rows[1:]]
        term = multiply(cell, determinant(minor))
        terms.append(negate(term) if column % 2 else term)
    return add(*terms)
