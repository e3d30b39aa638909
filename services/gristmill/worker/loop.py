"""The worker loop: consume, handle concurrently, write, and commit only what is settled.

* A record is settled when all outputs of its handler are acknowledged by the broker, or when its dead letter is.
* :class:`BadInput` is never retried; :class:`InfrastructureError` is, within :class:`RetryPolicy`; both end in
  the dead letters, with what ``on_dead_letter`` adds. Any other exception is a bug and ends the worker.
* Handlers run in *lanes*: tasks that take one record after the other. A handler that never waits keeps its lane
  busy without a task of its own; one that waits makes room for the next lane, up to ``concurrency`` per partition.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast

from confluent_kafka import KafkaError

from gristmill.errors import BadInput, ConfigError, InfrastructureError
from gristmill.kafka import consumer_config, producer_config
from gristmill.messages import Message
from gristmill.service import ServiceContext
from gristmill.topics import MAX_MESSAGE_BYTES, Topic
from gristmill.worker.dead_letters import dead_letter_headers
from gristmill.worker.ownership import GivenBack, owner
from gristmill.worker.partition import Limits, Partition
from gristmill.worker.records import NO_HEADERS, Headers, Incoming, Outgoing, RawRecord
from gristmill.worker.retry import RetryPolicy
from gristmill.worker.sink import MISCONFIGURED, PURGED, REFUSED, HeaderList, Sink, write_error
from gristmill.worker.source import Batch, Source
from gristmill.worker.stats import worker_stats
from gristmill.worker.window import Slot

M = TypeVar("M", bound=Message)
Handler: TypeAlias = Callable[[Incoming[M]], Iterable[Outgoing] | Awaitable[Iterable[Outgoing]]]
OnDeadLetter: TypeAlias = Callable[[RawRecord, Exception], Iterable[Outgoing]]

YIELD_EVERY = 64
"""Records that a lane may handle before other tasks get a turn."""
REWRITE_S = 1.0
LEAVE_S = 15.0
"""Seconds that leaving the group may take after the drain."""
POLL_DEADLINE_S = 60.0
ENVELOPE_BYTES = 512
"""Room for Kafka's own framing of a record."""

Encoded: TypeAlias = tuple[str, str | bytes | None, bytes | None, HeaderList | None]


