"""Writing messages from synchronous code: the producer of problems, the trainer, tools and tests.

Nothing counts as written before :meth:`Publisher.flush_acked` returns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.errors import BadInput, InfrastructureError
from gristmill.kafka import producer_config
from gristmill.messages import Message
from gristmill.topics import Topic
from gristmill.worker.sink import PURGED, is_written, write_error

ROOM_S = 120.0
"""Seconds to wait for room in a full queue: as long as a record may take to be delivered."""


class Publisher:
    """A typed producer. Not for several threads at once."""

    def __init__(self, common: CommonConfig, codec: Codec, options: Mapping[str, Any] | None = None) -> None:
        self._codec = codec
        self._producer = Producer(producer_config(common) | {"error_cb": self._on_error} | dict(options or {}))
        self._failed = 0
        self._first_failure: BadInput | InfrastructureError | None = None
        self._trouble: str | None = None

    def publish(
        self,
        topic: Topic,
        message: Message,
        headers: Mapping[str, str | bytes] | None = None,
        *,
        key: str | None = None,
    ) -> None:
        """Queue a message, waiting while the queue is full. ``key`` defaults to the message's own.

        Raises:
            BadInput: it cannot be encoded, or is too large.
            InfrastructureError: the queue stayed full, or an earlier message was not delivered.
        """
        encoded = [(k, v.encode() if isinstance(v, str) else v) for k, v in (headers or {}).items()]
        self.publish_raw(topic, message.key if key is None else key, self._codec.encode(message), encoded)

    def publish_raw(
        self, topic: Topic, key: str | bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]] = ()
    ) -> None:
        """Queue bytes as they are: a dead letter, or a tombstone (``value=None``). Raises as :meth:`publish`."""
        self._raise_failure()
        deadline = time.monotonic() + ROOM_S
        while True:
            try:
                self._producer.produce(
                    topic.name, value, key, on_delivery=self._delivered, headers=list(headers) or None
                )
            except BufferError as error:
                self._producer.poll(0.1)
                if time.monotonic() > deadline:
                    raise InfrastructureError(
                        f"topic {topic.name}: the queue stayed full for {ROOM_S:.0f} s: {self._detail()}"
                    ) from error
            except KafkaException as error:
                raise write_error(topic.name, error.args[0]) from error
            else:
                self._producer.poll(0)
                return

    def flush_acked(self, timeout: float = 60.0) -> None:
        """Return when the broker has acknowledged everything that was published.

        Raises:
            InfrastructureError: something was not delivered, or not within ``timeout`` seconds. Which of the
                messages since the last successful flush are missing is unknown: publish them all again.
            BadInput: the broker refused a message for what it is.
        """
        waiting = self._producer.flush(timeout)
        self._raise_failure()
        if waiting:
            raise InfrastructureError(f"{waiting} messages not acknowledged in {timeout:.0f} s: {self._detail()}")

    def close(self) -> None:
        """Let go of the producer; what was not flushed may be lost."""
        self._producer.purge()
        self._producer.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush on success, so that leaving the block means that everything is written."""
        try:
            if kind is None:
                self.flush_acked()
        finally:
            self.close()

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            if not is_written(message):
                self._repeat(message)
        elif error.code() not in PURGED:
            self._fail(write_error(message.topic(), error))

    def _repeat(self, message: Any) -> None:
        try:
            self._producer.produce(
                message.topic(), message.value(), message.key(), on_delivery=self._delivered, headers=message.headers()
            )
        except (BufferError, KafkaException) as error:
            self._fail(InfrastructureError(f"topic {message.topic()}: a message could not be written again: {error}"))

    def _fail(self, failure: BadInput | InfrastructureError) -> None:
        self._failed += 1
        if self._first_failure is None:
            self._first_failure = failure

    def _raise_failure(self) -> None:
        if self._first_failure is None:
            return
        failure, count = self._first_failure, self._failed
        self._first_failure, self._failed = None, 0
        raise type(failure)(f"{failure} ({count} messages)")

    def _detail(self) -> str:
        return self._trouble or "no answer from the broker"

    def _on_error(self, error: KafkaError) -> None:
        self._trouble = error.str()
