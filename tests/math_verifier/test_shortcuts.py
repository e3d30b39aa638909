"""Short cuts change no verdict: numbers decided without a worker, spellings and trees that are remembered."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from math_verifier.check import REMEMBERED, check, quick
from math_verifier.config import MathPolicy
from math_verifier.normalize import _normalized, normalize

POLICY = MathPolicy()
NUMBERS = st.builds(
    "{}{}".format,
    st.sampled_from(["", "-", "+"]),
    st.one_of(
        st.integers(0, 2000).map(str),
        st.decimals(0, 50, places=2).map(str),
        st.builds("{}/{}".format, st.integers(0, 60), st.integers(0, 60)),
        st.builds("\\frac{{{}}}{{{}}}".format, st.integers(0, 60), st.integers(0, 60)),
        st.sampled_from(["1,234", "0,500", "0,5", "007", "12 1/2", "\\frac12", "50\\%"]),
    ),
)


@settings(deadline=None)
@given(NUMBERS, NUMBERS)
def test_what_is_decided_without_a_worker_is_what_a_worker_says(gold: str, answer: str) -> None:
    early = quick(gold, answer)
    if early is not None:
        assert early.status == check(gold, answer, POLICY).status


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("\\frac{1}{2}", "2/4"), ("-\\frac{10}{9}", "-10/9"), ("\\frac{3}{8}", "\\frac{5}{16}"), ("\\frac{1}{2}", "0.5")],
)
def test_plain_fractions_need_no_worker(gold: str, answer: str) -> None:
    outcome = quick(gold, answer)
    assert outcome is not None
    assert outcome.status == check(gold, answer, POLICY).status


@settings(deadline=None)
@given(st.from_regex(r"\A[+-]?[0-9]{1,6}(\.[0-9]{1,4})?\Z"))
def test_plain_numbers_are_spelt_as_they_are(text: str) -> None:
    assert normalize(text) == text == _normalized(text)


def test_what_is_remembered_under_one_policy_is_not_used_under_another() -> None:
    strict = MathPolicy(decimal_comma=False)
    for _, (policy, expected) in product(range(2), ((POLICY, "correct"), (strict, "wrong"))):
        assert check("3.14", "3,14", policy).status == expected


def test_what_cannot_be_read_stays_so() -> None:
    first, second = check("3", "\\frac{2}{}", POLICY), check("3", "\\frac{2}{}", POLICY)
    assert (first.status, first.reason) == (second.status, second.reason)
    assert first.status == "unparsable"


def test_texts_too_long_to_be_remembered_are_read_all_the_same() -> None:
    long = "+".join(["1"] * REMEMBERED)
    assert check(str(REMEMBERED), long, POLICY).status == "correct"
