"""How long a slot waits for others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_generator.refill import EMPTY_AT_MOST, Refill

SECONDS = st.floats(1e-3, 1e4)


def lost(pause: float, latency: float, prefill: float) -> float:
    """Share of an engine's throughput: empty slots and prefills."""
    return pause / (2 * latency) + prefill / pause


def refill(prefill: float, latency: float) -> Refill:
    known = Refill(prefill)
    known.observe(latency)
    return known


@given(latency=SECONDS, prefill=st.floats(1e-4, 1.0), other=st.floats(0.01, 100.0))
def test_no_other_pause_within_the_bound_loses_less(latency: float, prefill: float, other: float) -> None:
    pause = refill(prefill, latency).pause_s
    assert pause <= EMPTY_AT_MOST * latency * (1 + 1e-9)
    elsewhere = min(pause * other, EMPTY_AT_MOST * latency)
    assert lost(pause, latency, prefill) <= lost(elsewhere, latency, prefill) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("latency", "limit", "together", "pause"),
    [(4.0, 512, 51, 0.4), (16.0, 512, 25, 0.8), (400.0, 512, 5, 4.0), (4.0, 9, 1, 0.4), (4.0, 20, 2, 0.4)],
)
def test_figures(latency: float, limit: int, together: int, pause: float) -> None:
    known = refill(0.02, latency)
    assert known.together(limit) == together
    assert math.isclose(known.pause_s, pause)


@pytest.mark.parametrize("known", [Refill(0.02), refill(0.0, 4.0)], ids=["nothing known", "no cost"])
def test_nothing_waits(known: Refill) -> None:
    assert (known.together(4096), known.pause_s) == (1, 0.0)


def test_the_latency_follows_the_answers() -> None:
    known = refill(0.02, 64.0)
    assert known.together(1000) == 25
    for _ in range(4):
        known.observe(14.0)
    assert math.isclose(known.share, math.sqrt(0.04 / 24.0))  # a plain mean at first: the first may be far off
    for _ in range(600):
        known.observe(16.0)
    assert known.together(1000) == 49
    assert math.isclose(known.share, math.sqrt(0.04 / 16.0), rel_tol=1e-3)
