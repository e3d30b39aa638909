"""The window's invariant under any order of completion, and the retry policy's bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gristmill.worker.retry import RetryPolicy
from gristmill.worker.window import Slot, Window


@given(st.data())
def test_the_watermark_is_the_first_unsettled_offset_and_never_goes_back(data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=40))
    start = data.draw(st.integers(0, 10))
    window = Window(start)
    offsets: list[int] = []
    at = start - 1
    for gap in gaps:
        at += gap
        offsets.append(at)
    waiting = [Slot(offset, object()) for offset in offsets]
    opened: list[Slot] = []
    settled: set[int] = set()
    while waiting or len(settled) < len(offsets):
        if waiting and (not opened or data.draw(st.booleans())):
            slot = waiting.pop(0)
            window.open(slot)
            opened.append(slot)
        else:
            slot = opened.pop(data.draw(st.integers(0, len(opened) - 1)))
            before = window.watermark
            window.settle(slot)
            settled.add(slot.offset)
            assert slot.message is None
            assert before is not None
            assert window.watermark is not None
            assert window.watermark >= before
        prefix = 0
        while prefix < len(offsets) and offsets[prefix] in settled:
            prefix += 1
        assert window.watermark == (offsets[prefix - 1] + 1 if prefix else start)
        assert len(window) == len(offsets) - len(waiting) - prefix
    assert len(window) == 0


def test_a_restart_forgets_what_was_open() -> None:
    window = Window(50)
    old = Slot(50)
    window.open(old)
    window.restart(3)
    window.settle(old)
    assert window.watermark == 3
    fresh = Slot(3)
    window.open(fresh)
    window.settle(fresh)
    assert window.watermark == 4


@given(
    attempts=st.integers(1, 12),
    elapsed_s=st.floats(0, 100),
    first=st.floats(0.001, 1),
    cap=st.floats(1, 10),
    attempt=st.integers(1, 14),
    elapsed=st.floats(0, 100),
)
def test_retries_keep_both_limits_and_spread(
    attempts: int, elapsed_s: float, first: float, cap: float, attempt: int, elapsed: float
) -> None:
    policy = RetryPolicy(attempts, elapsed_s, first, cap)
    delay = policy.delay(attempt, elapsed)
    mean = min(cap, first * 2 ** (attempt - 1))
    if delay is None:
        assert attempt >= attempts or elapsed + 1.5 * mean > elapsed_s
    else:
        assert attempt < attempts
        assert 0.5 * mean <= delay <= 1.5 * mean
        assert elapsed + delay <= elapsed_s
