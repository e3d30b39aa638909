"""Writing outputs: the producer, driven from the event loop.

Delivery reports are served on the event loop's thread, in bulk, because librdkafka's Python binding takes the
interpreter lock anew for each one: on a thread of its own every report would wait for a busy event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from gristmill.errors import BadInput, InfrastructureError

HeaderList: TypeAlias = Sequence[tuple[str, bytes]]
OnDelivery: TypeAlias = Callable[[KafkaError | None, Any], None]

PUMP_S = 0.004
IDLE_PUMP_S = 0.25
ROOM_S = 0.01

TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
REFUSED = TOO_LARGE | {KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP}
"""The record itself is at fault: no retry saves it."""
MISCONFIGURED = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Neither waiting nor another record helps: a person has to act."""


PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Given up by ourselves, on closing."""


def is_written(message: Any) -> bool:
    """Whether a delivery report without an error means that the broker has the record.

    librdkafka's idempotent producer also reports success when only a *later* batch of the partition was
    acknowledged ("implicitly acked"). Kafka accepts such a later batch from a producer that it does not know yet
    although the first was refused, as happens on a topic just made whose leader is not ready: the first is lost.
    A record that was really acknowledged has an offset; one that has none is written again.
    """
    offset = message.offset()
    return offset is not None and offset >= 0


class Sink:
    """A producer whose callbacks run on the event loop."""

    def __init__(self, config: dict[str, Any], on_error: Callable[[KafkaError], None]) -> None:
        self._producer = Producer(config | {"error_cb": on_error})
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        self._closed = False
        self._produce = self._producer.produce
        self._idle()

    async def write(
        self, topic: str, key: bytes | str | None, value: bytes | None, headers: HeaderList | None, done: OnDelivery
    ) -> None:
        """Hand a record to the producer, waiting while its queue is full.

        Raises:
            BadInput: the record is larger than the producer admits.
            InfrastructureError: the producer is beyond use.
        """
        while not self.offer(topic, key, value, headers, done):  # noqa: ASYNC110 (librdkafka tells of room by no event)
            await asyncio.sleep(ROOM_S)

    def offer(
        self, topic: str, key: bytes | str | None, value: bytes | None, headers: HeaderList | None, done: OnDelivery
    ) -> bool:
        """Like :meth:`write`, but gives False at once when the queue is full."""
        try:
            if headers:
                self._produce(topic, value, key, on_delivery=done, headers=headers)
            else:
                self._produce(topic, value, key, on_delivery=done)
        except BufferError:
            self._producer.poll(0)
            self._hurry()
            return False
        except KafkaException as error:
            raise write_error(topic, error.args[0]) from error
        if not self._busy:
            self._hurry()
        return True

    def close(self) -> None:
        """Let go of the producer. Whatever is still queued was never acknowledged, so its input is repeated."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._producer.purge()
        self._producer.close()

    def _hurry(self) -> None:
        if not self._busy and not self._closed:
            self._busy = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(PUMP_S, self._pump)

    def _pump(self) -> None:
        self._producer.poll(0)
        if len(self._producer) and not self._closed:
            self._timer = self._loop.call_later(PUMP_S, self._pump)
        else:
            self._busy = False
            self._idle()

    def _idle(self) -> None:
        """Serve error callbacks now and then while nothing is being written."""
        self._producer.poll(0)
        if not self._busy and not self._closed:
            self._timer = self._loop.call_later(IDLE_PUMP_S, self._idle)


def write_error(topic: str, error: KafkaError) -> BadInput | InfrastructureError:
    """What a refused write means."""
    text = f"cannot write to topic {topic}: {error.str()}"
    if error.code() in REFUSED:
        return BadInput(text)
    if error.code() in MISCONFIGURED:
        return InfrastructureError(f"{text}; create the topics with 'gristmill topics apply', or check the rights")
    return InfrastructureError(text)
