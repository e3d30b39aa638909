"""Levels 1 to 4 of arithmetic without unknowns: sums, products, expressions, fractions, percentages.

Whole numbers and `Fraction`s only, so that making one takes microseconds.
"""

from __future__ import annotations

from fractions import Fraction

from problem_producer.draft import Draft, Draw, Maker, latex_number, plain_number

Tree = int | tuple[str, "Tree", "Tree"]
"""An expression: a number, or (operator, left, right)."""

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


def _sum(draw: Draw, low: int, high: int) -> Draft:
    left, right = draw.between(low, high), draw.between(low, high)
    return Draft(
        canonical=f"{min(left, right)}+{max(left, right)}",
        text=f"Compute {left} + {right}.",
        answer=str(left + right),
        work=_column_sum(left, right),
    )


def _column_sum(left: int, right: int) -> str:
    """Ones, then tens with the carry: `7 + 8 = 15. 3 + 4 + 1 = 8.`"""
    ones = left % 10 + right % 10
    work = f"{left % 10} + {right % 10} = {ones}."
    if left < 10 and right < 10:
        return work
    carry = " + 1" if ones > 9 else ""
    return f"{work} {left // 10} + {right // 10}{carry} = {left // 10 + right // 10 + ones // 10}."


def _difference(draw: Draw, low: int, high: int) -> Draft:
    right, rest = draw.between(low, high), draw.between(low, high)
    left = right + rest
    return Draft(
        canonical=f"{left}-{right}",
        text=f"Compute {left} - {right}.",
        answer=str(rest),
        work=_column_difference(left, right),
    )


def _column_difference(left: int, right: int) -> str:
    """Ones, borrowing when needed, then tens: `13 - 9 = 4. 6 - 3 - 1 = 2.`"""
    if right < 10 and left < 20 and left - right < 10:
        return f"{left} - {right} = {left - right}."
    borrow = left % 10 < right % 10
    ones = left % 10 + (10 if borrow else 0)
    less = " - 1" if borrow else ""
    tens = left // 10 - right // 10 - (1 if borrow else 0)
    return f"{ones} - {right % 10} = {ones - right % 10}. {left // 10} - {right // 10}{less} = {tens}."


def _product(draw: Draw, low: int, high: int) -> Draft:
    left, right = draw.between(low, high), draw.between(2, 9)
    tens = left - left % 10
    parts = f"{tens * right} + {left % 10 * right} = " if tens and left % 10 else ""
    return Draft(
        canonical=f"{min(left, right)}*{max(left, right)}",
        text=f"Compute {left} * {right}.",
        answer=str(left * right),
        work=f"{left} * {right} = {parts}{left * right}.",
    )


def _quotient(draw: Draw) -> Draft:
    right, answer = draw.between(2, 9), draw.between(2, 19)
    left = right * answer
    return Draft(
        canonical=f"{left}/{right}",
        text=f"Compute {left} / {right}.",
        answer=str(answer),
        work=f"{answer} * {right} = {left}, so {left} / {right} = {answer}.",
    )


def _render(tree: Tree, parent: int = 0, *, right: bool = False) -> str:
    if isinstance(tree, int):
        return str(tree)
    operator, first, second = tree
    strength = _PRECEDENCE[operator]
    body = f"{_render(first, strength)} {operator} {_render(second, strength, right=True)}"
    return f"({body})" if strength < parent or (right and strength == parent) else body


def _canonical(tree: Tree) -> str:
    if isinstance(tree, int):
        return str(tree)
    operator, first, second = tree
    sides = [_canonical(first), _canonical(second)]
    if operator in "+*":
        sides.sort()
    return f"({sides[0]}{operator}{sides[1]})"


def _work(tree: Tree, lines: list[str]) -> int:
    """The value of `tree`; appends one line per operation, innermost first."""
    if isinstance(tree, int):
        return tree
    operator, first, second = tree
    left, right = _work(first, lines), _work(second, lines)
    value = left + right if operator == "+" else left - right if operator == "-" else left * right
    shown = f"({right})" if right < 0 else str(right)
    lines.append(f"{left} {operator} {shown} = {value}.")
    return value


