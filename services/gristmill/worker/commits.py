"""Offsets in the group: where to start, and what is done.

Only the poll thread calls in here, and only with partitions that this member owns. A committed offset never goes
back; a commit that was refused is made again, with whatever the watermark is by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, Consumer, KafkaError, KafkaException, TopicPartition

from gristmill.worker.partition import Partition
from gristmill.worker.stats import WorkerStats

CALL_S = 10.0


class Commits:
    """Commits the watermarks of owned partitions. ``consumer`` is set as soon as there is one."""

    consumer: Consumer

    def __init__(self, owned: Mapping[tuple[str, int], Partition], stats: WorkerStats, log: Any) -> None:
        self._owned = owned
        self._stats = stats
        self._log = log

    def commit(self, partitions: Iterable[Partition], *, wait: bool) -> None:
        """Commit watermarks that have moved since the last commit that was sent (or, with ``wait``, acknowledged)."""
        offsets: list[TopicPartition] = []
        for partition in partitions:
            watermark = partition.watermark
            mark = partition.committed if wait else partition.sent
            if watermark is not None and watermark > mark:
                partition.sent = watermark
                offsets.append(TopicPartition(partition.topic.name, partition.number, watermark))
        if not offsets:
            return
        try:
            if wait:
                self.answered(None, self.consumer.commit(offsets=offsets, asynchronous=False))
            else:
                self.consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self.answered(error.args[0], offsets)

    def answered(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        """The broker's answer to a commit."""
        problem = error
        for item in offsets:
            partition = self._owned.get((item.topic, item.partition))
            wrong = error or item.error
            problem = problem or wrong
            if partition is None:
                continue
            if wrong is not None:
                partition.sent = partition.committed
            elif item.offset <= partition.sent:
                partition.committed = max(partition.committed, item.offset)
        if problem is None:
            self._stats.commits += 1
        elif problem.code() != KafkaError._NO_OFFSET:
            self._stats.commit_failures += 1
            self._log.warning("commit_failed", error=problem.str(), hint="the records will be delivered again")


def starting_offsets(consumer: Consumer, assigned: list[TopicPartition], log: Any) -> list[TopicPartition]:
    """Where to start in partitions just assigned: the committed offset, else the beginning of the log.

    The answer is explicit wherever the broker gives one, so that the first record can be checked against it.
    """
    if not assigned:
        return []
    try:
        committed = consumer.committed(assigned, timeout=CALL_S)
    except KafkaException as error:
        log.warning("committed_offsets_unknown", error=str(error))
        return [TopicPartition(item.topic, item.partition, OFFSET_STORED) for item in assigned]
    return [
        item if item.offset >= 0 else TopicPartition(item.topic, item.partition, _beginning(consumer, item))
        for item in committed
    ]


def _beginning(consumer: Consumer, item: TopicPartition) -> int:
    if item.error is not None:
        return int(OFFSET_STORED)
    try:
        watermarks = consumer.get_watermark_offsets(item, timeout=CALL_S)
    except KafkaException:
        return int(OFFSET_BEGINNING)
    return int(OFFSET_BEGINNING if watermarks is None or watermarks[0] < 0 else watermarks[0])
