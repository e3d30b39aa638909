"""The switches of :class:`MathPolicy`: what each changes, and that it changes it both ways round."""

from __future__ import annotations

from typing import Any

import pytest

from math_verifier.check import check, quick
from math_verifier.config import MathPolicy


@pytest.mark.parametrize(
    ("settings", "gold", "answer", "expected"),
    [
        ({}, "25\\%", "25", True),
        ({}, "25\\%", "0.25", True),
        ({"percent": "literal"}, "25\\%", "25", True),
        ({"percent": "literal"}, "25\\%", "0.25", False),
        ({"percent": "fraction"}, "25\\%", "25", False),
        ({"percent": "fraction"}, "25\\%", "0.25", True),
        ({}, "5\\text{ cm}", "5\\text{ m}", False),
        ({}, "5\\text{ cm}", "5", True),
        ({"units": "ignore"}, "5\\text{ cm}", "5\\text{ m}", True),
        ({"units": "strict"}, "5\\text{ cm}", "5", False),
        ({"units": "strict"}, "5\\text{ cm}", "0.05\\text{ m}", True),
        ({}, "45^\\circ", "45", True),
        ({}, "45^\\circ", "\\frac{\\pi}{4}", False),
        ({"degrees": "angle"}, "45^\\circ", "\\frac{\\pi}{4}", True),
        ({"degrees": "angle"}, "45^\\circ", "45", False),
        ({}, "1, 2, 3", "3, 2, 1", True),
        ({"list_order": "keep"}, "1, 2, 3", "3, 2, 1", False),
        ({}, "(1, 2)", "(2, 1)", False),
        ({"tuple_order": "ignore"}, "(1, 2)", "(2, 1)", True),
        ({"tuple_order": "ignore"}, "(1, 2)", "(2, 3)", False),
        ({"tuple_order": "ignore"}, "\\langle 1, 2\\rangle", "\\langle 2, 1\\rangle", False),
        ({}, "3:2", "6:4", True),
        ({"ratio_scaling": False}, "3:2", "6:4", False),
        ({}, "1011_2", "1011", False),
        ({"base_subscript": "optional"}, "1011_2", "1011", True),
        ({}, "\\frac13", "0.333333", True),
        ({}, "\\frac13", "0.33333", False),
        ({"decimal_digits": 3}, "\\frac13", "0.333", True),
        ({"decimal_digits": 0}, "\\frac13", "0.333333333", False),
        ({}, "\\frac{100}{3}", "33.3", False),
        ({"decimal_tolerance": 0.01}, "\\frac{100}{3}", "33.3", True),
        ({"decimal_tolerance": 0.01}, "\\sqrt2", "1.41", True),
        ({"decimal_tolerance": 0.01}, "\\sqrt2", "1.5", False),
        ({"decimal_tolerance": 0.01}, "100", "101", False),
        ({}, "7", "seven", True),
        ({"number_words": False}, "7", "seven", False),
        ({}, "3.14", "3,14", True),
        ({"decimal_comma": False}, "3.14", "3,14", False),
    ],
)
def test_switch(settings: dict[str, Any], gold: str, answer: str, expected: bool) -> None:
    policy = MathPolicy(**settings)
    for one, two in ((gold, answer), (answer, gold)):
        found = quick(one, two) or check(one, two, policy)
        assert (found.status == "correct") is expected, found
