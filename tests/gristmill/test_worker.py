"""The worker loop in a quiet group: outputs, dead letters, retries, bugs, watermarks, back-pressure."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from gristmill.config import Section
from gristmill.errors import BadInput, ConfigError, InfrastructureError
from gristmill.messages import Problem
from gristmill.publisher import Publisher
from gristmill.reader import Record, end_offsets, read_all
from gristmill.service import ServiceContext
from gristmill.worker import Incoming, Outgoing, RawRecord, RetryPolicy, Worker
from support.context import apply_topics, make_context, make_problem
from support.processes import wait_until
from support.workers import RunningWorker, committed, to_rejection


@pytest.fixture
def ctx(any_broker: Any, prefix: str) -> ServiceContext[Section]:
    apply_topics(any_broker.bootstrap, prefix)
    return make_context(any_broker.bootstrap, prefix, drain_timeout_s=10)


@pytest.fixture
def both(broker: Any, prefix: str) -> ServiceContext[Section]:
    """For tests that must hold on each broker."""
    apply_topics(broker.bootstrap, prefix)
    return make_context(broker.bootstrap, prefix, drain_timeout_s=10)


def publish(ctx: ServiceContext[Section], count: int, first: int = 1, **over: Any) -> None:
    with Publisher(ctx.common, ctx.codec) as publisher:
        for ordinal in range(first, first + count):
            publisher.publish(ctx.topics.problems, make_problem(ordinal, **over))


def outputs(ctx: ServiceContext[Section]) -> Counter[int]:
    """How often each ordinal was written."""
    records = read_all(ctx.common, ctx.codec, ctx.topics.rejections)
    return Counter(record.message.ordinal for record in records if record.message is not None)


def dead_letters(ctx: ServiceContext[Section]) -> list[Record[Any]]:
    return list(read_all(ctx.common, ctx.codec, ctx.topics.dead_letters))


def all_committed(ctx: ServiceContext[Section]) -> bool:
    ends = {p: end for p, end in end_offsets(ctx.common, ctx.codec, ctx.topics.problems).items() if end}
    return committed(ctx.common, ctx.topics.problems) == ends


def test_every_message_is_handled_once_and_committed(both: ServiceContext[Section]) -> None:
    publish(both, 500)
    seen: list[Incoming[Problem]] = []

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        if incoming.offset % 3:
            await asyncio.sleep(0.001)
        seen.append(incoming)
        return [to_rejection(both.topics, incoming.message)]

    with RunningWorker(both, handle, concurrency=4) as running:
        wait_until(lambda: len(seen) == 500)
        assert both.health.ready() == (True, "")
        assert both.health.live() == {}
    assert outputs(both) == dict.fromkeys(range(1, 501), 1)
    assert all_committed(both)
    first = next(incoming for incoming in seen if incoming.message.ordinal == 1)
    assert first.key == first.message.group_id
    assert first.topic == both.topics.problems.name
    assert first.timestamp_ms > 0
    assert running.stats.topic(both.topics.problems.name).received == 500
    assert running.stats.topic(both.topics.problems.name).in_flight == 0
    assert running.stats.topic(both.topics.rejections.name).sent == 500
    assert both.health.ready() == (False, "draining")


def test_outputs_take_headers_and_keys(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 1)

    def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        plain = to_rejection(ctx.topics, incoming.message)
        yield plain
        yield Outgoing(plain.topic, plain.message, key="other", headers={"sample_id": "r:1/0", "raw": b"\x00"})

    with RunningWorker(ctx, handle):
        wait_until(lambda: len(outputs(ctx)) == 1 and outputs(ctx)[1] == 2)
    records = {record.key: record for record in read_all(ctx.common, ctx.codec, ctx.topics.rejections)}
    assert set(records) == {make_problem(1).group_id, "other"}
    assert records["other"].headers == {"sample_id": b"r:1/0", "raw": b"\x00"}
    assert records["other"].header("sample_id") == "r:1/0"


def test_bad_input_becomes_a_dead_letter_and_the_line_goes_on(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 10)
    with Publisher(ctx.common, ctx.codec) as publisher:
        publisher.publish_raw(ctx.topics.problems, "run:00000042", b"no avro", [("trace", b"t1")])
        publisher.publish_raw(ctx.topics.problems, None, None)
    publish(ctx, 10, first=11)
    told: list[tuple[RawRecord, Exception]] = []

    def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        if incoming.message.ordinal == 7:
            raise BadInput("seven is right out")
        return [to_rejection(ctx.topics, incoming.message)]

    def on_dead_letter(raw: RawRecord, error: Exception) -> Iterable[Outgoing]:
        told.append((raw, error))
        if raw.key is None:
            raise BadInput("nothing can be said of this one")
        return [to_rejection(ctx.topics, make_problem(1000 + len(told)))]

    with RunningWorker(ctx, handle, concurrency=4, on_dead_letter=on_dead_letter):
        wait_until(lambda: len(dead_letters(ctx)) == 3)
        wait_until(lambda: len(outputs(ctx)) == 21)
    assert all_committed(ctx)
    found = {letter.key: letter for letter in dead_letters(ctx)}
    junk = found["run:00000042"]
    assert junk.value == b"no avro"
    headers = {name: value.decode() for name, value in junk.headers.items()}
    assert headers["error_class"] == "DecodeError"
    assert "no Confluent header" in headers["error"]
    assert headers["topic"] == ctx.topics.problems.name
    assert headers["service"] == "test"
    assert headers["trace"] == "t1"
    assert {"partition", "offset", "timestamp_ms"} <= set(headers)
    assert headers["partition"].isdigit()
    assert found[make_problem(7).group_id].header("error") == "seven is right out"
    assert ctx.codec.decode(found[make_problem(7).group_id].value, Problem).ordinal == 7
    assert len(told) == 3
    assert {type(error).__name__ for _raw, error in told} == {"DecodeError", "BadInput"}


def test_infrastructure_errors_are_retried_then_succeed_or_are_given_up(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 4)
    calls: Counter[int] = Counter()

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        ordinal = incoming.message.ordinal
        calls[ordinal] += 1
        if ordinal == 1 and calls[1] < 3:
            raise InfrastructureError("not yet")
        if ordinal == 2:
            raise InfrastructureError("never")
        return [to_rejection(ctx.topics, incoming.message)]

    policy = RetryPolicy(attempts=4, first_delay_s=0.02)
    with RunningWorker(
        ctx, handle, retry=policy, on_dead_letter=lambda raw, error: [to_rejection(ctx.topics, make_problem(99))]
    ) as running:
        wait_until(lambda: outputs(ctx) == dict.fromkeys((1, 3, 4, 99), 1))
        assert running.stats.topic(ctx.topics.problems.name).retries == 2 + 3
    assert calls == {1: 3, 2: 4, 3: 1, 4: 1}
    (letter,) = dead_letters(ctx)
    assert letter.header("error_class") == "InfrastructureError"
    assert letter.key == make_problem(2).group_id
    assert all_committed(ctx)


def test_an_output_that_is_too_large_is_bad_input(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 3)

    def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        output = to_rejection(ctx.topics, incoming.message)
        if incoming.message.ordinal == 2:
            return [output, Outgoing(ctx.topics.problems, make_problem(2, prompt="x" * 9_000_000))]
        return [output]

    with RunningWorker(ctx, handle):
        wait_until(lambda: len(dead_letters(ctx)) == 1)
        wait_until(lambda: len(outputs(ctx)) == 2)
    assert "bytes" in (dead_letters(ctx)[0].header("error") or "")
    assert all_committed(ctx)


def test_a_bug_ends_the_worker_and_commits_nothing(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 50)

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        await asyncio.sleep(0.01)
        if incoming.message.ordinal == 5:
            raise ZeroDivisionError("a bug")
        return []

    running = RunningWorker(ctx, handle, concurrency=100, commit_interval_s=60).start()
    failure = running.wait()
    assert isinstance(failure, ZeroDivisionError)
    assert committed(ctx.common, ctx.topics.problems) == {}
    assert ctx.health.live()


def test_a_handler_that_cancels_itself_is_a_bug_too(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 1)

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        raise asyncio.CancelledError

    assert "cancelled from within" in str(RunningWorker(ctx, handle).start().wait())


def test_commits_stop_at_the_first_unfinished_record(both: ServiceContext[Section]) -> None:
    """Work overtakes a record that waits; the commit does not, and a successor repeats from there."""
    publish(both, 100)
    done: list[tuple[int, int]] = []
    held: dict[int, int] = {}

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        if incoming.offset == 5:
            held[incoming.partition] = incoming.message.ordinal
            await asyncio.sleep(1000)
        done.append((incoming.partition, incoming.offset))
        return [to_rejection(both.topics, incoming.message)]

    both.common = both.common.model_copy(update={"drain_timeout_s": 0.5})
    with RunningWorker(both, handle, concurrency=2, commit_interval_s=0.1):
        wait_until(lambda: len(held) == 4 and len(done) == 96)
        wait_until(lambda: committed(both.common, both.topics.problems) == dict.fromkeys(range(4), 5))
    assert committed(both.common, both.topics.problems) == dict.fromkeys(range(4), 5)
    assert not set(held.values()) & set(outputs(both))

    again = make_context(both.common.bootstrap, both.common.topic_prefix)
    seen: list[Incoming[Problem]] = []

    def resume(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        seen.append(incoming)
        return [to_rejection(both.topics, incoming.message)]

    with RunningWorker(again, resume):
        wait_until(lambda: len(seen) == 80)
    assert min(incoming.offset for incoming in seen) == 5
    assert set(outputs(both)) == set(range(1, 101))


def test_a_blocked_partition_blocks_no_other_and_loses_nothing(both: ServiceContext[Section]) -> None:
    """Small buffers force pauses; one partition's handlers all wait until the others are done."""
    publish(both, 2000)
    gate = threading.Event()
    done: list[tuple[int, int]] = []
    blocked = 0

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        nonlocal blocked
        if incoming.partition == 2 and not gate.is_set():
            blocked += 1
            while not gate.is_set():  # noqa: ASYNC110 (set by the test's thread)
                await asyncio.sleep(0.01)
        done.append((incoming.partition, incoming.offset))
        return []

    ends = end_offsets(both.common, both.codec, both.topics.problems)
    with RunningWorker(both, handle, concurrency=3, buffer_records=20) as running:
        wait_until(lambda: len(done) == 2000 - ends[2])
        assert {partition for partition, _ in done} == {0, 1, 3}
        assert blocked == 3
        gate.set()
        wait_until(lambda: len(done) >= 2000)
    assert sorted(done) == sorted((p, offset) for p, end in ends.items() for offset in range(end))
    assert running.stats.position_repairs == 0
    assert all_committed(both)