def _grow(draw: Draw, operations: int, high: int) -> Tree:
    if operations == 0:
        return draw.between(2, high)
    operator = draw.pick("+-*")
    left = draw.between(0, operations - 1)
    return operator, _grow(draw, left, high), _grow(draw, operations - 1 - left, high)


def _expression(draw: Draw, operations: int, high: int, low_value: int, high_value: int) -> Draft | None:
    tree = _grow(draw, operations, high)
    lines: list[str] = []
    value = _work(tree, lines)
    if not low_value <= value <= high_value:
        return None
    if low_value >= 0 and any(" = -" in line for line in lines):
        return None
    return Draft(_canonical(tree), f"Compute {_render(tree)}.", str(value), " ".join(lines))


def _three_terms(draw: Draw) -> Draft:
    first, second, third = draw.between(10, 99), draw.between(10, 99), draw.between(10, 99)
    return Draft(
        canonical="+".join(map(str, sorted((first, second, third)))),
        text=f"Compute {first} + {second} + {third}.",
        answer=str(first + second + third),
        work=f"{first} + {second} = {first + second}. {first + second} + {third} = {first + second + third}.",
    )


def _proper(draw: Draw) -> Fraction:
    denominator = draw.between(2, 9)
    return Fraction(draw.between(1, denominator - 1), denominator)


def _fraction_sum(draw: Draw) -> Draft | None:
    first, second = _proper(draw), _proper(draw)
    plus = draw.between(0, 1) == 1
    value = first + second if plus else first - second
    if value == 0:
        return None
    sign = "+" if plus else "-"
    common = first.denominator * second.denominator
    left, right = first.numerator * second.denominator, second.numerator * first.denominator
    whole = left + right if plus else left - right
    reduced = f" = {plain_number(value)}" if f"{whole}/{common}" != plain_number(value) else ""
    sides = [plain_number(first), plain_number(second)]
    text = f"Compute {sides[0]} {sign} {sides[1]}."
    if plus:
        sides.sort()
    return Draft(
        canonical=sign.join(sides),
        text=text,
        answer=latex_number(value),
        work=f"{left}/{common} {sign} {right}/{common} = {whole}/{common}{reduced}.",
    )


def _fraction_product(draw: Draw) -> Draft:
    first, second = _proper(draw), _proper(draw)
    if draw.between(0, 1):
        value = first * second
        top, bottom = first.numerator * second.numerator, first.denominator * second.denominator
        text, work = f"({first}) * ({second})", ""
        canonical = "*".join(sorted((str(first), str(second))))
    else:
        value = first / second
        top, bottom = first.numerator * second.denominator, first.denominator * second.numerator
        text = f"({first}) / ({second})"
        work = f"({first}) / ({second}) = ({first}) * ({second.denominator}/{second.numerator}). "
        canonical = f"{first}:{second}"
    reduced = f" = {plain_number(value)}" if f"{top}/{bottom}" != plain_number(value) else ""
    return Draft(canonical, f"Compute {text}.", latex_number(value), f"{work}{top}/{bottom}{reduced}.")


def _percentage(draw: Draw) -> Draft:
    rate, whole = 5 * draw.between(1, 19), 20 * draw.between(1, 30)
    value = rate * whole // 100
    return Draft(
        canonical=f"{rate}%{whole}",
        text=f"What is {rate}% of {whole}?",
        answer=str(value),
        work=f"{rate} * {whole} = {rate * whole}. {rate * whole} / 100 = {value}.",
    )


ARITHMETIC_MAKERS: dict[tuple[int, str], Maker] = {
    (1, "addition"): lambda draw: _sum(draw, 1, 9),
    (1, "subtraction"): lambda draw: _difference(draw, 1, 9),
    (1, "multiplication"): lambda draw: _product(draw, 2, 9),
    (2, "addition"): lambda draw: _sum(draw, 10, 99),
    (2, "subtraction"): lambda draw: _difference(draw, 10, 49),
    (2, "multiplication"): lambda draw: _product(draw, 11, 99),
    (2, "division"): _quotient,
    (3, "addition"): _three_terms,
    (3, "expression"): lambda draw: _expression(draw, 2, 9, 0, 99),
    (4, "expression"): lambda draw: _expression(draw, 3, 12, -199, 999),
    (4, "fraction"): _fraction_sum,
    (4, "percentage"): _percentage,
    (5, "fraction"): _fraction_product,
}
