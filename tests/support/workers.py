"""Workers under test: in threads of the test process, or as processes of their own that can be killed.

Run as a module it is such a process: it copies each problem's ordinal into a rejection.

    python -m support.workers BOOTSTRAP PREFIX [key=value ...]
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from gristmill.config import CommonConfig, Section, Settings
from gristmill.kafka import consumer_config
from gristmill.messages import Problem, Rejection
from gristmill.service import ServiceContext, ServiceSpec, run_service
from gristmill.topics import Topic, Topics
from gristmill.worker import Incoming, Outgoing, Worker
from gristmill.worker.stats import worker_stats
from support.context import make_context

FAST_GROUP = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300}
"""Members that were killed are missed soon; our Kafka admits it (``group.min.session.timeout.ms``)."""


def to_rejection(topics: Topics, problem: Problem) -> Outgoing:
    """The output of the test workers."""
    return Outgoing(
        topics.rejections,
        Rejection(
            run_id=problem.run_id,
            group_id=problem.group_id,
            ordinal=problem.ordinal,
            sample_ids=(),
            who="test",
            why="failed",
            trainer_version=0,
            lengths=(),
            rejected_at_ms=0,
        ),
    )


class RunningWorker:
    """A worker with an event loop and a thread of its own. Leaving the block stops it and re-raises its failure."""

    def __init__(self, ctx: ServiceContext[Section], handler: Any, **options: Any) -> None:
        self.ctx = ctx
        options.setdefault("inputs", [ctx.topics.problems])
        options.setdefault("group", "workers")
        options["consumer_options"] = FAST_GROUP | options.get("consumer_options", {})
        self.worker: Worker[Problem] = Worker(ctx, handler=handler, **options)
        self.stats = worker_stats(ctx.metrics)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            asyncio.run(self.worker.run())
        except BaseException as error:  # noqa: BLE001 (shown to the test)
            self.failure = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> RunningWorker:
        self._thread.start()
        return self

    def stop(self, timeout: float = 40.0) -> None:
        self.ctx.stop.set()
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the worker did not stop"

    def wait(self, timeout: float = 20.0) -> BaseException | None:
        """Wait until it ends by itself; gives its failure."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the worker did not end"
        return self.failure

    def __enter__(self) -> RunningWorker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self.failure is not None and kind is None:
            raise self.failure


def committed(common: CommonConfig, topic: Topic, group: str = "workers") -> dict[int, int]:
    """Committed offset by partition; partitions without one are left out."""
    consumer = Consumer(consumer_config(common, group))
    try:
        partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        for attempt in itertools.count():
            try:
                found = consumer.committed(partitions, timeout=10)
                break
            except KafkaException:  # the coordinator is just being found or moved
                if attempt == 20:
                    raise
                time.sleep(0.25)
    finally:
        consumer.close()
    return {item.partition: item.offset for item in found if item.offset >= 0}


def main() -> None:
    bootstrap, prefix, *rest = sys.argv[1:]
    options: dict[str, Any] = {key: json.loads(value) for key, _, value in (item.partition("=") for item in rest)}
    mode = options.pop("mode", "work")
    sleep_s = options.pop("sleep_s", 0.005)
    common = {name: options.pop(name) for name in ("drain_timeout_s", "exit_timeout_s") if name in options}

    async def serve(ctx: ServiceContext[Section]) -> None:
        async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
            if mode == "hang":
                time.sleep(1000)  # noqa: ASYNC251 (blocking the event loop is the point)
            if mode == "forever":
                await asyncio.sleep(1000)
            if mode == "bug":
                raise KeyError("a bug")
            await asyncio.sleep(sleep_s)
            return [to_rejection(ctx.topics, incoming.message)]

        context = make_context(bootstrap, prefix, **common)
        context.stop = ctx.stop
        await Worker(
            context,
            group="workers",
            inputs=[context.topics.problems],
            handler=handle,
            concurrency=8,
            consumer_options=FAST_GROUP,
            **options,
        ).run()

    spec = ServiceSpec("test", "unused", Section, serve, "test")
    settings = Settings(bootstrap=bootstrap, topic_prefix=prefix, log_format="json", **common)
    object.__setattr__(settings, "unused", Section())
    run_service(spec, settings)


if __name__ == "__main__":
    main()
