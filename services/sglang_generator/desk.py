"""The requests of one engine, from waiting for a slot until their answers have been read.

An engine's scheduler serves together what arrives together, so the slots that answers free are filled several at a
time (:mod:`sglang_generator.refill`): in the very call in which the answer arrives that makes up the number, or when
the pause ends. Reading an answer (JSON, checks, encoding, producing) comes after its arrival, a few answers per turn of
the event loop. Invariants:

* Never more than ``slots.limit`` requests are in flight.
* A request waits though a slot is free only while fewer than ``slots.together`` are free, a tenth at most, and no
  longer than ``refill.pause_s`` as it was when the first of them was left.
* Answers that wait to be read are at most as many again: beyond that an answer keeps its slot until it is read.
* Only an answer of HTTP 200 frees its slot unread. After a failure nothing is sent in its place until it was judged,
  and failures are judged first.
* Every request that was submitted is told ready once, unless it is withdrawn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from sglang_generator.http1 import Response
from sglang_generator.lanes import Done, Flight, Outcome
from sglang_generator.policy import Policy
from sglang_generator.refill import Refill
from sglang_generator.slots import Slots
from sglang_generator.wire import Request

READ_AT_ONCE = 4
"""Answers that are read before other answers get a chance to arrive."""

Stage: TypeAlias = Literal["waiting", "in_flight", "unread", "over"]


class Sender(Protocol):
    """What a desk needs of a client."""

    def send(self, request: Request, done: Done) -> Flight:
        """Send a request."""


class Ask:
    """One request for a sample at one engine."""

    __slots__ = ("epoch", "flight", "keeps_slot", "outcome", "policy", "ready", "request", "seconds", "stage")

    def __init__(self, policy: Policy, request: Request, ready: Callable[[], None]) -> None:
        self.policy = policy
        self.request = request
        self.ready = ready
        """Called when there is something to read; it must only take note."""
        self.stage: Stage = "waiting"
        self.outcome: Outcome | None = None
        """None: it was not sent, for the engine no longer served the policy at its turn."""
        self.keeps_slot = False
        self.flight: Flight | None = None
        self.epoch = 0
        """Of the engine, when it was sent."""
        self.seconds = 0.0
        """When it was sent, by the monotonic clock; then how long the answer took."""


class Desk:
    """One engine's."""

    def __init__(
        self,
        sender: Sender,
        limit: int,
        usable_for: Callable[[Policy], bool],
        epoch: Callable[[], int],
        on_room: Callable[[], None],
        refill: Refill,
    ) -> None:
        """``on_room`` is called when an answer has freed its slot and no other request has it yet."""
        self.slots: Slots[Ask] = Slots(limit, self._send, self._begin_pause)
        self._may_gather = True
        self.unread = 0
        """Answers that freed their slots and wait to be read."""
        self._sender = sender
        self._usable_for = usable_for
        self._epoch = epoch
        self._on_room = on_room
        self._refill = refill
        self._pause: asyncio.TimerHandle | None = None
        self._arrived: deque[Ask] = deque()
        self._reading = False

    def resize(self, limit: int) -> None:
        """Let this many requests be in flight."""
        self.slots.resize(limit)
        self._set_together()

    def let_gather(self, on: bool) -> None:
        """Whether slots may wait for each other. Off: what waits has its turn now, for no more will come."""
        self._may_gather = on
        self._set_together()
        if not on:
            self.slots.fill()

    def submit(self, ask: Ask) -> None:
        """Send a request as soon as a slot is given to it, which may be now."""
        self.slots.enter(ask)

    def close_ask(self, ask: Ask) -> None:
        """An answer is being read, or nobody wants it any more."""
        stage, ask.stage = ask.stage, "over"
        if stage == "waiting":
            self.slots.withdraw(ask)
        elif stage == "in_flight":
            assert ask.flight is not None
            ask.flight.give_up()
            self._leave_soon()
        elif stage == "unread":
            if ask.keeps_slot:
                self._leave_soon()
            elif ask.outcome is not None:
                self.unread -= 1
        ask.outcome = None  # its body may be megabytes

    def _set_together(self) -> None:
        self.slots.together = self._refill.together(self.slots.limit) if self._may_gather else 1

    def _begin_pause(self) -> None:
        """Free slots have begun to wait: fill them after the pause at the latest."""
        if self._pause is None:
            self._pause = asyncio.get_running_loop().call_later(self._refill.pause_s, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self.slots.fill()

    def _leave_soon(self) -> None:
        """Give a slot back that no answer has freed: when everything is given up at once, nothing is sent meanwhile."""
        asyncio.get_running_loop().call_soon(self.slots.leave)

    def _send(self, ask: Ask) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if not self._usable_for(ask.policy):
            # It may have left service while the request waited.
            self.slots.leave()
            ask.stage = "unread"
            self._arrived.append(ask)
            self._read_soon()
            return
        ask.stage = "in_flight"
        ask.epoch = self._epoch()
        ask.seconds = time.monotonic()

        def done(outcome: Outcome) -> None:
            self._take(ask, outcome)

        try:
            ask.flight = self._sender.send(ask.request, done)
        except BaseException:
            ask.stage = "over"
            raise

    def _take(self, ask: Ask, outcome: Outcome) -> None:
        """An answer has arrived."""
        ask.seconds = time.monotonic() - ask.seconds
        ask.outcome = outcome
        ask.stage = "unread"
        good = isinstance(outcome, Response) and outcome.status == 200
        (self._arrived.append if good else self._arrived.appendleft)(ask)
        self._read_soon()
        if good:
            self._refill.observe(ask.seconds)
            self._set_together()
        if good and self.unread < self.slots.limit:
            self.unread += 1
            self.slots.leave()
            if self.slots.held < self.slots.limit:
                self._on_room()
        else:
            ask.keeps_slot = True

    def _read_soon(self) -> None:
        if not self._reading:
            self._reading = True
            asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        arrived = self._arrived
        told = 0
        try:
            while arrived and told < READ_AT_ONCE:
                ask = arrived.popleft()
                if ask.stage == "unread":
                    told += 1
                    ask.ready()
        finally:
            if arrived:
                asyncio.get_running_loop().call_soon(self._read)
            else:
                self._reading = False
