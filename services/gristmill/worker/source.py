"""Reading inputs: the consumer, on a thread of its own that never stops polling.

The thread fetches in batches, hands each to the event loop with one call, pauses partitions whose buffer is
full, commits low watermarks, and answers rebalances. It is the only one that touches the consumer.

Position rules (librdkafka has lost or repeated positions across pause, assign and resume):

* every assignment starts at an offset that was asked for explicitly, with pauses cleared;
* the first record after an assignment, a resume or a seek must have the expected offset, else the position is
  sought once more; if the same record comes again, the log really begins there;
* a record below the expected offset is never taken as new work, unless the log was truncated or made anew;
* a partition that has more to read and stays silent is sought to where it should be.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from gristmill.errors import InfrastructureError
from gristmill.worker.commits import Commits, starting_offsets
from gristmill.worker.partition import Partition
from gristmill.worker.quiet import QuietLog
from gristmill.worker.stats import WorkerStats

POLL_S = 0.05
BATCH = 1000
BACKLOG = 2000
"""Records waiting for handlers, over all partitions that are not full, above which polling slows down."""
BACKLOG_TURN_S = 0.025
BACKLOG_TURNS = 4
"""Few and long waits: each wake-up takes the interpreter lock from the event loop."""
MAX_POSTED = 2
"""Batches that the event loop may lag behind before the thread stops taking more."""
STALL_S = 1.0
"""Seconds of such a lag after which partitions are paused, so that polling can go on."""
SILENCE_S = 30.0
LOOK_S = 1.0
STATISTICS_MS = 2000
CALL_S = 10.0

Batch = list[tuple[Partition, list[Any]]]


class Listener(Protocol):
    """The event-loop side. Every method is called from the poll thread and must only schedule."""

    def new_partition(self, topic: str, number: int, start: int | None) -> Partition: ...

    def deliver(self, batch: Batch, done: Callable[[], None]) -> None: ...

    def close(self, partitions: Iterable[Partition]) -> None: ...

    def cancel(self, partitions: Iterable[Partition]) -> None: ...

    def trouble(self, reason: str | None) -> None: ...


class Source:
    """The consumer of one worker."""

    def __init__(
        self,
        config: dict[str, Any],
        topics: list[str],
        listener: Listener,
        stats: WorkerStats,
        log: Any,
        *,
        commit_interval_s: float,
        revoke_drain_s: float,
    ) -> None:
        self._topics = topics
        self._listener = listener
        self._stats = stats
        self._log = log
        self._quiet = QuietLog(log)
        self._commit_interval_s = commit_interval_s
        self._revoke_drain_s = min(revoke_drain_s, config["max.poll.interval.ms"] / 2000)
        self._cooperative = "cooperative" in str(config["partition.assignment.strategy"])
        self._owned: dict[tuple[str, int], Partition] = {}
        self._posted = 0
        self._room = threading.Condition()
        self._hold = False
        self._joined = False
        self._missing = False
        self._look_at = 0.0
        self._stop = threading.Event()
        self._abort = threading.Event()
        self._drain_s = 0.0
        self._closing = False
        self.polled_at = time.monotonic()
        self.drained_at = 0.0
        self._commits = Commits(self._owned, stats, log)
        self._consumer = Consumer(
            {"statistics.interval.ms": STATISTICS_MS}
            | config
            | {"error_cb": self._on_error, "stats_cb": self._on_stats, "on_commit": self._commits.answered}
        )
        self._commits.consumer = self._consumer

    def stop(self, drain_s: float) -> None:
        """Ask the thread to take nothing more, drain, commit and leave. Returns at once."""
        self._drain_s = drain_s
        self._stop.set()

    def abort(self) -> None:
        """Ask the thread to leave without draining or committing. Returns at once."""
        self._abort.set()
        self._stop.set()
        for partition in list(self._owned.values()):
            partition.drained.set()

    def stuck(self) -> str | None:
        """A partition that stays silent although there is more to read, in words; None when all is well."""
        for partition in list(self._owned.values()):
            if partition.repairs >= 3:
                return f"{partition.topic.name}[{partition.number}] stays silent at offset {partition.expected}"
        return None

    def run(self) -> None:
        """Body of the poll thread.

        Raises:
            InfrastructureError: the consumer is beyond use.
        """
        try:
            self._consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            next_commit = time.monotonic() + self._commit_interval_s
            while not self._stop.is_set():
                self._turn()
                if time.monotonic() >= next_commit:
                    self._commits.commit(self._owned.values(), wait=False)
                    next_commit = time.monotonic() + self._commit_interval_s
            if not self._abort.is_set():
                self._drain()
        finally:
            self._closing = True
            self._consumer.close()

    def _turn(self) -> None:
        """One poll: serve callbacks, take what is there, hand it on."""
        self._set_pauses()
        messages = self._consumer.consume(BATCH, 0) if self._backlog() else []
        if not messages:
            first = self._consumer.poll(POLL_S)
            if first is not None:
                messages = [first, *self._consumer.consume(BATCH - 1, 0)]
        self.polled_at = time.monotonic()
        if not messages:
            self._repair_silent()
            self._look_for_topics()
            return
        batch = self._sort(messages)
        if batch:
            self._post(batch)
            self._let_catch_up()

    def _look_for_topics(self) -> None:
        """Whether topics that were missing are there by now."""
        if not self._missing or self.polled_at < self._look_at:
            return
        self._look_at = self.polled_at + LOOK_S
        try:
            found = self._consumer.list_topics(timeout=CALL_S).topics
        except KafkaException:
            return
        self._missing = any(name not in found or not found[name].partitions for name in self._topics)
        if not self._missing and self._joined:
            self._well()

    def _well(self) -> None:
        if not self._closing:
            self._listener.trouble(None)

    def _backlog(self) -> int:
        """Records waiting for handlers."""
        return sum(len(partition.buffer) for partition in self._owned.values() if not partition.full)

    def _let_catch_up(self) -> None:
        """Wait a little while handlers have plenty to do: pausing would throw away what is already fetched."""
        for _ in range(BACKLOG_TURNS):
            if self._backlog() < BACKLOG or self._stop.wait(BACKLOG_TURN_S):
                return

    def _sort(self, messages: list[Any]) -> Batch:
        """Group by partition, keeping only records that continue it."""
        groups: dict[tuple[str, int], tuple[Partition, list[Any]]] = {}
        skipped: set[tuple[str, int]] = set()
        now = self.polled_at
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_message_error(error, message)
                continue
            key = (message.topic(), message.partition())
            group = groups.get(key)
            if group is None:
                partition = self._owned.get(key)
                if partition is None:
                    continue
                group = groups[key] = (partition, [])
                partition.received_at = now
                partition.repairs = 0
            partition = group[0]
            offset = message.offset()
            if offset != partition.expected and (key in skipped or not self._continues(partition, offset)):
                skipped.add(key)
                continue
            if key in skipped:
                continue
            partition.expected = offset + 1
            partition.check_position = False
            group[1].append(message)
        return [group for group in groups.values() if group[1]]

    def _continues(self, partition: Partition, offset: int) -> bool:
        """Whether a record at an unexpected offset may be taken; if not, the position has been sought."""
        expected = partition.expected
        if expected is None or (offset > expected and not partition.check_position):
            return True
        if partition.doubted != offset:
            partition.doubted = offset
            self._seek(partition, expected)
            return False
        partition.doubted = None
        self._log.warning("log_gap", topic=partition.topic.name, partition=partition.number, at=expected, next=offset)
        if offset < expected:
            self._replace(partition, offset)
            return False
        return True

    def _replace(self, partition: Partition, offset: int) -> None:
        """The log was truncated or made anew: start over with the partition at ``offset``."""
        self._listener.cancel([partition])
        fresh = self._listener.new_partition(*partition.key, offset)
        fresh.committed = fresh.sent = -1
        self._owned[partition.key] = fresh
        self._seek(fresh, offset)

    def _seek(self, partition: Partition, offset: int) -> None:
        partition.check_position = True
        partition.received_at = time.monotonic()
        self._stats.position_repairs += 1
        try:
            self._consumer.seek(TopicPartition(partition.topic.name, partition.number, offset))
        except KafkaException as error:
            # The partition is not being fetched yet; the watchdog tries again.
            self._log.warning("seek_failed", topic=partition.topic.name, partition=partition.number, error=str(error))

    def _post(self, batch: Batch) -> None:
        with self._room:
            self._posted += 1
        self._listener.deliver(batch, self._taken)
        deadline = time.monotonic() + STALL_S
        with self._room:
            while self._posted >= MAX_POSTED and not self._stop.is_set():
                if not self._room.wait(max(0.0, deadline - time.monotonic())):
                    self._hold = True
                    return

    def _taken(self) -> None:
        """The event loop has taken a batch."""
        with self._room:
            self._posted -= 1
            self._hold = False
            self._room.notify()

    def _set_pauses(self) -> None:
        hold = self._hold or self._closing
        pause: list[TopicPartition] = []
        resume: list[TopicPartition] = []
        for partition in self._owned.values():
            wanted = hold or partition.full
            if wanted is not partition.paused:
                partition.paused = wanted
                (pause if wanted else resume).append(TopicPartition(partition.topic.name, partition.number))
                if not wanted:
                    partition.check_position = partition.expected is not None
                    partition.received_at = time.monotonic()
        if pause:
            self._consumer.pause(pause)
        if resume:
            self._consumer.resume(resume)

    def _repair_silent(self) -> None:
        for partition in self._owned.values():
            lag = self._stats.lag.get(partition.key, 0)
            if partition.is_silent(self.polled_at, lag, SILENCE_S):
                assert partition.expected is not None
                partition.repairs += 1
                self._log.warning("silent_partition", topic=partition.topic.name, partition=partition.number, lag=lag)
                self._seek(partition, partition.expected)

    def _drain(self) -> None:
        """Finish what was begun, within the deadline, still polling; then commit."""
        self._closing = True
        deadline = time.monotonic() + self._drain_s
        while not self._abort.is_set():
            partitions = list(self._owned.values())
            self._listener.close(partitions)
            self._set_pauses()
            message = self._consumer.poll(POLL_S)
            self.polled_at = time.monotonic()
            if message is not None and message.error() is not None:
                self._on_message_error(message.error(), message)
            if all(partition.drained.is_set() for partition in partitions):
                break
            if time.monotonic() > deadline:
                self._log.warning("drain_deadline", unfinished=sum(partition.unsettled for partition in partitions))
                break
        self._listener.cancel(self._owned.values())
        if not self._abort.is_set():
            self._commits.commit(self._owned.values(), wait=True)
        self.drained_at = time.perf_counter()

    # Rebalances: called inside poll, consume and close

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        self._stats.rebalances["assigned"] += 1
        self._joined = True
        starts = starting_offsets(consumer, assigned, self._log)
        for start in starts:
            known = start.offset if start.offset >= 0 else None
            self._owned[start.topic, start.partition] = self._listener.new_partition(
                start.topic, start.partition, known
            )
        if self._cooperative:
            consumer.incremental_assign(starts)
        else:
            consumer.assign(starts)
        if starts:
            consumer.resume([TopicPartition(item.topic, item.partition) for item in starts])
        self._log.info("partitions_assigned", partitions=[f"{item.topic}[{item.partition}]" for item in starts])
        if not self._missing:
            self._well()

    def _on_revoke(self, consumer: Consumer, revoked: list[TopicPartition]) -> None:
        self._stats.rebalances["revoked"] += 1
        partitions = self._disown(revoked)
        if not self._abort.is_set():
            self._listener.close(partitions)
            deadline = time.monotonic() + self._revoke_drain_s
            for partition in partitions:
                partition.drained.wait(max(0.0, deadline - time.monotonic()))
        self._listener.cancel(partitions)
        if not self._abort.is_set():
            self._commits.commit(partitions, wait=True)
        self._unassign(consumer, revoked)
        self._log.info("partitions_revoked", partitions=[f"{item.topic}[{item.partition}]" for item in revoked])

    def _on_lost(self, consumer: Consumer, lost: list[TopicPartition]) -> None:
        """Someone else may own them by now: nothing may be committed."""
        self._stats.rebalances["lost"] += 1
        self._listener.cancel(self._disown(lost))
        self._unassign(consumer, lost)
        self._log.warning("partitions_lost", partitions=[f"{item.topic}[{item.partition}]" for item in lost])

    def _disown(self, items: list[TopicPartition]) -> list[Partition]:
        found = [self._owned.pop((item.topic, item.partition), None) for item in items]
        partitions = [partition for partition in found if partition is not None]
        for partition in partitions:
            self._stats.lag.pop(partition.key, None)
        return partitions

    def _unassign(self, consumer: Consumer, items: list[TopicPartition]) -> None:
        if self._cooperative:
            consumer.incremental_unassign(items)
        else:
            consumer.unassign()

    # Errors and statistics

    def _on_error(self, error: KafkaError) -> None:
        """Client-wide errors: librdkafka goes on by itself unless they are fatal."""
        self._quiet.warning("kafka_error", about=error.name(), client="consumer", error=error.str())
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._RESOLVE):
            self._listener.trouble(f"Kafka: {error.str()}")

    def _on_message_error(self, error: KafkaError, message: Any) -> None:
        """Errors in place of a record.

        Raises:
            InfrastructureError: a fatal one, or one that only a person can mend.
        """
        if error.fatal():
            raise InfrastructureError(f"the consumer failed: {error.str()}")
        code = error.code()
        if code in (
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        ):
            raise InfrastructureError(f"the consumer may not read {', '.join(self._topics)}: {error.str()}")
        self._quiet.warning("consume_error", about=error.name(), error=error.str(), topic=message.topic())
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._missing = True
            self._listener.trouble(f"Kafka: {error.str()}; create the topics with 'gristmill topics apply'")

    def _on_stats(self, text: str) -> None:
        stats = json.loads(text)
        up = any(broker["state"] == "UP" for broker in stats["brokers"].values())
        if up and self._joined and not self._missing:
            self._well()
        for name, topic in stats["topics"].items():
            for number, values in topic["partitions"].items():
                partition = self._owned.get((name, int(number)))
                if partition is None:
                    continue
                end = values["hi_offset"]
                mark = partition.watermark
                if end >= 0 and mark is not None:
                    self._stats.lag[partition.key] = max(0, end - mark)
                elif values["consumer_lag"] >= 0:
                    self._stats.lag[partition.key] = values["consumer_lag"]
