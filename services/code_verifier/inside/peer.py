"""Calls between the judge's child and the candidate's child, either way, nested.

A request is a tuple ``(operation, *operands)``; an answer is a value or an exception, with the new contents of the
operands' containers that changed (call by copy and restore: what the callee did to a list is seen by the caller, and
an operand that comes back is the caller's own object).

What is not plain stays where it is: its owner gives it a number, the other side a stand-in. The two sides differ in
what they allow (:meth:`Peer.perform`) and in their stand-ins: :mod:`.candidate`, :mod:`.remote`.

Turns: one side at a time may speak, the judge first. A request or an answer gives the turn away. The host holds both
sides to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from . import frames, values
from .decoding import Decoder
from .encoding import Encoder, Writer
from .values import Json, Malformed

NESTING = 40
SHARED, SHARED_SIZE = 256, 10_000
SEVERAL = "several"
"""First item of a message that holds several requests; the answer is a list of answers to the first of them."""
FIRST_FUNCTION = b'["ok",["o",0,"function"],[],null]'
"""The answer to the first request of all, for a name, where it is a function's."""
MISSING, TAMPERED = "<missing>", "<tampered>"
"""Names of exceptions of the candidate's side itself, which no class of a program's has by chance."""


class ProtocolError(Exception):
    """The other side said what it must not."""


