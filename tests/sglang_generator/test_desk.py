"""A desk: requests wait for slots, answers free them, and what has arrived is read later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from generator_rig import eventually
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_generator.config import StaticPolicy
from sglang_generator.desk import READ_AT_ONCE, Ask, Desk
from sglang_generator.errors import EngineError
from sglang_generator.http1 import Response
from sglang_generator.lanes import Done, Outcome
from sglang_generator.policy import Policy, static_policy
from sglang_generator.refill import Refill
from sglang_generator.wire import Expected, Prompt, Request

GOOD = Response(200, b"{}", True)
BAD = Response(500, b"", True)
LOST = EngineError("connection", "lost")
POLICY = static_policy(StaticPolicy(), "run")
PROMPT = Prompt([1, 2])


class FakeFlight:
    def __init__(self, sender: FakeSender, request: Request, done: Done) -> None:
        self.sender, self.request, self.done = sender, request, done

    def give_up(self) -> None:
        self.sender.flights.remove(self)

    def end(self, outcome: Outcome) -> None:
        self.sender.flights.remove(self)
        self.done(outcome)


class FakeSender:
    """Keeps requests in flight until told."""

    def __init__(self) -> None:
        self.flights: list[FakeFlight] = []
        self.most = 0

    def send(self, request: Request, done: Done) -> Any:
        flight = FakeFlight(self, request, done)
        self.flights.append(flight)
        self.most = max(self.most, len(self.flights))
        return flight

    @property
    def rids(self) -> list[str]:
        return [flight.request.rid for flight in self.flights]


class Case:
    def __init__(self, limit: int, refill: Refill | None = None) -> None:
        self.sender = FakeSender()
        self.usable = True
        self.rooms = 0
        self.ready: list[Ask] = []
        self.refill = refill or Refill(0.0)
        self.desk = Desk(self.sender, limit, lambda policy: self.usable, lambda: 7, self._room, self.refill)
        self.asks: list[Ask] = []

    def _room(self) -> None:
        self.rooms += 1

    def submit(self, policy: Policy = POLICY) -> Ask:
        request = Request(str(len(self.asks)), PROMPT, {"max_new_tokens": 1}, Expected(None, None))
        ask = Ask(policy, request, lambda: self.ready.append(ask))
        self.asks.append(ask)
        self.desk.submit(ask)
        return ask


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_next_request_leaves_before_the_answer_is_read() -> None:
    async def main() -> None:
        case = Case(2)
        first, second, _ = case.submit(), case.submit(), case.submit()
        assert case.sender.rids == ["0", "1"]
        case.sender.flights[0].end(GOOD)
        assert case.sender.rids == ["1", "2"]
        assert not case.ready
        assert case.rooms == 0  # another request took the slot
        case.sender.flights[0].end(GOOD)
        assert (case.rooms, case.desk.unread) == (1, 2)
        await turns()
        assert case.ready == [first, second]
        assert (first.outcome, first.epoch, first.stage) == (GOOD, 7, "unread")
        case.desk.close_ask(first)
        case.desk.close_ask(second)
        assert (case.desk.unread, case.desk.slots.held) == (0, 1)

    asyncio.run(main())


def test_unread_answers_are_bounded() -> None:
    async def main() -> None:
        case = Case(3)
        for _ in range(100):
            case.submit()
        while case.sender.flights:
            case.sender.flights[0].end(GOOD)
        # Three that freed their slots, and three that keep them: nothing more is sent until they are read.
        assert case.desk.unread == 3
        assert sum(ask.stage == "unread" for ask in case.asks) == 6
        assert sum(ask.stage == "waiting" for ask in case.asks) == 94
        read = 0
        while read < 100:
            await turns()
            while case.ready:
                case.desk.close_ask(case.ready.pop(0))
                read += 1
            while case.sender.flights:
                case.sender.flights[0].end(GOOD)
        assert {ask.stage for ask in case.asks} == {"over"}
        assert {ask.outcome for ask in case.asks} == {None}  # nothing keeps their bodies
        await turns()
        assert (case.desk.unread, case.desk.slots.held, case.sender.most) == (0, 0, 3)

    asyncio.run(main())


def test_a_failure_keeps_its_slot_and_is_read_first() -> None:
    async def main() -> None:
        case = Case(3)
        good, bad, lost = case.submit(), case.submit(), case.submit()
        case.submit()
        case.sender.flights[0].end(GOOD)
        assert case.sender.rids == ["1", "2", "3"]
        for outcome in (BAD, LOST):
            case.sender.flights[0].end(outcome)
        assert case.sender.rids == ["3"]
        case.submit()
        assert case.sender.rids == ["3"]
        case.usable = False  # as after a failure that takes the engine out of service
        await turns()
        assert case.ready == [lost, bad, good]
        case.desk.close_ask(lost)
        await turns()
        assert case.sender.rids == ["3"]
        assert (case.asks[-1].outcome, case.ready[-1]) == (None, case.asks[-1])
        for ask in case.ready:
            case.desk.close_ask(ask)
        await turns()
        assert (case.desk.unread, case.desk.slots.held) == (0, 1)

    asyncio.run(main())


def test_nothing_is_sent_while_everything_is_given_up() -> None:
    async def main() -> None:
        case = Case(4)
        for _ in range(12):
            case.submit()
        for ask in case.asks:
            case.desk.close_ask(ask)
        await turns()
        assert not case.sender.flights
        assert case.sender.most == 4
        assert case.desk.slots.held == 0
        case.submit()
        assert case.sender.rids == ["12"]

    asyncio.run(main())


def test_a_callback_that_raises_stops_neither_the_desk_nor_its_slots() -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        case = Case(2)
        bad, good = case.submit(), case.submit()

        def fail() -> None:
            raise MemoryError

        bad.ready = fail
        for _ in range(2):
            case.sender.flights[0].end(GOOD)
        await turns()
        assert case.ready == [good]

        send = case.sender.send
        case.sender.send = lambda *_: fail()  # type: ignore[method-assign]
        with pytest.raises(MemoryError):
            case.submit()
        case.sender.send = send  # type: ignore[method-assign]
        case.desk.close_ask(case.asks[-1])
        assert case.desk.slots.held == 0
        case.submit()
        assert len(case.sender.flights) == 1

    asyncio.run(main())


def test_few_answers_are_read_between_arrivals() -> None:
    async def main() -> None:
        case = Case(100)
        for _ in range(100):
            case.submit()
        while case.sender.flights:
            case.sender.flights[0].end(GOOD)
        await asyncio.sleep(0)
        assert len(case.ready) == READ_AT_ONCE
        await turns(100)
        assert case.ready == case.asks

    asyncio.run(main())


def full_desk(limit: int, waiting: int, latency_s: float) -> Case:
    """Full, with answers that take so long, and requests that wait."""
    case = Case(limit, Refill(1e6))  # the bound decides: a tenth of the slots, and of the latency
    for _ in range(limit + waiting):
        case.submit()
    case.refill.observe(latency_s)
    case.desk.resize(limit)
    return case


def test_requests_leave_together() -> None:
    async def main() -> None:
        case = full_desk(40, 8, latency_s=3600.0)
        for _ in range(3):
            case.sender.flights[0].end(GOOD)
        assert (len(case.sender.flights), case.desk.slots.waiting) == (37, 8)
        assert case.rooms == 3  # meanwhile groups are placed
        case.sender.flights[0].end(GOOD)
        assert (len(case.sender.flights), case.desk.slots.waiting) == (40, 4)
        assert case.sender.rids[-4:] == ["40", "41", "42", "43"]
        case.sender.flights[0].end(LOST)  # a failure keeps its slot until it is judged
        assert (len(case.sender.flights), case.desk.slots.held) == (39, 40)

    asyncio.run(main())


def test_a_request_does_not_wait_for_ever() -> None:
    async def main() -> None:
        case = full_desk(40, 2, latency_s=1.0)
        ended = asyncio.get_running_loop().time()
        case.sender.flights[0].end(GOOD)
        case.refill.observe(1e9)  # a pause that has begun is not made longer
        await eventually(lambda: case.desk.slots.waiting == 1)
        assert asyncio.get_running_loop().time() - ended > 0.03
        assert len(case.sender.flights) == 40

    asyncio.run(main())


def test_a_pause_ends_with_the_requests_that_it_was_for() -> None:
    async def main() -> None:
        case = full_desk(40, 12, latency_s=3600.0)
        case.sender.flights[0].end(GOOD)
        first = case.desk._pause
        assert first is not None
        case.submit()
        case.sender.flights[0].end(GOOD)
        assert (case.desk._pause, first.cancelled()) == (first, False)  # whoever comes meanwhile does not extend it
        for _ in range(2):
            case.sender.flights[0].end(GOOD)
        assert (case.desk.slots.waiting, first.cancelled()) == (9, True)
        case.sender.flights[0].end(GOOD)
        assert case.desk._pause not in (None, first)

    asyncio.run(main())


def test_a_pause_that_nobody_waited_for_ends_as_well() -> None:
    async def main() -> None:
        case = full_desk(40, 1, latency_s=0.2)
        case.sender.flights[0].end(GOOD)
        case.desk.close_ask(case.asks[40])
        assert case.desk._pause is not None
        await eventually(lambda: case.desk._pause is None)
        case.sender.flights[0].end(GOOD)
        case.submit()
        assert case.desk.slots.waiting == 1
        await eventually(lambda: not case.desk.slots.waiting)
        assert len(case.sender.flights) == 39

    asyncio.run(main())


def test_a_burst_leaves_at_once() -> None:
    async def main() -> None:
        case = full_desk(40, 0, latency_s=3600.0)
        while case.sender.flights:
            case.sender.flights[0].end(GOOD)
        for _ in range(40):
            case.submit()
        assert (len(case.sender.flights), case.desk.slots.waiting) == (40, 0)

    asyncio.run(main())


def test_an_engine_with_room_gets_requests_at_once() -> None:
    async def main() -> None:
        case = full_desk(40, 0, latency_s=3600.0)
        for _ in range(6):
            case.sender.flights[0].end(GOOD)
        for _ in range(6):
            case.submit()
        assert (len(case.sender.flights), case.desk.slots.waiting) == (40, 0)

    asyncio.run(main())


def test_answers_tell_the_latency_and_failures_do_not() -> None:
    async def main() -> None:
        case = Case(40, Refill(1e6))
        for _ in range(43):
            case.submit()
        await asyncio.sleep(0.01)
        case.sender.flights[0].end(LOST)
        assert (case.refill.pause_s, case.desk.slots.together) == (0.0, 1)
        case.sender.flights[0].end(GOOD)
        assert case.refill.pause_s > 0.0005
        assert (case.desk.slots.together, case.desk.slots.waiting) == (4, 3)  # from the first answer on

    asyncio.run(main())


def test_another_limit_is_another_number() -> None:
    async def main() -> None:
        case = full_desk(40, 0, latency_s=3600.0)
        assert case.desk.slots.together == 4
        case.desk.resize(20)
        assert case.desk.slots.together == 2
        case.desk.resize(100)
        assert case.desk.slots.together == 10

    asyncio.run(main())


def test_nothing_waits_for_company_that_cannot_come() -> None:
    async def main() -> None:
        case = full_desk(40, 8, latency_s=3600.0)
        case.sender.flights[0].end(GOOD)
        assert (len(case.sender.flights), case.desk.slots.waiting) == (39, 8)
        case.desk.let_gather(on=False)
        assert (len(case.sender.flights), case.desk.slots.waiting) == (40, 7)
        case.sender.flights[0].end(GOOD)
        assert (len(case.sender.flights), case.desk.slots.waiting) == (40, 6)
        case.desk.let_gather(on=True)
        case.sender.flights[0].end(GOOD)
        assert (len(case.sender.flights), case.desk.slots.waiting) == (39, 6)

    asyncio.run(main())


STEPS = st.sampled_from(["submit", "good", "good", "fail", "read", "withdraw", "leave service", "return", "turn"])


class Together(Refill):
    """For desks too small for a tenth of their slots to be more than one."""

    def __init__(self, count: int) -> None:
        super().__init__(0.0)
        self.count = count

    @property
    def pause_s(self) -> float:
        return 0.001

    def together(self, limit: int) -> int:
        return min(self.count, limit)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=80),
    limit=st.integers(1, 4),
    together=st.integers(1, 3),
    picks=st.randoms(use_true_random=False),
)
def test_every_request_is_read_once_and_nothing_is_lost(
    steps: list[str], limit: int, together: int, picks: Any
) -> None:
    async def main() -> None:
        case = Case(limit, Together(together))
        read: list[Ask] = []
        withdrawn: set[Ask] = set()

        def do(step: str) -> None:
            if step == "submit":
                case.submit()
            elif step in ("good", "fail") and case.sender.flights:
                outcome = GOOD if step == "good" else picks.choice([BAD, LOST])
                picks.choice(case.sender.flights).end(outcome)
            elif step == "read" and case.ready:
                ask = case.ready.pop(0)
                if ask not in withdrawn:
                    case.desk.close_ask(ask)
                    read.append(ask)
            elif step == "withdraw" and case.asks:
                ask = picks.choice(case.asks)
                if ask not in read:
                    case.desk.close_ask(ask)
                    withdrawn.add(ask)
            elif step in ("leave service", "return"):
                case.usable = step == "return"

        for step in steps:
            do(step)
            if step == "turn":
                await asyncio.sleep(0)
            assert len(case.sender.flights) <= limit
            assert 0 <= case.desk.unread <= limit
            assert case.desk.slots.held <= limit
            assert sum(ask.stage == "unread" and ask.outcome is not None for ask in case.asks) <= 2 * limit
        for _ in range(3 * len(case.asks) + 3):
            do("good")
            await asyncio.sleep(0.002 if case.desk.slots.waiting and not case.sender.flights else 0)
            do("read")
        assert len(read) == len(set(read))
        assert set(read) | withdrawn == set(case.asks)
        assert (case.desk.unread, case.desk.slots.held, case.sender.flights) == (0, 0, [])

    asyncio.run(main())
