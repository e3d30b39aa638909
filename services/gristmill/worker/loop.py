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
from types import CoroutineType
from typing import Any, Generic, TypeAlias, TypeVar, cast

from confluent_kafka import KafkaError

from gristmill.errors import BadInput, ConfigError, InfrastructureError
from gristmill.kafka import consumer_config, producer_config
from gristmill.messages import Message
from gristmill.service import ServiceContext
from gristmill.topics import Topic
from gristmill.worker.outbox import Encoded, OnDeadLetter, Outbox, read_headers
from gristmill.worker.ownership import GivenBack, only_while_owned, owner
from gristmill.worker.partition import Limits, Partition
from gristmill.worker.quiet import QuietLog
from gristmill.worker.records import Incoming, Outgoing
from gristmill.worker.retry import RetryPolicy
from gristmill.worker.sink import Sink
from gristmill.worker.source import Batch, Source
from gristmill.worker.stats import worker_stats
from gristmill.worker.window import Slot

M = TypeVar("M", bound=Message)
Handler: TypeAlias = Callable[[Incoming[M]], Iterable[Outgoing] | Awaitable[Iterable[Outgoing]]]

YIELD_EVERY = 64
"""Records that a lane may handle before other tasks get a turn."""
LEAVE_S = 15.0
"""Seconds that leaving the group may take after the drain."""
POLL_DEADLINE_S = 60.0
_PLAIN = (list, tuple)
"""What most synchronous handlers give: told from an awaitable by the cheapest test there is."""


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
            buffer_records: records that may wait for a handler per partition, by default 2000 or more.
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
        self._quiet = QuietLog(ctx.log)
        self._topics = {topic.name: topic for topic in inputs}
        self._types = {topic.name: cast("type[M]", topic.message) for topic in inputs}
        self._decode = ctx.codec.decode
        self._handler = handler
        self._on_dead_letter = on_dead_letter
        self._retry = retry or RetryPolicy()
        self._limits = Limits(
            concurrency=concurrency,
            buffer_records=buffer_records or max(2000, 2 * concurrency),
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
        self._outbox: Outbox
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
        self._outbox = Outbox(self._ctx, self._sink, self._stats, self._on_dead_letter, self._fail)
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
        self._quiet.warning("kafka_error", about=error.name(), client="producer", error=error.str())
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
        """Handle one record after the other. No call or task more than needed: this is the hot path."""
        partition.starting = False
        owner.set(partition)
        handler = self._handler
        outbox = self._outbox
        encode = outbox.encode
        clock = time.perf_counter
        turns = YIELD_EVERY
        while partition.buffer and self._failure is None:
            slot = partition.take()
            if not partition.starting:
                self._start_lane(partition)
            started = clock()
            try:
                result = handler(self._incoming(partition, slot))
                if isinstance(result, CoroutineType):
                    result = await result
                elif not isinstance(result, _PLAIN):
                    result = await _outputs(result)
                outputs = [encode(output) for output in result]
            except GivenBack:
                partition.give_back()
                continue
            except (BadInput, InfrastructureError) as error:
                given = await self._after_error(partition, slot, error, started)
                if given is None:
                    continue
                outputs = given
            partition.stats.handled(clock() - started)
            rest = outbox.write(partition, slot, outputs)
            if rest:
                await outbox.push(partition, slot, rest)
            turns -= 1
            if not turns:
                turns = YIELD_EVERY
                await asyncio.sleep(0)

    async def _after_error(
        self, partition: Partition, slot: Slot, error: BadInput | InfrastructureError, started: float
    ) -> list[Encoded] | None:
        """Outputs of a record whose first attempt failed: of a later one, or its dead letter; None if given back."""
        attempt = 1
        while True:
            delay = None
            if isinstance(error, InfrastructureError):
                delay = self._retry.delay(attempt, time.perf_counter() - started)
            if delay is None:
                return self._outbox.given_up(partition, slot, error)
            self._ctx.log.warning("retrying", attempt=attempt, delay_s=round(delay, 3), error=str(error))
            partition.stats.retries += 1
            attempt += 1
            try:
                async with only_while_owned():
                    await asyncio.sleep(delay)
                result = self._handler(self._incoming(partition, slot))
                if not isinstance(result, _PLAIN):
                    result = await _outputs(result)
                return [self._outbox.encode(output) for output in result]
            except GivenBack:
                partition.give_back()
                return None
            except (BadInput, InfrastructureError) as again:
                error = again

    def _incoming(self, partition: Partition, slot: Slot) -> Incoming[M]:
        message = slot.message
        key = message.key()
        topic = partition.topic
        return Incoming(
            self._decode(message.value(), self._types[topic.name]),
            topic.name,
            partition.number,
            slot.offset,
            None if key is None else key.decode("utf-8", "replace"),
            read_headers(message),
            message.timestamp()[1],
        )


async def _outputs(result: Iterable[Outgoing] | Awaitable[Iterable[Outgoing]]) -> Iterable[Outgoing]:
    return await result if inspect.isawaitable(result) else result
