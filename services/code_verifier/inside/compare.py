"""Whether what a call gave is what JSON says it should be.

Equal by Python's ``==``, and: a tuple stands for an array; a whole or broken number is equal by value, true and false
only to themselves; NaN equals NaN; a key that is no text stands for what JSON writes for it. With a tolerance, numbers
may differ by it, absolutely or relatively.
"""

from __future__ import annotations

import math
from typing import Any

from .attached import bare


def equal(got: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Compare plain data; what is not plain equals nothing."""
    got = bare(got)
    if isinstance(got, list | tuple):
        return (
            isinstance(expected, list)
            and len(got) == len(expected)
            and all(equal(g, e, tolerance) for g, e in zip(got, expected, strict=True))
        )
    if isinstance(got, dict):
        if not isinstance(expected, dict) or len(got) != len(expected):
            return False
        keyed = {_key(k): v for k, v in got.items()}
        return keyed.keys() == expected.keys() and all(equal(v, expected[k], tolerance) for k, v in keyed.items())
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, int | float) and isinstance(expected, int | float):
        return got == expected or _near(got, expected, tolerance)
    return type(got) is type(expected) and bool(got == expected)


def _near(got: float, expected: float, tolerance: float) -> bool:
    try:
        first, second = float(got), float(expected)
    except OverflowError:
        return False
    if math.isnan(first) and math.isnan(second):
        return True
    return tolerance > 0 and math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)


def _key(key: Any) -> Any:
    key = bare(key)  # nothing is asked of the program while its values are compared
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key) if isinstance(key, int | float) else key