class Peer:
    """One side.

    Args:
        channel: to the other side, by way of the host.
    """

    def __init__(self, channel: frames.Channel) -> None:
        self._channel = channel
        self._turn = threading.RLock()
        self._owned: list[object] = []
        self._numbers: dict[int, int] = {}
        self._nested = 0

    def number(self, value: object) -> int:
        """The number of an object of this side; it stays alive with it."""
        found = self._numbers.get(id(value))
        if found is None:
            found = self._numbers[id(value)] = len(self._owned)
            self._owned.append(value)
        return found

    def owned(self, number: Json) -> Any:
        """The object of a number; raises :class:`Malformed`."""
        if type(number) is not int or not 0 <= number < len(self._owned):
            raise Malformed("no such object")
        return self._owned[number]

    def export(self, value: object) -> Json:
        """The JSON of what is not plain."""
        raise NotImplementedError

    def export_derived(self, encoder: Encoder, value: object, writer: Writer) -> Json:
        """The JSON of an instance of a subclass of a plain type: as that type, here."""
        return writer(encoder, value)

    def encoder(self, known: list[object] | None = None) -> Encoder:
        """What writes for the other side."""
        return Encoder(self.export, known, self.export_derived)

    def attach(self, _described: list[Json], _plain: Any) -> object:
        """What stands for an instance of a subclass of a plain type."""
        raise Malformed("a subclass")

    def news(self, _encoder: Encoder) -> list[Json]:
        """New contents of objects that the other side holds a copy of: ``[number, "s", contents]``."""
        return []

    def refresh(self, _ref: Json, _row: list[object]) -> None:
        """Take note of such contents; raises :class:`Malformed`."""
        raise Malformed("a change")

    def resolve(self, value: list[Any]) -> object:
        """What such JSON of the other side stands for; raises :class:`Malformed`."""
        raise NotImplementedError

    def perform(self, operation: str, operands: tuple[Any, ...]) -> object:
        """Do what the other side asks."""
        raise NotImplementedError

    def describe(self, encoder: Encoder, error: BaseException) -> Json:
        """The JSON of an exception that goes to the other side."""
        raise NotImplementedError

    def restore(self, decoder: Decoder, described: Json) -> BaseException:
        """The exception to raise for what the other side described; raises :class:`Malformed`."""
        raise NotImplementedError

    def share(self, _operation: str, _value: object) -> int | None:
        """The number of a container that the other side is to see as this side's own, not as a copy."""
        return None

    def shared(self, _number: Json, _value: object) -> object:
        """What stands for a container that the other side shares."""
        raise Malformed("a shared container")

    def received(self, _size: int, _depth: int) -> None:
        """Take note of an answer's size in bytes and depth."""

    def foreseen(self, _operation: str, _data: bytes) -> Json | None:
        """The answer to a request, where it is known already."""
        return None

    def request(self, operation: str, *operands: object) -> Any:
        """Have the other side do something: its value, or its exception raised."""
        with self._turn:
            encoder = self.encoder()
            with values.deep():
                data = values.dumps(encoder.encode((operation, *operands)))
            known = self.foreseen(operation, data)
            if known is not None:
                return self._accept(known, 0, encoder.containers)
            if self._nested >= NESTING:
                raise RecursionError(f"calls between the tests and the program are nested more than {NESTING} deep")
            self._nested += 1
            try:
                payload = self._exchange(data)
            finally:
                self._nested -= 1
            return self._accept(values.loads(payload), len(payload), encoder.containers)

    def _exchange(self, data: bytes) -> bytes:
        self._channel.send(frames.ASK, data)
        return self._awaited()

    def _awaited(self) -> bytes:
        while True:
            kind, payload = self._channel.receive()
            if kind == frames.ANSWER:
                return payload
            if kind != frames.ASK:
                raise ProtocolError(f"a message of kind {kind} in place of an answer")
            self.answer(payload)

    def _accept(self, message: Json, size: int, containers: list[object]) -> Any:
        if type(message) is not list or len(message) != 4 or type(message[2]) is not list:
            raise Malformed("an answer")
        decoder = Decoder(self.resolve, containers, self.attach)
        try:
            with values.deep():
                result = decoder.decode(message[1]) if message[0] == "ok" else self.restore(decoder, message[1])
                for change in message[2]:
                    if type(change) is list and len(change) == 3:
                        if change[1] != "s" or type(change[2]) is not list:
                            raise Malformed("a change")
                        self.refresh(change[0], decoder.items(change[2]))
                        continue
                    if type(change) is not list or len(change) != 2:
                        raise Malformed("a change")
                    if type(change[0]) is not int or change[0] >= len(containers):
                        raise Malformed("a change of what was not sent")
                    decoder.change(change[0], change[1])
        except (Malformed, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001
            # Whatever Python has against it: it is the other side's doing, not that of the code that asked.
            raise Malformed(f"{type(error).__name__}: {error}"[:1000]) from None
        self.received(size, decoder.deepest)
        if message[0] == "ok":
            return result if message[3] is None else self.shared(message[3], result)
        raise result

    def answer(self, payload: bytes) -> None:
        """Do what a request asks, and send what came of it."""
        self.hand_over(self.answer_to(values.loads(payload)))

    def answer_to(self, message: Json) -> bytes:
        """Do what a request asks: the answer."""
        decoder = Decoder(self.resolve, None, self.attach)
        with values.deep():
            request = decoder.decode(message)
        if type(request) is not tuple or not request or type(request[0]) is not str:
            raise Malformed("a request")
        known = decoder.containers
        before = [(n, c, values.holding(c)) for n, c in enumerate(known) if values.is_mutable(c)]

        def build(outcome: Callable[[Encoder], list[Json]]) -> bytes:
            with values.deep():
                encoder = self.encoder(known)
                message = outcome(encoder)
                changed = [[n, encoder.change(c)] for n, c, held in before if not values.same_contents(held, c)]
                changed += self.news(encoder)
                return values.dumps([*message[:2], changed, message[2]])

        def failed(error: BaseException) -> Callable[[Encoder], list[Json]]:
            return lambda encoder: ["err", self.describe(encoder, error), None]

        try:
            value = self.perform(request[0], request[1:])
            data = build(lambda encoder: ["ok", encoder.encode(value), self.share(request[0], value)])
            if len(data) > frames.MESSAGE_LIMIT:
                raise values.Uncarried(f"a value of {len(data)} bytes, more than {frames.MESSAGE_LIMIT}")
        except BaseException as error:  # noqa: BLE001 - whatever the called code raises is the caller's
            data = self._failure(build, failed, error)
        return data

    def _failure(
        self,
        build: Callable[[Callable[[Encoder], list[Json]]], bytes],
        failed: Callable[[BaseException], Callable[[Encoder], list[Json]]],
        error: BaseException,
    ) -> bytes:
        try:
            data = build(failed(error))
            if len(data) <= frames.MESSAGE_LIMIT:
                return data
            note: BaseException = values.Uncarried("an exception that is too large to carry")
        except (values.Uncarried, RecursionError, MemoryError) as second:
            note = second
        encoder = self.encoder()
        return values.dumps(
            ["err", self.describe(encoder, type(error)(str(note)) if _plain(error) else note), [], None]
        )

    def hand_over(self, data: bytes) -> None:
        """Send an answer."""
        self._channel.send(frames.ANSWER, data)


def _plain(error: BaseException) -> bool:
    return type(error) in {MemoryError, RecursionError}