class Worker(Generic[M]):
    """Runs a handler over topics as a member of a consumer group."""

    def __init__(
        self,
        ctx: ServiceContext[Any],
        *,
        group: str,
        inputs: Sequence[Topic],
        handler: Handler[M],
        concurrency: int = 1,
        on_dead_letter: OnDeadLetter | None = None,
        retry: RetryPolicy | None = None,
        buffer_records: int | None = None,
        buffer_bytes: int = 8 * 1024 * 1024,
        window_records: int = 20_000,
        commit_interval_s: float = 0.5,
        revoke_drain_s: float = 20.0,
        manage_ready: bool = True,
        consumer_options: dict[str, Any] | None = None,
        producer_options: dict[str, Any] | None = None,
    ) -> None:
        """
        Args:
            ctx: the running service; its stop signal begins the drain.
            group: consumer group without the topic prefix.
            inputs: topics to read; each must carry a message type.
            handler: sync (run inline, so it must be quick) or async. Gives the outputs, possibly none.
            concurrency: handlers at work at once per partition.
            on_dead_letter: further outputs for a record that is given up, e.g. a verdict that says so.
            retry: limits for infrastructure errors.
            buffer_records: records that may wait for a handler per partition, by default 1000 or more.
            buffer_bytes: bytes that may wait per partition; one record more than that may be held.
            window_records: records from the oldest unsettled one on, per partition.
            commit_interval_s: seconds between commits.
            revoke_drain_s: seconds that handlers get to finish when their partition moves to another member.
            manage_ready: whether the worker sets the service's readiness; otherwise ask :attr:`ready_reason`.
            consumer_options, producer_options: client settings by Kafka's own names, for tests and tuning.

        Raises:
            ConfigError: an input carries no message type, or a number is out of range.
        """
        if concurrency < 1:
            raise ConfigError(f"worker {group}: concurrency must be at least 1, not {concurrency}")
        if not inputs or any(topic.message is None for topic in inputs):
            raise ConfigError(f"worker {group}: every input must be a topic that carries a message type")
        self._ctx = ctx
        self._group = group
        self._topics = {topic.name: topic for topic in inputs}
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 (an object with an async __call__)
        )
        self._on_dead_letter = on_dead_letter
        self._retry = retry or RetryPolicy()
        self._limits = Limits(
            concurrency=concurrency,
            buffer_records=buffer_records or max(1000, 2 * concurrency),
            buffer_bytes=buffer_bytes,
            window_records=max(window_records, 2 * concurrency),
        )
        self._stats = worker_stats(ctx.metrics)
        for name in self._topics:
            self._stats.topic(name).is_input = True
        self._manage_ready = manage_ready
        self._trouble: str | None = "waiting for partitions"
        self._failure: BaseException | None = None
        self._finished: asyncio.Event | None = None
        self._source_options = {"commit_interval_s": commit_interval_s, "revoke_drain_s": revoke_drain_s}
        client = {"client.id": f"gristmill-{ctx.name}-{os.getpid()}-{id(self):x}"}
        self._consumer_config = consumer_config(ctx.common, group) | client | (consumer_options or {})
        self._producer_config = producer_config(ctx.common) | client | (producer_options or {})
        self._loop: asyncio.AbstractEventLoop
        self._sink: Sink
        self._source: Source

    @property
    def ready_reason(self) -> str | None:
        """None while the worker has partitions and a broker, else what it waits for."""
        return self._trouble

    @property
    def drained_at(self) -> float:
        """``time.perf_counter()`` when the last commit of the drain was done; 0 before."""
        return self._source.drained_at

    async def run(self) -> None:
        """Work until the service is told to stop, then drain, commit and leave.

        Raises:
            InfrastructureError: a client failed for good.
            Exception: whatever a handler raised that is neither bad input nor infrastructure.
        """
        self._loop = asyncio.get_running_loop()
        self._finished = asyncio.Event()
        self._sink = Sink(self._producer_config, self._on_producer_error)
        self._source = Source(
            self._consumer_config, list(self._topics), self, self._stats, self._ctx.log, **self._source_options
        )
        self._ctx.health.add_check(f"worker {self._group}", self._check)
        thread = threading.Thread(target=self._poll, name=f"poll-{self._group}", daemon=True)
        thread.start()
        stopper = asyncio.create_task(self._stop_on_signal())
        try:
            await self._finished.wait()
        finally:
            stopper.cancel()
            self._source.abort()
            await asyncio.to_thread(thread.join, LEAVE_S)
            self._sink.close()
        if thread.is_alive():
            self._ctx.log.error("consumer_close_hangs", hint="the group notices after its session timeout")
        if self._failure is not None:
            raise self._failure

    async def _stop_on_signal(self) -> None:
        await self._ctx.stop.wait_async()
        if self._manage_ready:
            self._ctx.health.set_ready(False, "draining")
        self._source.stop(self._ctx.common.drain_timeout_s)

    def _poll(self) -> None:
        failure: BaseException | None = None
        try:
            self._source.run()
        except BaseException as error:  # noqa: BLE001 (whatever it is, the event loop must hear of it)
            failure = error
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, failure)

    def _finish(self, failure: BaseException | None) -> None:
        if failure is not None and self._failure is None:
            self._failure = failure
        if self._finished is not None:
            self._finished.set()

    def _fail(self, failure: BaseException) -> None:
        """End the worker: nothing more is committed."""
        if self._failure is None:
            self._failure = failure
            self._ctx.log.error("worker_failed", group=self._group, error=repr(failure))
            self._source.abort()

    def _check(self) -> str | None:
        if self._failure is not None:
            return repr(self._failure)
        silent = time.monotonic() - self._source.polled_at
        if silent > POLL_DEADLINE_S:
            return f"the consumer has not been polled for {silent:.0f} s"
        return self._source.stuck()

    # The listener of the source: called from the poll thread

    def new_partition(self, topic: str, number: int, start: int | None) -> Partition:
        return Partition(self._topics[topic], number, self._limits, self._stats.topic(topic), start)

    def deliver(self, batch: Batch, done: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._take, batch, done)

    def close(self, partitions: Iterable[Partition]) -> None:
        for partition in list(partitions):
            if not partition.closed:
                self._loop.call_soon_threadsafe(partition.close)

    def cancel(self, partitions: Iterable[Partition]) -> None:
        for partition in list(partitions):
            self._loop.call_soon_threadsafe(partition.cancel)

    def trouble(self, reason: str | None) -> None:
        self._loop.call_soon_threadsafe(self._set_trouble, reason)

    # Event loop

    def _set_trouble(self, reason: str | None) -> None:
        self._trouble = reason
        if self._manage_ready and not self._ctx.stop.is_set():
            self._ctx.health.set_ready(reason is None, reason or "")

    def _on_producer_error(self, error: KafkaError) -> None:
        self._ctx.log.warning("kafka_error", client="producer", error=error.str(), code=error.name())
        if error.fatal():
            self._fail(InfrastructureError(f"the producer failed: {error.str()}"))

    def _take(self, batch: Batch, done: Callable[[], None]) -> None:
        for partition, messages in batch:
            partition.accept(messages)
            self._start_lane(partition)
        done()

    def _start_lane(self, partition: Partition) -> None:
        if not partition.may_start_lane():
            return
        partition.starting = True
        partition.active += 1
        lane = self._loop.create_task(self._lane(partition))
        partition.lanes.add(lane)
        lane.add_done_callback(lambda task: self._lane_done(partition, task))

    def _lane_done(self, partition: Partition, lane: asyncio.Task[None]) -> None:
        partition.lanes.discard(lane)
        partition.active -= 1
        if lane.cancelled():
            if not partition.closed:
                self._fail(RuntimeError("a handler was cancelled from within"))
            return
        error = lane.exception()
        if error is not None:
            self._fail(error)
        else:
            self._start_lane(partition)

    async def _lane(self, partition: Partition) -> None:
        partition.starting = False
        owner.set(partition)
        turns = YIELD_EVERY
        while partition.buffer and self._failure is None:
            slot = partition.take()
            if not partition.starting:
                self._start_lane(partition)
            await self._process(partition, slot)
            turns -= 1
            if not turns:
                turns = YIELD_EVERY
                await asyncio.sleep(0)

    async def _process(self, partition: Partition, slot: Slot) -> None:
        """Handle one record to the point where its outputs are with the producer."""
        stats = partition.stats
        started = time.perf_counter()
        attempt = 1
        while True:
            try:
                result = self._handler(self._incoming(partition, slot))
                if self._is_async or inspect.isawaitable(result):
                    result = await cast(Awaitable[Iterable[Outgoing]], result)
                outputs = [self._encode(output) for output in result]
                break
            except GivenBack:
                partition.give_back()
                return
            except BadInput as error:
                outputs = self._given_up(partition, slot, error)
                break
            except InfrastructureError as error:
                delay = self._retry.delay(attempt, time.perf_counter() - started)
                if delay is None:
                    outputs = self._given_up(partition, slot, error)
                    break
                self._ctx.log.warning("retrying", attempt=attempt, delay_s=round(delay, 3), error=str(error))
                stats.retries += 1
                attempt += 1
                await asyncio.sleep(delay)
        stats.handled(time.perf_counter() - started)
        await self._write(partition, slot, outputs)

    def _incoming(self, partition: Partition, slot: Slot) -> Incoming[M]:
        message = slot.message
        topic = partition.topic
        key = message.key()
        decoded = self._ctx.codec.decode(message.value(), cast(type[M], topic.message))
        return Incoming(
            decoded,
            topic.name,
            partition.number,
            slot.offset,
            None if key is None else key.decode("utf-8", "replace"),
            _headers(message),
            message.timestamp()[1],
        )

    def _encode(self, output: Outgoing) -> Encoded:
        value = self._ctx.codec.encode(output.message)
        key = output.message.key if output.key is None else output.key
        headers = None
        size = len(value) + len(key) + ENVELOPE_BYTES
        if output.headers:
            headers = [(k, v.encode() if isinstance(v, str) else v) for k, v in output.headers.items()]
            size += sum(len(k) + len(v) for k, v in headers)
        if size > MAX_MESSAGE_BYTES:
            raise BadInput(f"{type(output.message).__name__} {key}: {size} bytes, {MAX_MESSAGE_BYTES} are allowed")
        return output.topic.name, key, value, headers

    async def _write(self, partition: Partition, slot: Slot, outputs: list[Encoded]) -> None:
        """Give all outputs to the producer; the last acknowledgement settles the record."""
        if not outputs:
            partition.settle(slot)
            return
        slot.pending += len(outputs)

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self._undelivered(partition, slot, error, message, delivered)
                return
            self._stats.topic(message.topic()).sent += 1
            slot.pending -= 1
            if not slot.pending and slot.message is not None:
                partition.settle(slot)

        for index, (topic, key, value, headers) in enumerate(outputs):
            try:
                if not self._sink.offer(topic, key, value, headers, delivered):
                    await self._sink.write(topic, key, value, headers, delivered)
            except BadInput as error:
                slot.pending -= len(outputs) - index
                await self._write(partition, slot, self._given_up(partition, slot, error))
                return

    def _undelivered(
        self, partition: Partition, slot: Slot, error: KafkaError, message: Any, delivered: Callable[..., None]
    ) -> None:
        """An output that the broker did not take: never lost, whatever the reason."""
        topic = message.topic()
        if self._failure is not None or slot.message is None or error.code() in PURGED:
            return
        if error.fatal() or error.code() in MISCONFIGURED:
            self._fail(write_error(topic, error))
            return
        self._ctx.log.warning("undelivered", topic=topic, error=error.str())
        if error.code() in REFUSED:
            self._spawn(partition, self._write_dead_letter(partition, slot, write_error(topic, error)))
        else:
            again = (topic, message.key(), message.value(), message.headers(), delivered)
            self._spawn(partition, self._write_again(again))

    async def _write_dead_letter(self, partition: Partition, slot: Slot, error: Exception) -> None:
        """In place of an output that the broker refused; its share of ``pending`` is given back last."""
        if not slot.given_up:
            await self._write(partition, slot, self._given_up(partition, slot, error))
        slot.pending -= 1
        if not slot.pending and slot.message is not None:
            partition.settle(slot)

    async def _write_again(self, output: tuple[Any, ...]) -> None:
        await asyncio.sleep(REWRITE_S)
        await self._sink.write(*output)

    def _spawn(self, partition: Partition, work: Any) -> None:
        task = self._loop.create_task(work)
        partition.lanes.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            partition.lanes.discard(finished)
            if not finished.cancelled() and (error := finished.exception()) is not None:
                self._fail(error)

        task.add_done_callback(done)

    def _given_up(self, partition: Partition, slot: Slot, error: Exception) -> list[Encoded]:
        """The dead letter of a record, and what ``on_dead_letter`` adds."""
        slot.given_up = True
        message = slot.message
        record = RawRecord(
            partition.topic.name,
            partition.number,
            slot.offset,
            message.key(),
            message.value(),
            _headers(message),
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
                outputs += [self._encode(output) for output in self._on_dead_letter(record, error)]
            except BadInput as problem:
                self._ctx.log.warning("dead_letter_without_outputs", offset=record.offset, error=str(problem))
        return outputs


def _headers(message: Any) -> Headers:
    found = message.headers()
    return {name: value or b"" for name, value in found} if found else NO_HEADERS
