from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_trainer.ordinals import Ordinals


@given(st.lists(st.integers(1, 40), max_size=80), st.integers(0, 45))
def test_behaves_like_a_set(added: list[int], until: int) -> None:
    ordinals, model = Ordinals(), set[int]()
    for value in added:
        assert ordinals.add(value) == (value not in model)
        model.add(value)
        assert value in ordinals
    assert list(ordinals) == sorted(model)
    assert len(ordinals) == len(model)
    assert list(ordinals.missing(until)) == [n for n in range(1, until + 1) if n not in model]
    assert ordinals.low_watermark == next(n for n in range(50) if n + 1 not in model)
    intervals = ordinals.intervals()
    assert all(a_end + 1 < b_start for (_, a_end), (b_start, _) in pairwise(intervals))
    assert list(Ordinals(intervals)) == sorted(model)


def test_settling_in_order_keeps_one_interval() -> None:
    ordinals = Ordinals()
    for value in range(1, 10_001):
        ordinals.add(value)
    assert ordinals.intervals() == [(1, 10_000)]


@pytest.mark.parametrize("intervals", [[(0, 1)], [(2, 1)], [(1, 3), (4, 5)], [(5, 6), (1, 2)]])
def test_refuses_what_is_no_set(intervals: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="interval"):
        Ordinals(intervals)


def test_ordinals_count_from_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        Ordinals().add(0)
