"""From a handler's outputs to settled records: encoding, writing, dead letters, and outputs the broker refused.

A record is settled when the broker has acknowledged every output of it, or its dead letter. Nothing is dropped:
an output that could not be delivered is written again, one that can never be turns its record into a dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeAlias

from confluent_kafka import KafkaError

from gristmill.errors import BadInput, InfrastructureError
from gristmill.service import ServiceContext
from gristmill.topics import MAX_MESSAGE_BYTES
from gristmill.worker.dead_letters import dead_letter_headers
from gristmill.worker.partition import Partition
from gristmill.worker.quiet import QuietLog
from gristmill.worker.records import NO_HEADERS, Headers, Outgoing, RawRecord
from gristmill.worker.sink import MISCONFIGURED, PURGED, REFUSED, ROOM_S, HeaderList, Sink, is_written, write_error
from gristmill.worker.stats import WorkerStats
from gristmill.worker.window import Slot

OnDeadLetter: TypeAlias = Callable[[RawRecord, Exception], Iterable[Outgoing]]
Encoded: TypeAlias = tuple[str, str | bytes | None, bytes | None, HeaderList | None]

REWRITE_S = 1.0
ENVELOPE_BYTES = 512
"""Room for Kafka's own framing of a record."""


class Outbox:
    """Writes what handlers give. Lives on the event loop."""

    def __init__(
        self,
        ctx: ServiceContext[Any],
        sink: Sink,
        stats: WorkerStats,
        on_dead_letter: OnDeadLetter | None,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._ctx = ctx
        self._quiet = QuietLog(ctx.log)
        self._encode_message = ctx.codec.encode
        self._sink = sink
        self._stats = stats
        self._on_dead_letter = on_dead_letter
        self._fail = fail

    def encode(self, output: Outgoing) -> Encoded:
        """Bytes of an output.

        Raises:
            BadInput: it does not fit its schema, or is too large for any topic.
        """
        message = output.message
        value = self._encode_message(message)
        key = message.key if output.key is None else output.key
        headers = None
        size = len(value) + len(key) + ENVELOPE_BYTES
        if output.headers:
            headers = [(k, v.encode() if isinstance(v, str) else v) for k, v in output.headers.items()]
            size += sum(len(k) + len(v) for k, v in headers)
        if size > MAX_MESSAGE_BYTES:
            raise BadInput(f"{type(message).__name__} {key}: {size} bytes, {MAX_MESSAGE_BYTES} are allowed")
        return output.topic.name, key, value, headers

    def write(self, partition: Partition, slot: Slot, outputs: list[Encoded]) -> list[Encoded]:
        """Give all outputs of a record to the producer; gives back those that found its queue full.

        Those are counted as pending: hand them to :meth:`push`.

        Raises:
            InfrastructureError: the producer is beyond use, or the dead letter itself was refused.
        """
        if not outputs:
            partition.settle(slot)
            return outputs
        if len(outputs) == 1:
            slot.pending += 1
            topic, key, value, headers = outputs[0]
            try:
                taken = self._sink.offer(topic, key, value, headers, partial(self._delivered, partition, slot))
            except BadInput as error:
                return self._refused(partition, slot, 1, error)
            return [] if taken else outputs
        slot.pending += len(outputs)
        done = partial(self._delivered, partition, slot)
        offer = self._sink.offer
        for index, (topic, key, value, headers) in enumerate(outputs):
            try:
                if not offer(topic, key, value, headers, done):
                    return outputs[index:]
            except BadInput as error:
                return self._refused(partition, slot, len(outputs) - index, error)
        return []

    def _refused(self, partition: Partition, slot: Slot, unwritten: int, error: BadInput) -> list[Encoded]:
        slot.pending -= unwritten
        if slot.given_up:
            raise InfrastructureError(f"the dead letter of a record was refused: {error}") from error
        return self.write(partition, slot, self.given_up(partition, slot, error))

    async def push(self, partition: Partition, slot: Slot, rest: list[Encoded]) -> None:
        """Write what is left, waiting for room."""
        while rest:
            await asyncio.sleep(ROOM_S)
            slot.pending -= len(rest)
            rest = self.write(partition, slot, rest)

    def given_up(self, partition: Partition, slot: Slot, error: Exception) -> list[Encoded]:
        """The dead letter of a record, and what ``on_dead_letter`` adds."""
        slot.given_up = True
        message = slot.message
        record = RawRecord(
            partition.topic.name,
            partition.number,
            slot.offset,
            message.key(),
            message.value(),
            read_headers(message),
            message.timestamp()[1],
        )
        partition.stats.dead += 1
        self._ctx.log.warning(
            "dead_letter", topic=record.topic, partition=record.partition, offset=record.offset, error=str(error)
        )
        headers = dead_letter_headers(record, error, self._ctx.name)
        value = record.value
        size = len(value or b"") + len(record.key or b"") + sum(len(k) + len(v) for k, v in headers) + ENVELOPE_BYTES
        if value is not None and size > MAX_MESSAGE_BYTES:
            headers.append(("value_dropped_bytes", str(len(value)).encode()))
            value = None
        outputs: list[Encoded] = [(self._ctx.topics.dead_letters.name, record.key, value, headers)]
        if self._on_dead_letter is not None:
            try:
                outputs += [self.encode(output) for output in self._on_dead_letter(record, error)]
            except BadInput as problem:
                self._ctx.log.warning("dead_letter_without_outputs", offset=record.offset, error=str(problem))
        return outputs

    def _delivered(self, partition: Partition, slot: Slot, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._undelivered(partition, slot, error, message)
            return
        if not is_written(message):
            self._write_again(partition, slot, message, "acknowledged without an offset")
            return
        self._stats.topic(message.topic()).sent += 1
        slot.pending -= 1
        if not slot.pending and slot.message is not None:
            partition.settle(slot)

    def _undelivered(self, partition: Partition, slot: Slot, error: KafkaError, message: Any) -> None:
        """An output that the broker did not take: never lost, whatever the reason."""
        topic = message.topic()
        if partition.abandoned or slot.message is None or error.code() in PURGED:
            return
        if error.fatal() or error.code() in MISCONFIGURED:
            self._fail(write_error(topic, error))
            return
        if error.code() in REFUSED:
            self._spawn(partition, self._replace(partition, slot, write_error(topic, error)))
        else:
            self._write_again(partition, slot, message, error.str())

    def _write_again(self, partition: Partition, slot: Slot, message: Any, reason: str) -> None:
        if partition.abandoned or slot.message is None:
            return
        self._quiet.warning("undelivered", about=message.topic(), error=reason, hint="it will be written again")
        again: Encoded = (message.topic(), message.key(), message.value(), message.headers())
        self._spawn(partition, self._repeat(partition, slot, again))

    async def _replace(self, partition: Partition, slot: Slot, error: Exception) -> None:
        """A dead letter in place of an output that was refused, whose share of ``pending`` is given back last."""
        if not slot.given_up:
            await self.push(partition, slot, self.write(partition, slot, self.given_up(partition, slot, error)))
        slot.pending -= 1
        if not slot.pending and slot.message is not None:
            partition.settle(slot)

    async def _repeat(self, partition: Partition, slot: Slot, output: Encoded) -> None:
        await asyncio.sleep(REWRITE_S)
        await self.push(partition, slot, [output])

    def _spawn(self, partition: Partition, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        partition.lanes.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            partition.lanes.discard(finished)
            if not finished.cancelled() and (error := finished.exception()) is not None:
                self._fail(error)

        task.add_done_callback(done)


def read_headers(message: Any) -> Headers:
    """Headers of a record as a mapping."""
    found = message.headers()
    return {name: value or b"" for name, value in found} if found else NO_HEADERS
