"""Slots that follow a limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_generator.slots import Slots


def test_raising_the_limit_lets_the_first_in() -> None:
    slots = Slots(1, lambda: None)
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
    slots = Slots(1, lambda: None)
    seen: list[int] = []
    slots.enter(lambda: None)
    for number in range(5000):
        slots.enter(lambda number=number: (seen.append(number), slots.leave()))  # type: ignore[misc]
    slots.leave()
    assert seen == list(range(5000))
    assert slots.held == 0


def test_slots_are_given_out_together() -> None:
    held_back: list[int] = []
    slots = Slots(10, lambda: held_back.append(slots.held))
    inside: list[int] = []
    for number in range(14):
        slots.enter(partial(inside.append, number))
    slots.together = 3
    slots.leave()
    slots.leave()
    assert (len(inside), held_back) == (10, [9, 8])
    slots.leave()
    assert (len(inside), slots.held, slots.waiting) == (13, 10, 1)
    slots.leave()
    assert len(inside) == 13
    slots.fill()
    assert (len(inside), slots.held) == (14, 10)
    assert held_back == [9, 8, 9]
    slots.leave()
    slots.leave()
    assert held_back == [9, 8, 9]  # nobody waits
    slots.enter(partial(inside.append, 14))
    assert (len(inside), held_back) == (14, [9, 8, 9, 8])
    slots.resize(11)
    assert (len(inside), slots.held) == (15, 9)


def test_what_is_free_and_more_goes_out_at_once() -> None:
    slots = Slots(10, lambda: None)
    slots.together = 3
    inside: list[int] = []
    for number in range(20):
        slots.enter(partial(inside.append, number))
    assert len(inside) == 8  # as long as three or more are free, at once
    slots.fill()
    assert len(inside) == 10


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["enter", "enter", "withdraw", "leave", "grow", "shrink", "fill"]), max_size=80),
    together=st.integers(1, 3),
)
def test_slots_are_neither_lost_nor_made(steps: list[str], together: int) -> None:
    told = False

    def held_back() -> None:
        nonlocal told
        told = True

    slots = Slots(2, held_back)
    slots.together = together
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
        elif step == "fill":
            slots.fill()
        assert (slots.held, slots.waiting) == (len(inside), len(waiting))
        # Nobody waits while there is room, unless for company, and then somebody knows of it.
        free = limit - slots.held
        assert not waiting or free <= 0 or (told and free < together)
        if not waiting or free <= 0:
            told = False
