"""The worker loop in a restless group: members join, leave, drain, hang and are killed."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from gristmill.config import Section
from gristmill.messages import Problem
from gristmill.publisher import Publisher
from gristmill.reader import end_offsets, read_all
from gristmill.service import EXIT_FORCED, ServiceContext
from gristmill.worker import Incoming, Outgoing
from support.context import apply_topics, make_context, make_problem
from support.processes import Process, python, wait_until
from support.workers import RunningWorker, committed, to_rejection

MakeContext = Callable[[], ServiceContext[Section]]


@pytest.fixture
def fresh(broker: Any, prefix: str) -> MakeContext:
    """Makes contexts of one factory: one per worker."""
    apply_topics(broker.bootstrap, prefix)
    return lambda: make_context(broker.bootstrap, prefix, drain_timeout_s=10)


@pytest.fixture
def ctx(any_broker: Any, prefix: str) -> ServiceContext[Section]:
    apply_topics(any_broker.bootstrap, prefix)
    return make_context(any_broker.bootstrap, prefix, drain_timeout_s=10)


def publish(ctx: ServiceContext[Section], count: int, first: int = 1) -> None:
    with Publisher(ctx.common, ctx.codec) as publisher:
        for ordinal in range(first, first + count):
            publisher.publish(ctx.topics.problems, make_problem(ordinal))


def outputs(ctx: ServiceContext[Section]) -> Counter[int]:
    records = read_all(ctx.common, ctx.codec, ctx.topics.rejections)
    return Counter(record.message.ordinal for record in records if record.message is not None)


class CommitWatch:
    """Looks at the committed offsets all the time, and remembers if one went back."""

    def __init__(self, ctx: ServiceContext[Section]) -> None:
        self._ctx = ctx
        self._stop = threading.Event()
        self.went_back: list[tuple[int, int, int]] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        best: dict[int, int] = {}
        while not self._stop.wait(0.2):
            for partition, offset in committed(self._ctx.common, self._ctx.topics.problems).items():
                if offset < best.get(partition, -1):
                    self.went_back.append((partition, best[partition], offset))
                best[partition] = max(best.get(partition, -1), offset)

    def __enter__(self) -> CommitWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(15)


def test_members_join_and_leave_under_load(fresh: MakeContext) -> None:
    """Nobody is killed, so nothing may be handled twice: revoked partitions are drained and committed."""
    ctx = fresh()
    publish(ctx, 1200)
    source = random.Random(1)
    done: Counter[int] = Counter()

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        await asyncio.sleep(source.uniform(0.001, 0.02))
        done[incoming.message.ordinal] += 1
        return [to_rejection(ctx.topics, incoming.message)]

    workers = [RunningWorker(fresh(), handle, concurrency=2, commit_interval_s=0.2) for _ in range(3)]
    with CommitWatch(ctx) as watch:
        workers[0].start()
        wait_until(lambda: len(done) > 100)
        workers[1].start()
        workers[2].start()
        wait_until(lambda: all(worker.stats.topic(ctx.topics.problems.name).received for worker in workers))
        workers[0].stop()
        wait_until(lambda: len(done) == 1200, 60)
        workers[1].stop()
        workers[2].stop()
    assert [worker.failure for worker in workers] == [None, None, None]
    assert watch.went_back == []
    assert set(done) == set(range(1, 1201))
    assert max(done.values()) == 1
    assert outputs(ctx) == dict.fromkeys(range(1, 1201), 1)
    assert committed(ctx.common, ctx.topics.problems) == end_offsets(ctx.common, ctx.codec, ctx.topics.problems)


def test_killed_members_lose_nothing(fresh: MakeContext, tmp_path: Path) -> None:
    """More problems come after every kill, so each member is killed, or ended, with work in its hands."""
    ctx = fresh()
    batch = 400
    members: list[Process] = []

    def member() -> Process:
        arguments = (ctx.common.bootstrap, ctx.common.topic_prefix, "sleep_s=0.05")
        process = python("support.workers", *arguments, log=tmp_path / f"worker{len(members)}.log")
        members.append(process)
        return process

    def done(ordinals: Iterable[int]) -> int:
        return len(outputs(ctx).keys() & set(ordinals))

    first_batch, second_batch, third_batch = (range(start, start + batch) for start in (1, batch + 1, 2 * batch + 1))
    total = 3 * batch
    publish(ctx, batch, first_batch.start)
    try:
        with CommitWatch(ctx) as watch:
            first = member()
            wait_until(lambda: done(first_batch) > 50)
            second = member()
            first.kill()
            publish(ctx, batch, second_batch.start)
            wait_until(lambda: done(second_batch) > 50, 60)
            third = member()
            wait_until(lambda: "assigned" in third.text(), 60, "the third member's assignment")
            publish(ctx, batch, third_batch.start)
            third.kill()
            wait_until(lambda: done(range(1, total + 1)) == total, 90)
            wait_until(
                lambda: (
                    committed(ctx.common, ctx.topics.problems)
                    == end_offsets(ctx.common, ctx.codec, ctx.topics.problems)
                )
            )
        second.terminate()
        assert second.wait() == 0, second.text()
    finally:
        for process in members:
            if process.status is None:
                process.kill()
    assert watch.went_back == []
    assert set(outputs(ctx)) == set(range(1, total + 1))
    assert sum(outputs(ctx).values()) < 2 * total, "more is repeated than half a second's work per kill"


def test_a_partition_that_moves_while_a_handler_hangs_is_repeated_elsewhere(ctx: ServiceContext[Section]) -> None:
    """The drain at revocation has a deadline; what is not done then is cancelled and never committed."""
    publish(ctx, 40)
    cancelled: set[int] = set()
    done: Counter[int] = Counter()
    hung: set[int] = set()

    async def hang(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        if incoming.offset == 3:
            hung.add(incoming.message.ordinal)
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cancelled.add(incoming.message.ordinal)
                raise
        done[incoming.message.ordinal] += 1
        return []

    async def work(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        done[incoming.message.ordinal] += 1
        return []

    other = make_context(ctx.common.bootstrap, ctx.common.topic_prefix)
    ctx.common = ctx.common.model_copy(update={"drain_timeout_s": 0.5})
    first = RunningWorker(ctx, hang, concurrency=1, revoke_drain_s=0.5).start()
    wait_until(lambda: len(hung) == 4)
    with RunningWorker(other, work) as second:
        wait_until(lambda: second.stats.topic(ctx.topics.problems.name).received > 0)
        wait_until(lambda: len(cancelled) == 4)
        first.stop()
        assert first.failure is None
        wait_until(lambda: len(done) == 40)
        wait_until(lambda: sum(committed(ctx.common, ctx.topics.problems).values()) == 40)


def test_sigterm_drains_commits_and_leaves(ctx: ServiceContext[Section], tmp_path: Path) -> None:
    publish(ctx, 2000)
    arguments = (ctx.common.bootstrap, ctx.common.topic_prefix, "sleep_s=0.05")
    with python("support.workers", *arguments, log=tmp_path / "worker.log") as process:
        wait_until(lambda: len(outputs(ctx)) > 50)
        process.terminate()
        assert process.wait() == 0, process.text()
    found = outputs(ctx)
    assert len(found) < 2000
    assert max(found.values()) == 1
    assert sum(committed(ctx.common, ctx.topics.problems).values()) == len(found)


def test_handlers_that_never_end_are_cancelled_at_the_drain_deadline(
    ctx: ServiceContext[Section], tmp_path: Path
) -> None:
    publish(ctx, 4)
    arguments = (ctx.common.bootstrap, ctx.common.topic_prefix, 'mode="forever"', "drain_timeout_s=0.5")
    with python("support.workers", *arguments, log=tmp_path / "worker.log") as process:
        wait_until(lambda: "partitions_assigned" in process.text())
        time.sleep(0.5)
        process.terminate()
        assert process.wait() == 0, process.text()
        assert "drain_deadline" in process.text()
    assert committed(ctx.common, ctx.topics.problems) == {}


def test_a_process_that_cannot_drain_ends_all_the_same(ctx: ServiceContext[Section], tmp_path: Path) -> None:
    publish(ctx, 4)
    arguments = (ctx.common.bootstrap, ctx.common.topic_prefix, 'mode="hang"')
    deadlines = ("drain_timeout_s=0.3", "exit_timeout_s=1.0")
    with python("support.workers", *arguments, *deadlines, log=tmp_path / "worker.log") as process:
        wait_until(lambda: "partitions_assigned" in process.text())
        time.sleep(0.5)
        process.terminate()
        assert process.wait() == EXIT_FORCED, process.text()
    assert committed(ctx.common, ctx.topics.problems) == {}


def test_a_bug_ends_the_process_with_an_error(ctx: ServiceContext[Section], tmp_path: Path) -> None:
    publish(ctx, 4)
    arguments = (ctx.common.bootstrap, ctx.common.topic_prefix, 'mode="bug"')
    with python("support.workers", *arguments, log=tmp_path / "worker.log") as process:
        assert process.wait() not in (0, None)
        assert "KeyError: 'a bug'" in process.text()
    assert committed(ctx.common, ctx.topics.problems) == {}
