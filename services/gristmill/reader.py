"""Reading topics without a consumer group: the trainer, the policy watcher, tap, audit and the runner.

A reader assigns every partition itself and commits nothing; whoever needs to resume keeps :meth:`positions`.

The end of a partition is known from end-of-partition events only: the embedded broker's ListOffsets answers too
low, so an end offset that was merely asked for is never relied on. Records that cannot be decoded are handed out
with their error, not raised, so one bad record never hides those after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.errors import DecodeError, InfrastructureError
from gristmill.kafka import reader_config
from gristmill.logs import get_logger
from gristmill.messages import Message
from gristmill.topics import Topic
from gristmill.worker.quiet import QuietLog
from gristmill.worker.records import NO_HEADERS, Headers

M = TypeVar("M", bound=Message)

BATCH = 500
CALL_S = 30.0
SILENCE_S = 60.0
"""Seconds without record or event after which reading to the end gives up."""

Start = Literal["beginning", "end"] | Mapping[int, int]


class Stop(Protocol):
    """What :meth:`TopicReader.follow` asks; a ``StopSignal`` or a ``threading.Event``."""

    def is_set(self) -> bool: ...


class Record(msgspec.Struct, Generic[M], frozen=True):
    """One record. ``message`` is None for a tombstone, for an undecodable record and for the dead letters."""

    message: M | None
    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    error: DecodeError | None = None

    @property
    def is_tombstone(self) -> bool:
        """Whether the record deletes its key from a compacted topic."""
        return self.value is None

    def header(self, name: str) -> str | None:
        """Text of a header, None when it is absent."""
        value = self.headers.get(name)
        return None if value is None else value.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Gone:
    """A position that the broker no longer has: it lies outside ``[first, end]``, or the partition is no more."""

    partition: int
    wanted: int
    first: int
    end: int


class TopicReader(Generic[M]):
    """Reads all partitions of one topic from given positions on."""

    def __init__(
        self,
        common: CommonConfig,
        codec: Codec,
        topic: Topic,
        expected: type[M] | None = None,
        *,
        start: Start = "beginning",
    ) -> None:
        """
        Args:
            topic: what to read.
            expected: message class, by default the one that the topic declares. Without either (the dead
                letters) records carry their raw value only.
            start: next offset to read by partition; partitions that it lacks are read from the beginning.

        Raises:
            InfrastructureError: the cluster does not answer, or has no such topic.
        """
        self.topic = topic
        self._expected = expected if expected is not None else cast("type[M] | None", topic.message)
        self._codec = codec
        self._log = get_logger()
        self._quiet = QuietLog(self._log)
        self._trouble: str | None = None
        quiet = {"error_cb": self._on_error, "log_level": 0}  # one of the two is enough
        self._consumer = Consumer(reader_config(common) | quiet)
        self.gone: list[Gone] = []
        """Start positions that the broker does not have. Those partitions are read from the beginning of what is
        left: nothing is skipped, and whoever keeps state drops what it has seen before."""
        try:
            self._positions = self._find_start(start)
            self._consumer.assign([TopicPartition(topic.name, p, offset) for p, offset in self._positions.items()])
        except (KafkaException, InfrastructureError) as error:
            self._consumer.close()
            raise _unreachable(common, topic, error) from error
        self._at_end = dict.fromkeys(self._positions, False)

    @property
    def at_end(self) -> bool:
        """Whether every partition's end was reached, and nothing has come since."""
        return all(self._at_end.values())

    def positions(self) -> dict[int, int]:
        """Next offset to read by partition, as ``start`` takes it."""
        return dict(self._positions)

    def poll(self, timeout: float = 0.2, max_records: int = BATCH) -> list[Record[M]]:
        """Records that are there, waiting up to ``timeout`` seconds for the first.

        Raises:
            InfrastructureError: the consumer failed for good, or the topic is gone.
        """
        first = self._consumer.poll(timeout)
        if first is None:
            return []
        messages = [first]
        if max_records > 1:
            messages += self._consumer.consume(max_records - 1, 0)
        return [record for message in messages if (record := self._record(message)) is not None]

    def read_to_end(self, silence_s: float = SILENCE_S) -> Iterator[Record[M]]:
        """Every record up to the end of each partition.

        Raises:
            InfrastructureError: nothing came for ``silence_s`` seconds although the end was not reached.
        """
        heard = time.monotonic()
        while not self.at_end:
            before = sum(self._at_end.values())
            records = self.poll()
            yield from records
            if records or sum(self._at_end.values()) != before:
                heard = time.monotonic()
            elif time.monotonic() - heard > silence_s:
                detail = self._trouble or "no answer"
                raise InfrastructureError(f"topic {self.topic.name}: end not reached in {silence_s:.0f} s: {detail}")

    def follow(self, stop: Stop, timeout: float = 0.2) -> Iterator[Record[M]]:
        """Every record, and then new ones as they come, until ``stop`` is set."""
        while not stop.is_set():
            yield from self.poll(timeout)

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()

    def __enter__(self) -> TopicReader[M]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _record(self, message: Any) -> Record[M] | None:
        error = message.error()
        partition = message.partition()
        if error is not None:
            self._on_event(error, message)
            return None
        offset = message.offset()
        if offset < self._positions.get(partition, 0):
            self._log.warning("log_reset", topic=self.topic.name, partition=partition, next=offset)
        self._positions[partition] = offset + 1
        self._at_end[partition] = False
        value = message.value()
        decoded: M | None = None
        problem: DecodeError | None = None
        if value is not None and self._expected is not None:
            try:
                decoded = self._codec.decode(value, self._expected)
            except DecodeError as reason:
                problem = reason
        key = message.key()
        found = message.headers()
        return Record(
            message=decoded,
            topic=message.topic(),
            partition=partition,
            offset=offset,
            key=None if key is None else key.decode("utf-8", "replace"),
            value=value,
            headers={name: content or b"" for name, content in found} if found else NO_HEADERS,
            timestamp_ms=message.timestamp()[1],
            error=problem,
        )

    def _on_event(self, error: KafkaError, message: Any) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._at_end[message.partition()] = True
            self._positions[message.partition()] = max(self._positions[message.partition()], message.offset())
            return
        if error.fatal() or error.code() in _HOPELESS:
            raise InfrastructureError(f"topic {self.topic.name}: {error.str()}")
        self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        """librdkafka goes on by itself after these."""
        self._trouble = error.str()
        self._quiet.warning("kafka_error", about=error.name(), topic=self.topic.name, error=error.str())

    def _find_start(self, start: Start) -> dict[int, int]:
        partitions = _partitions(self._consumer, self.topic)
        if start == "beginning":
            return {p: self._ask_bounds(p)[0] for p in partitions}
        if start == "end":
            return {p: end for p, (_first, end) in self._true_bounds(partitions).items()}
        wanted = start
        bounds = {p: self._ask_bounds(p) for p in partitions}
        doubtful = [p for p in partitions if p in wanted and wanted[p] > bounds[p][1]]
        bounds |= self._true_bounds(doubtful)
        found: dict[int, int] = {}
        for p, (first, end) in bounds.items():
            fits = first <= wanted.get(p, first) <= end
            found[p] = wanted.get(p, first) if fits else first
            if not fits:
                self.gone.append(Gone(p, wanted[p], first, end))
        self.gone += [Gone(p, offset, 0, 0) for p, offset in wanted.items() if p not in found and offset > 0]
        return found

    def _ask_bounds(self, partition: int) -> tuple[int, int]:
        """First offset, and an end offset that may be too low."""
        where = TopicPartition(self.topic.name, partition)
        deadline = time.monotonic() + CALL_S
        while True:
            try:
                bounds = self._consumer.get_watermark_offsets(where, timeout=CALL_S)
                break
            except KafkaException as error:
                if error.args[0].code() not in _LEADERLESS or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        if bounds is None:
            raise InfrastructureError(f"topic {self.topic.name}[{partition}]: no answer in {CALL_S:.0f} s")
        return int(bounds[0]), int(bounds[1])

    def _true_bounds(self, partitions: list[int]) -> dict[int, tuple[int, int]]:
        """First and end offset, the end found by reading from the last batch on."""
        asked = {p: self._ask_bounds(p) for p in partitions}
        found: dict[int, tuple[int, int]] = {}
        if not asked:
            return found
        starts = [TopicPartition(self.topic.name, p, max(first, end - 1)) for p, (first, end) in asked.items()]
        self._consumer.assign(starts)
        deadline = time.monotonic() + CALL_S
        while len(found) < len(asked):
            message = self._consumer.poll(0.2)
            error = message.error() if message is not None else None
            if message is not None and error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    found[message.partition()] = (asked[message.partition()][0], message.offset())
                else:
                    self._on_event(error, message)
            elif time.monotonic() > deadline:
                raise InfrastructureError(f"topic {self.topic.name}: its end was not found in {CALL_S:.0f} s")
        self._consumer.unassign()
        return found


