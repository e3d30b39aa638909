"""Slots that follow a limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_generator.slots import Slots


def calling_slots(limit: int, on_gathering: Callable[[], None] = lambda: None) -> Slots[Callable[[], object]]:
    """Slots that call whoever gets one."""

    def call(turn: Callable[[], object]) -> None:
        turn()

    return Slots(limit, call, on_gathering)


def test_raising_the_limit_lets_the_first_in() -> None:
    slots = calling_slots(1)
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
    slots = calling_slots(1)
    seen: list[int] = []
    slots.enter(lambda: None)
    for number in range(5000):
        slots.enter(lambda number=number: (seen.append(number), slots.leave()))  # type: ignore[misc]
    slots.leave()
    assert seen == list(range(5000))
    assert slots.held == 0


class Gathering:
    """Slots that wait for each other, and who is inside."""

    def __init__(self, limit: int, together: int, inside: int) -> None:
        self.begun = 0
        self.inside: list[int] = []
        self.slots = calling_slots(limit, self._begin)
        self.slots.together = together
        self.enter(inside)

    def _begin(self) -> None:
        self.begun += 1

    def enter(self, count: int = 1) -> None:
        for _ in range(count):
            self.slots.enter(partial(self.inside.append, len(self.inside) + self.slots.waiting))

    def leave(self, count: int = 1) -> None:
        for _ in range(count):
            self.slots.leave()

    def counts(self) -> tuple[int, int, int, int]:
        return self.slots.held, self.slots.waiting, len(self.inside), self.begun


def test_slots_are_given_out_together() -> None:
    case = Gathering(limit=10, together=3, inside=14)
    case.leave(2)
    assert case.counts() == (8, 4, 10, 1)
    case.leave()
    assert case.counts() == (10, 1, 13, 1)
    case.leave()
    assert case.counts() == (9, 1, 13, 2)
    case.slots.fill()
    assert case.counts() == (10, 0, 14, 2)
    assert case.inside == list(range(14))


def test_slots_wait_whether_or_not_somebody_waits_for_them() -> None:
    case = Gathering(limit=10, together=3, inside=10)
    case.leave()
    case.enter()
    assert case.counts() == (9, 1, 10, 1)
    case.leave(2)
    assert case.counts() == (8, 0, 11, 1)
    case.enter(2)  # what has been free for long does not wait
    assert case.counts() == (10, 0, 13, 1)


def test_a_burst_is_not_split() -> None:
    case = Gathering(limit=10, together=3, inside=10)
    case.leave(10)
    assert case.counts() == (0, 0, 10, 1)
    case.enter(10)
    assert case.counts() == (10, 0, 20, 1)


def test_another_limit_ends_the_wait() -> None:
    case = Gathering(limit=10, together=3, inside=11)
    case.leave()
    case.slots.resize(10)
    assert case.counts() == (10, 0, 11, 1)
    case.enter()
    case.leave()
    assert case.counts() == (9, 1, 11, 2)  # another wait, of which somebody is told
    case.slots.resize(8)
    case.leave(2)
    assert case.counts() == (7, 1, 11, 3)


def test_who_follows_a_turn_that_fails_is_not_forgotten() -> None:
    case = Gathering(limit=2, together=1, inside=2)
    failing = ZeroDivisionError("not mine")

    def fail() -> None:
        raise failing

    case.slots.enter(fail)
    case.enter()
    with pytest.raises(ZeroDivisionError):
        case.leave()
    assert case.counts() == (1, 1, 2, 1)
    case.slots.fill()
    assert case.counts() == (2, 0, 3, 1)


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["enter", "enter", "withdraw", "leave", "grow", "shrink", "fill"]), max_size=80),
    together=st.integers(1, 3),
)
def test_slots_are_neither_lost_nor_made(steps: list[str], together: int) -> None:
    gathering = False

    def gather() -> None:
        nonlocal gathering
        gathering = True

    slots = calling_slots(2, gather)
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
            gathering = False
        elif step == "shrink" and limit > 1:
            limit -= 1
            slots.resize(limit)
            gathering = False
        elif step == "fill":
            slots.fill()
            gathering = False
        assert (slots.held, slots.waiting) == (len(inside), len(waiting))
        # Nobody waits while there is room, unless for company, and then somebody has been told.
        free = limit - slots.held
        if not 0 < free < together:
            gathering = False
        assert not waiting or free <= 0 or gathering