def test_bytes_bound_the_buffer_too(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 60, prompt="x" * 300_000)
    done: list[int] = []

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        await asyncio.sleep(0.005)
        done.append(incoming.message.ordinal)
        return []

    with RunningWorker(ctx, handle, concurrency=2, buffer_bytes=500_000):
        wait_until(lambda: len(done) >= 60)
    assert sorted(done) == list(range(1, 61))


def test_a_full_producer_queue_is_back_pressure(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 300)
    options = {"queue.buffering.max.messages": 10, "linger.ms": 1}

    def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        return [to_rejection(ctx.topics, incoming.message)] * 3

    with RunningWorker(ctx, handle, concurrency=8, producer_options=options):
        wait_until(lambda: sum(outputs(ctx).values()) == 900)
    assert all_committed(ctx)


SHORT_POLL = {"session.timeout.ms": 2000, "max.poll.interval.ms": 2000}


def test_handlers_slower_than_max_poll_cause_no_rebalance(both: ServiceContext[Section]) -> None:
    publish(both, 8)
    done: list[int] = []

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        if incoming.message.ordinal == 1:
            await asyncio.sleep(3.5)
        done.append(incoming.message.ordinal)
        return []

    with RunningWorker(both, handle, concurrency=2, consumer_options=SHORT_POLL) as running:
        wait_until(lambda: len(done) == 7)
        publish(both, 40, first=9)
        wait_until(lambda: len(done) >= 48)
        assert dict(running.stats.rebalances) == {"assigned": 1}
    assert sorted(done) == list(range(1, 49))
    assert all_committed(both)


