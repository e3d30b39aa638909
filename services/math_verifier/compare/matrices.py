"""Sums, multiples, products, powers and transposes of written-out matrices, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence

from math_verifier.parse.ast import (
    Add,
    Fn,
    Matrix,
    Mul,
    Node,
    Num,
    ParseError,
    Pow,
    add,
    map_children,
    multiply,
    negate,
)

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
