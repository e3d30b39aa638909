"""What holds for every answer: equal to itself, symmetric, stable under styling; and no input breaks the parser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from math_verifier.check import check, find_answer, quick
from math_verifier.config import MathPolicy
from math_verifier.extract import extract
from math_verifier.normalize import normalize, squash
from math_verifier.parse.ast import ParseError
from math_verifier.parse.grammar import parse

POLICY = MathPolicy()
CASES = [json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
ANSWERS = sorted({case["gold"] for case in CASES if not case["id"].startswith(("malformed", "huge"))})
_PIECES = r"""
\frac \sqrt { } ( ) [ ] \{ \} | , ; : = < > \le \in + - * / ^ _ ! % \% \$ $ ' x y n e i a 1 2 3 10 0.5 12, 345 \pi
\infty \sin \log \cup \cap \setminus \mathbb{R} \text{and} \text{cm} and or in \pm \begin{pmatrix} \end{pmatrix} & \\
\sum_{k=1}^3 \int \lim \binom \langle \rangle \lfloor \rfloor ^\circ \bmod \equiv \pmod{3} \overline{3} 0.\overline{3}
\ldots f(x) gcd(4,6) \mid 1/2 A B cm ° ½ √ \to \cdot \times \choose #### \boxed{ } 9^9^9 1e999999999
7_8 (3)! 4:30 p.m. May
"""
PIECES = _PIECES.split()
quick_settings = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
answers = st.sampled_from(ANSWERS)
soup = st.lists(st.sampled_from(PIECES), max_size=9).flatmap(
    lambda parts: st.sampled_from([" ", ""]).map(lambda joint: joint.join(parts))
)

integers = st.integers(-99, 99).map(str)
fractions = st.tuples(st.integers(-30, 30), st.integers(1, 12)).map(lambda p: f"\\frac{{{p[0]}}}{{{p[1]}}}")
decimals = st.tuples(st.integers(-50, 50), st.integers(0, 99)).map(lambda p: f"{p[0]}.{p[1]:02d}")
atoms = st.one_of(integers, fractions, decimals, st.sampled_from(["x", "y", "\\pi", "\\sqrt{2}", "a"]))
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "\\cdot "]), inner).map(lambda p: f"({p[0]}){p[1]}({p[2]})"),
        inner.map(lambda body: f"\\sqrt{{{body}}}"),
        inner.map(lambda body: f"({body})^2"),
        inner.map(lambda body: f"\\sin({body})"),
    ),
    max_leaves=5,
)
compound = st.one_of(
    expressions,
    st.tuples(expressions, expressions).map(lambda p: f"({p[0]}, {p[1]})"),
    st.tuples(expressions, expressions).map(lambda p: f"\\{{{p[0]}, {p[1]}\\}}"),
    st.tuples(expressions, expressions).map(lambda p: f"\\begin{{pmatrix}}{p[0]}\\\\{p[1]}\\end{{pmatrix}}"),
    expressions.map(lambda body: f"y = {body}"),
)


def verdict(gold: str, answer: str) -> bool:
    found = quick(gold, answer) or check(gold, answer, POLICY)
    return found.status == "correct"


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_reference_equals_itself_in_any_style(answer: str) -> None:
    variants = [
        f"${answer}$",
        f"\\({answer}\\)",
        f"  {answer}  ",
        f"\\displaystyle {answer}",
        f"{answer}.",
        answer.replace("(", "\\left(").replace(")", "\\right)"),
    ]
    for variant in variants:
        assert verdict(answer, variant), variant
        assert verdict(variant, answer), variant


@quick_settings
@given(compound)
def test_an_answer_equals_itself(answer: str) -> None:
    assert verdict(answer, answer)
    assert (
        check(f"{answer} ", f"\\left({answer}\\right)" if "(" not in answer[:1] else answer, POLICY).status == "correct"
    )


@quick_settings
@given(compound, compound)
def test_comparison_is_symmetric(one: str, two: str) -> None:
    assert verdict(one, two) == verdict(two, one)


@quick_settings
@given(answers, answers)
def test_references_compare_symmetrically(one: str, two: str) -> None:
    assert verdict(one, two) == verdict(two, one)


@quick_settings
@given(expressions, st.integers(1, 9))
def test_a_shifted_value_is_another_value(body: str, shift: int) -> None:
    assert not verdict(f"({body})+{shift}", body)
    assert verdict(f"({body})+{shift}", f"{shift}+({body})")
    assert verdict(f"({body})+{shift}-{shift}", body)


@quick_settings
@given(st.fractions(max_denominator=500), st.integers(2, 9))
def test_rationals_are_compared_exactly(value: object, scale: int) -> None:
    from fractions import Fraction

    assert isinstance(value, Fraction)
    top, bottom = value.numerator, value.denominator
    assert verdict(f"\\frac{{{top}}}{{{bottom}}}", f"{top * scale}/{bottom * scale}")
    assert not verdict(f"\\frac{{{top}}}{{{bottom}}}", f"{top * scale + 1}/{bottom * scale}")


@quick_settings
@given(st.one_of(soup, st.text(max_size=60)))
def test_the_parser_fails_only_with_its_own_error(text: str) -> None:
    find_answer(text, "completion", POLICY)
    squash(normalize(text))
    try:
        tree = parse(normalize(text))
    except ParseError:
        return
    assert parse(normalize(text)) == tree


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(soup, st.sampled_from(["3", "x+1", "(1,2)", "[0,1)", "x=5", "x>2", "5\\text{ cm}", "50\\%", "\\text{east}"]))
def test_a_check_never_raises(text: str, gold: str) -> None:
    if any(piece in text for piece in ("9^9^9", "e999999999")):
        return
    for one, two in ((gold, text), (text, gold)):
        check(one, two, POLICY)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000,
        "(" * 10_000 + "x" + ")" * 10_000,
        "{" * 3000 + "x" + "}" * 3000,
        "\\frac{1}{" * 1000 + "2" + "}" * 1000,
        "9" * 100_000,
        "1," * 50_000,
        "\\sqrt" * 1900,
        "|" * 3000,
        "-" * 3000 + "1",
        "2^" * 1500 + "2",
        "\\text{" * 1000,
        "$" * 100_001,
        " " * 100_000 + "x",
        "a" * 100_000,
        "\\boxed{" * 20_000,
        "####\n" * 20_000,
        "**" * 50_001,
        "the answer is " * 8000,
        "1/" * 1999 + "1",
        "0.333" + "." * 5000,
        "{}" * 2000,
        "\\begin{pmatrix}" * 200,
    ],
    ids=lambda text: f"{text[:12]!r}x{len(text)}",
)
def test_large_inputs_are_read_or_refused_quickly(text: str) -> None:
    extract(text, POLICY)
    found = quick("3", text[:4000]) or check("3", text, POLICY)
    assert found.status in {"wrong", "unparsable"}
