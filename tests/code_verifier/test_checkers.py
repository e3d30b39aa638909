"""Comparing output, and comparing values with JSON."""

from __future__ import annotations

import math

import pytest

from code_verifier.checkers import check
from code_verifier.inside.compare import equal


@pytest.mark.parametrize(
    ("checker", "output", "expected", "right"),
    [
        ("exact", b"5\n", "5\n", True),
        ("exact", b"5", "5\n", True),
        ("exact", b"5\n", "5", True),
        ("exact", b"5\n\n", "5", False),
        ("exact", b"5 \n", "5\n", False),
        ("exact", b"5\r\n", "5\n", False),
        ("exact", b"", "", True),
        ("exact", b"\xff", "\ufffd", False),
        ("tokens", b" 1  2\r\n3 \n\n", "1 2 3", True),
        ("tokens", b"1 2", "1 2 3", False),
        ("tokens", b"1 2 3", "1 2", False),
        ("tokens", b"5.0", "5", False),
        ("tokens", b"", "", True),
        ("tokens", b"\n", "", True),
        ("tokens", b"\xff\xfe\x005\n", "5\n", False),
        ("float", b"5.0\n", "5\n", True),
        ("float", b"0.3333333333333333", "0.333333", True),
        ("float", b"0.34", "0.333333", False),
        ("float", b"1e9", "1000000000", True),
        ("float", b"1000000001", "1000000000", False),
        ("float", b"nan", "nan", True),
        ("float", b"nan", "1", False),
        ("float", b"inf", "inf", True),
        ("float", b"inf", "1e308", False),
        ("float", b"abc 1.0", "abc 1", True),
        ("float", b"abd", "abc", False),
        ("float", b"1_0", "10", False),
        ("float", b"0x10", "16", False),
        ("float", "١".encode(), "1", False),
        ("float", b"007", "7", True),
        ("float", b"1" * 5000, "1" * 5000 + ".0", True),
        ("float", b"1" * 5000, "2" * 5000 + ".0", False),
        ("float", b"1" * 5000 + b".5", "1" * 5000 + ".5", True),
        ("float", b"1e999", "inf", False),
        ("float", b"1e400", "1e401", False),
        ("float", b"-inf", "inf", False),
        ("float", b"5.", "5", True),
        ("float", b".5", "0.50", True),
        ("float", b"-0", "0.0", True),
        ("float", b"1e5", "100000", True),
        ("float", b"1e-999999999999", "0", True),
        ("float", b".", "0", False),
        ("float", b"-", "0", False),
        ("float", b"e5", "0", False),
        ("float", b"5 5", "5", False),
    ],
)
def test_output(checker: str, output: bytes, expected: str, right: bool) -> None:
    assert (check(checker, output, expected) is None) == right


@pytest.mark.parametrize(
    "output",
    ["1" * 10**6 + "x", "0" * 10**6 + "x", "." + "0" * 10**6 + "x", "1e" + "1" * 10**6 + "x", "1 " * 10**6],
    ids=["ones", "zeros", "fraction", "exponent", "words"],
)
def test_time_is_linear(output: str) -> None:
    """A quadratic comparison of these would take hours."""
    assert check("float", output.encode(), "5")


def test_reason_names_the_place_and_is_short() -> None:
    assert check("tokens", b"1 x", "1 y") == "word 2 is 'x', expected 'y'"
    assert check("exact", b"1\nx", "1\ny") == "line 2 is 'x', expected 'y'"
    assert len(check("tokens", b"x" * 10**6, "y" * 10**6) or "") < 300


@pytest.mark.parametrize(
    ("got", "expected", "right"),
    [
        ((1, 2), [1, 2], True),
        ([1, (2,)], [1, [2]], True),
        ([1], [1, 2], False),
        (1.0, 1, True),
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, False),
        (True, 1, False),
        (1, True, False),
        (True, True, True),
        (math.nan, math.nan, True),
        ("a", "a", True),
        (b"a", "a", False),
        ({1: 2}, {"1": 2}, True),
        ({None: 2}, {"null": 2}, True),
        ({1: 2, "1": 3}, {"1": 2}, False),
        ({True: 2}, {"true": 2}, True),
        ({1, 2}, [1, 2], False),
        (None, None, True),
        (None, 0, False),
        ([], {}, False),
        (10**400, 1e308, False),
        (10**400, 10**400, True),
    ],
)
def test_values(got: object, expected: object, right: bool) -> None:
    assert equal(got, expected) == right


def test_tolerance() -> None:
    assert equal([0.1 + 0.2, {"x": 1e9 + 1}], [0.3, {"x": 1e9}], 1e-6)
    assert not equal(0.31, 0.3, 1e-6)
    assert not equal(10**400, 1.0, 1e-6)
    assert not equal(True, 1, 1e-6)