def read_all(
    common: CommonConfig, codec: Codec, topic: Topic, expected: type[M] | None = None, *, start: Start = "beginning"
) -> Iterator[Record[M]]:
    """Every record of a topic from the beginning to what is its end when it gets there.

    Raises:
        InfrastructureError: the cluster does not answer, or has no such topic.
    """
    with TopicReader(common, codec, topic, expected, start=start) as reader:
        yield from reader.read_to_end()


def end_offsets(common: CommonConfig, codec: Codec, topic: Topic) -> dict[int, int]:
    """True end offset by partition: the number of records of a topic that is neither compacted nor trimmed."""
    with TopicReader[Message](common, codec, topic, start="end") as reader:
        return reader.positions()


def _partitions(consumer: Consumer, topic: Topic) -> list[int]:
    metadata = consumer.list_topics(topic.name, timeout=CALL_S).topics[topic.name]
    if metadata.error is not None or not metadata.partitions:
        raise InfrastructureError("there is no such topic; create the topics with 'gristmill topics apply'")
    return sorted(metadata.partitions)


def _unreachable(common: CommonConfig, topic: Topic, error: Exception) -> InfrastructureError:
    detail = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    return InfrastructureError(f"cannot read topic {topic.name} of the cluster at {common.bootstrap}: {detail}")


_LEADERLESS = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
"""A partition just made, or moving: it has a leader in a moment."""

_HOPELESS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
