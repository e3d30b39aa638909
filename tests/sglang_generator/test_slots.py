"""Slots that follow a limit."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_generator.slots import Slots


def test_raising_the_limit_lets_the_first_in() -> None:
    async def main() -> None:
        slots = Slots(1)
        order: list[int] = []
        leave = [asyncio.Event() for _ in range(4)]

        async def hold(number: int) -> None:
            async with slots:
                order.append(number)
                await leave[number].wait()

        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(hold(number)))
            await asyncio.sleep(0)
        assert order == [0]
        slots.resize(3)
        await asyncio.sleep(0)
        assert order == [0, 1, 2]
        slots.resize(1)
        for number in (0, 1):
            leave[number].set()
            await tasks[number]
        assert order == [0, 1, 2]  # one still holds, and one is all that may
        leave[2].set()
        await tasks[2]
        await asyncio.sleep(0)
        assert order == [0, 1, 2, 3]
        leave[3].set()
        await tasks[3]
        assert slots.held == 0

    asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.sampled_from(["enter", "cancel", "leave", "grow", "shrink", "turn"]), max_size=60))
def test_slots_are_neither_lost_nor_made(steps: list[str]) -> None:
    async def main() -> None:
        slots = Slots(2)
        limit = most = 2
        inside: list[asyncio.Event] = []
        tasks: list[asyncio.Task[None]] = []

        async def hold() -> None:
            async with slots:
                assert slots.held <= most
                leave = asyncio.Event()
                inside.append(leave)
                await leave.wait()

        for step in steps:
            if step == "enter":
                tasks.append(asyncio.create_task(hold()))
            elif step == "cancel" and tasks:
                tasks.pop(len(tasks) // 2).cancel()
            elif step == "leave" and inside:
                inside.pop(0).set()
            elif step == "grow":
                limit += 1
                most = max(most, limit)
                slots.resize(limit)
            elif step == "shrink" and limit > 1:
                limit -= 1
                slots.resize(limit)
            else:
                await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        # Nobody waits while there is room.
        alive = [task for task in tasks if not task.done()]
        assert slots.held >= min(len(alive), limit)
        for task in alive:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)
        assert slots.held == 0

    asyncio.run(main())