def test_a_handler_that_blocks_the_event_loop_causes_no_rebalance(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 8)
    done: list[int] = []
    blocked = threading.Event()

    def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        if incoming.message.ordinal == 1:
            blocked.set()
            time.sleep(3.5)
        done.append(incoming.message.ordinal)
        return []

    with RunningWorker(ctx, handle, consumer_options=SHORT_POLL) as running:
        blocked.wait(20)
        publish(ctx, 3000, first=9)
        wait_until(lambda: len(done) >= 3008)
        assert dict(running.stats.rebalances) == {"assigned": 1}
        assert running.stats.position_repairs == 0
    assert sorted(done) == list(range(1, 3009))
    assert all_committed(ctx)


def test_draining_finishes_what_was_begun_and_takes_nothing_more(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 200)
    started: list[int] = []

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        started.append(incoming.message.ordinal)
        await asyncio.sleep(0.3)
        return [to_rejection(ctx.topics, incoming.message)]

    with RunningWorker(ctx, handle, concurrency=2):
        wait_until(lambda: len(started) >= 8)
    assert len(started) < 100
    assert set(outputs(ctx)) == set(started)
    assert sum(committed(ctx.common, ctx.topics.problems).values()) == len(started)


def test_metrics_show_the_line(both: ServiceContext[Section]) -> None:
    from prometheus_client import generate_latest

    publish(both, 20)
    gate = threading.Event()

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        while incoming.offset >= 2 and not gate.is_set():  # noqa: ASYNC110 (set by the test's thread)
            await asyncio.sleep(0.01)
        return [to_rejection(both.topics, incoming.message)]

    name = both.topics.problems.name
    options = {"statistics.interval.ms": 300}
    with RunningWorker(both, handle, concurrency=2, consumer_options=options) as running:
        ends = end_offsets(both.common, both.codec, both.topics.problems)
        wait_until(lambda: dict(running.stats.lag) == {(name, p): end - 2 for p, end in ends.items()})
        text = generate_latest(both.metrics.registry).decode()
        assert f'gristmill_consumer_lag{{partition="0",topic="{name}"}} {float(ends[0] - 2)}' in text
        gate.set()
        wait_until(lambda: set(running.stats.lag.values()) == {0})
    text = generate_latest(both.metrics.registry).decode()
    assert f'gristmill_messages_in_total{{topic="{name}"}} 20.0' in text
    assert f'gristmill_messages_out_total{{topic="{both.topics.rejections.name}"}} 20.0' in text
    assert f'gristmill_handler_seconds_count{{topic="{name}"}} 20.0' in text
    assert f'gristmill_in_flight{{topic="{name}"}} 0.0' in text
    assert 'gristmill_rebalances_total{kind="assigned"} 1.0' in text


def test_missing_topics_are_waited_for_and_told(any_broker: Any, prefix: str) -> None:
    ctx = make_context(any_broker.bootstrap, prefix)
    done: list[int] = []

    def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        done.append(incoming.message.ordinal)
        return []

    options = {"topic.metadata.refresh.interval.ms": 500}
    with RunningWorker(ctx, handle, consumer_options=options):
        wait_until(lambda: "topics apply" in ctx.health.ready()[1])
        apply_topics(any_broker.bootstrap, prefix)
        publish(ctx, 1)
        wait_until(lambda: done == [1])
        wait_until(lambda: ctx.health.ready()[0])


def test_impossible_arguments_are_refused(ctx: ServiceContext[Section]) -> None:
    def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        return []

    with pytest.raises(ConfigError, match="concurrency"):
        Worker(ctx, group="g", inputs=[ctx.topics.problems], handler=handle, concurrency=0)
    with pytest.raises(ConfigError, match="message type"):
        Worker(ctx, group="g", inputs=[ctx.topics.dead_letters], handler=handle)
