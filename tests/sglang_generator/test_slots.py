"""Slots that follow a limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_generator.slots import Slots


def test_raising_the_limit_lets_the_first_in() -> None:
    slots = Slots(1)
    order: list[int] = []
    for number in range(4):
        slots.enter(partial(order.append, number))
    assert order == [0]
    slots.resize(3)
    assert order == [0, 1, 2]
    slots.resize(1)
    slots.leave()
    slots.leave()
    assert order == [0, 1, 2]  # one still holds, and one is all that may
    slots.leave()
    assert order == [0, 1, 2, 3]
    slots.leave()
    assert slots.held == 0


def test_a_thousand_turns_that_leave_at_once_do_not_nest() -> None:
    slots = Slots(1)
    seen: list[int] = []
    slots.enter(lambda: None)
    for number in range(5000):
        slots.enter(lambda number=number: (seen.append(number), slots.leave()))  # type: ignore[misc]
    slots.leave()
    assert seen == list(range(5000))
    assert slots.held == 0


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.sampled_from(["enter", "withdraw", "leave", "grow", "shrink"]), max_size=80))
def test_slots_are_neither_lost_nor_made(steps: list[str]) -> None:
    slots = Slots(2)
    limit = 2
    waiting: list[Callable[[], None]] = []
    inside: list[Callable[[], None]] = []

    def newcomer() -> Callable[[], None]:
        def turn() -> None:
            waiting.remove(turn)
            inside.append(turn)
            assert slots.held <= limit

        waiting.append(turn)
        return turn

    for step in steps:
        if step == "enter":
            slots.enter(newcomer())
        elif step == "withdraw" and waiting:
            assert slots.withdraw(waiting.pop(len(waiting) // 2))
        elif step == "withdraw" and inside:
            assert not slots.withdraw(inside[0])
        elif step == "leave" and inside:
            inside.pop(0)
            slots.leave()
        elif step == "grow":
            limit += 1
            slots.resize(limit)
        elif step == "shrink" and limit > 1:
            limit -= 1
            slots.resize(limit)
        assert slots.held == len(inside)
        assert not waiting or slots.held >= limit  # nobody waits while there is room
