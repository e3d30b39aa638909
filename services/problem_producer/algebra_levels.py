"""Levels 4 to 6 of algebra and number theory: equations, systems, divisors, quadratics, polynomials.

Level 6 asks SymPy for the answers that need it (surds, expansions); it is imported on first use, since that
takes about a second.
"""

from __future__ import annotations

import math
from fractions import Fraction

from problem_producer.draft import Draft, Draw, Maker, latex_number, plain_number, polynomial


def _linear_one_side(draw: Draw) -> Draft:
    factor, root, shift = draw.between(2, 9), draw.between(-9, 12), draw.nonzero(-20, 20)
    right = factor * root + shift
    undo = f"{right} - {shift}" if shift > 0 else f"{right} + {-shift}"
    return Draft(
        canonical=f"{factor},{shift},{right}",
        text=f"Solve {polynomial([factor, shift])} = {right} for x.",
        answer=str(root),
        work=f"{factor}x = {undo} = {right - shift}. x = {right - shift} / {factor} = {root}.",
    )


def _linear_both_sides(draw: Draw) -> Draft | None:
    left, right = draw.nonzero(-9, 9), draw.nonzero(-9, 9)
    add_left, add_right = draw.nonzero(-20, 20), draw.nonzero(-20, 20)
    factor, rest = left - right, add_right - add_left
    if factor == 0:
        return None
    root = Fraction(rest, factor)
    if root.denominator > 9:
        return None
    sides = sorted((polynomial([left, add_left]), polynomial([right, add_right])))
    return Draft(
        canonical="=".join(sides),
        text=f"Solve {polynomial([left, add_left])} = {polynomial([right, add_right])} for x.",
        answer=latex_number(root),
        work=f"{polynomial([factor, 0])} = {rest}." + ("" if factor == 1 else f" x = {plain_number(root)}."),
    )


def _system(draw: Draw) -> Draft | None:
    x, y = draw.between(-9, 9), draw.between(-9, 9)
    a, b, c, d = (draw.nonzero(-6, 6) for _ in range(4))
    determinant = a * d - b * c
    if determinant == 0:
        return None
    first, second = a * x + b * y, c * x + d * y
    left = f"{polynomial([a, 0])} {_tail(b, 'y')} = {first}"
    right = f"{polynomial([c, 0])} {_tail(d, 'y')} = {second}"
    wanted = draw.pick(("x", "y", "x + y"))
    answer = {"x": x, "y": y, "x + y": x + y}[wanted]
    top = d * first - b * second
    total = f" x + y = {x + y}." if wanted == "x + y" else ""
    return Draft(
        # Which of x, y, x + y is asked for is left out: solving the system gives all three.
        canonical=";".join(sorted((left, right))),
        text=f"If {left} and {right}, what is {wanted}?",
        answer=str(answer),
        work=f"Eliminate y: {polynomial([determinant, 0])} = {top}, so x = {x}. Then y = {y}.{total}",
    )


def _tail(coefficient: int, variable: str) -> str:
    size = "" if abs(coefficient) == 1 else str(abs(coefficient))
    return f"{'-' if coefficient < 0 else '+'} {size}{variable}"


def _remainder(draw: Draw) -> Draft:
    whole, divisor = draw.between(50, 999), draw.between(3, 19)
    times = whole // divisor
    return Draft(
        canonical=f"{whole}%{divisor}",
        text=f"What is the remainder when {whole} is divided by {divisor}?",
        answer=str(whole % divisor),
        work=f"{divisor} * {times} = {divisor * times}. {whole} - {divisor * times} = {whole % divisor}.",
    )


def _divisor(draw: Draw) -> Draft | None:
    shared = draw.between(2, 12)
    first, second = shared * draw.between(2, 15), shared * draw.between(2, 15)
    if first == second:
        return None
    greatest, least = math.gcd(first, second), math.lcm(first, second)
    pair = ",".join(map(str, sorted((first, second))))
    if draw.between(0, 1):
        lines: list[str] = []
        high, low = max(first, second), min(first, second)
        while low:
            lines.append(f"{high} = {high // low} * {low} + {high % low}.")
            high, low = low, high % low
        name, answer, work = "greatest common divisor", greatest, " ".join(lines)
    else:
        name, answer = "least common multiple", least
        work = f"The greatest common divisor is {greatest}. {first} * {second} / {greatest} = {least}."
    return Draft(pair, f"What is the {name} of {first} and {second}?", str(answer), work)


def _quadratic(draw: Draw) -> Draft | None:
    import sympy

    half, constant = draw.between(-6, 6), draw.nonzero(-30, 30)
    # x^2 + 2·half·x + constant: roots -half ± sqrt(half² - constant), rational or a surd.
    under = half * half - constant
    if under <= 0 or half == 0:
        return None
    want = draw.pick(("larger root", "smaller root", "sum of the squares of the roots"))
    body = polynomial([1, 2 * half, constant])
    if want == "sum of the squares of the roots":
        answer = str(4 * half * half - 2 * constant)
        work = (
            f"The roots add to {-2 * half} and multiply to {constant}. {4 * half * half} - 2 * ({constant}) = {answer}."
        )
    else:
        root = -half + (1 if want == "larger root" else -1) * sympy.sqrt(under)
        answer = sympy.latex(root)
        work = f"{polynomial([1, half])} squared is {under}, so x = {-half} ± \\sqrt{{{under}}}."
    return Draft(body, f"What is the {want} of {body} = 0?", answer, work)


def _expand(draw: Draw) -> Draft:
    import sympy

    x = sympy.Symbol("x")
    a, b, c, d = draw.between(1, 5), draw.nonzero(-9, 9), draw.between(1, 5), draw.nonzero(-9, 9)
    product = sympy.Poly(sympy.expand((a * x + b) * (c * x + d)), x)
    answer = polynomial([int(value) for value in product.all_coeffs()])
    left, right = polynomial([a, b]), polynomial([c, d])
    return Draft(
        canonical="*".join(sorted((left, right))),
        text=f"Expand ({left})({right}).",
        answer=answer,
        work=f"x^2: {a} * {c} = {a * c}. x: {a} * ({d}) + ({b}) * {c} = {a * d + b * c}. "
        f"Constant: ({b}) * ({d}) = {b * d}.",
    )


def _evaluate(draw: Draw) -> Draft:
    a, b, c, d = draw.between(1, 4), draw.nonzero(-6, 6), draw.nonzero(-9, 9), draw.nonzero(-9, 9)
    at = draw.nonzero(-4, 5)
    lines: list[str] = []
    value = a
    for coefficient in (b, c, d):
        following = value * at + coefficient
        lines.append(f"({value}) * ({at}) + ({coefficient}) = {following}.")
        value = following
    body = polynomial([a, b, c, d])
    return Draft(f"{body}@{at}", f"What is {body} at x = {at}?", str(value), " ".join(lines))


ALGEBRA_MAKERS: dict[tuple[int, str], Maker] = {
    (4, "linear_equation"): _linear_one_side,
    (5, "linear_equation"): _linear_both_sides,
    (5, "system"): _system,
    (5, "remainder"): _remainder,
    (5, "divisor"): _divisor,
    (6, "quadratic"): _quadratic,
    (6, "expansion"): _expand,
    (6, "evaluation"): _evaluate,
}
