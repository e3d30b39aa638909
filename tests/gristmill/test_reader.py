"""Readers without a group: every record, the true end, positions that are gone, and what cannot be decoded."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gristmill.config import Section
from gristmill.errors import BadInput, InfrastructureError
from gristmill.messages import Problem
from gristmill.publisher import Publisher
from gristmill.reader import Gone, TopicReader, end_offsets, read_all
from gristmill.service import ServiceContext
from gristmill.topics import Topics
from support.context import apply_topics, make_context, make_problem


@pytest.fixture
def ctx(broker: Any, prefix: str) -> ServiceContext[Section]:
    apply_topics(broker.bootstrap, prefix)
    return make_context(broker.bootstrap, prefix)


def publish(ctx: ServiceContext[Section], count: int, first: int = 1) -> None:
    with Publisher(ctx.common, ctx.codec) as publisher:
        for ordinal in range(first, first + count):
            publisher.publish(ctx.topics.problems, make_problem(ordinal), {"n": str(ordinal)})


def test_reads_everything_in_order_once(ctx: ServiceContext[Section]) -> None:
    assert list(read_all(ctx.common, ctx.codec, ctx.topics.problems)) == []
    publish(ctx, 300)
    publish(ctx, 87, first=301)
    records = list(read_all(ctx.common, ctx.codec, ctx.topics.problems))
    assert sorted(r.message.ordinal for r in records if r.message) == list(range(1, 388))
    for partition in range(4):
        offsets = [r.offset for r in records if r.partition == partition]
        assert offsets == list(range(len(offsets)))
    assert all(r.message and r.key == r.message.group_id and r.header("n") == str(r.message.ordinal) for r in records)
    ends = end_offsets(ctx.common, ctx.codec, ctx.topics.problems)
    assert ends == {p: sum(r.partition == p for r in records) for p in range(4)}


def test_bad_records_and_tombstones_hide_nothing(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 2)
    with Publisher(ctx.common, ctx.codec) as publisher:
        publisher.publish_raw(ctx.topics.problems, "bad", b"\x00junk!", [("h", b"1")])
        publisher.publish_raw(ctx.topics.problems, "gone", None)
        publisher.publish_raw(ctx.topics.dead_letters, b"\xff", b"raw", [("error", b"why")])
    publish(ctx, 2, first=3)
    records = {r.key: r for r in read_all(ctx.common, ctx.codec, ctx.topics.problems)}
    assert len(records) == 6
    assert "schema id" in str(records["bad"].error)
    assert records["bad"].message is None
    assert records["bad"].value == b"\x00junk!"
    assert records["gone"].is_tombstone
    assert records["gone"].error is None
    (letter,) = read_all(ctx.common, ctx.codec, ctx.topics.dead_letters)
    assert (letter.value, letter.error, letter.header("error")) == (b"raw", None, "why")


def test_resumes_from_its_positions(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 100)
    with TopicReader[Problem](ctx.common, ctx.codec, ctx.topics.problems) as reader:
        first = [record for _ in range(3) for record in reader.poll(5, max_records=10)]
        saved = reader.positions()
    assert sum(saved.values()) == len(first)
    publish(ctx, 50, first=101)
    with TopicReader[Problem](ctx.common, ctx.codec, ctx.topics.problems, start=saved) as reader:
        rest = list(reader.read_to_end())
        assert reader.gone == []
        assert reader.at_end
        assert reader.positions() == end_offsets(ctx.common, ctx.codec, ctx.topics.problems)
    seen = [(r.partition, r.offset) for r in [*first, *rest]]
    assert len(seen) == len(set(seen)) == 150


def test_the_end_itself_is_a_position_that_is_there(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 60)
    ends = end_offsets(ctx.common, ctx.codec, ctx.topics.problems)
    with TopicReader[Problem](ctx.common, ctx.codec, ctx.topics.problems, start=ends) as reader:
        assert reader.gone == []
        assert list(reader.read_to_end()) == []
        publish(ctx, 1, first=61)
        assert [r.message.ordinal for r in reader.poll(5) if r.message] == [61]


def test_positions_that_are_gone_are_told_and_read_from_the_beginning(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 40)
    ends = end_offsets(ctx.common, ctx.codec, ctx.topics.problems)
    wanted = {0: ends[0] + 1000, 1: ends[1], 9: 5}
    with TopicReader[Problem](ctx.common, ctx.codec, ctx.topics.problems, start=wanted) as reader:
        assert reader.gone == [Gone(0, ends[0] + 1000, 0, ends[0]), Gone(9, 5, 0, 0)]
        records = list(reader.read_to_end())
    assert len(records) == 40 - ends[1]


def test_starts_at_the_end(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 87)
    with TopicReader[Problem](ctx.common, ctx.codec, ctx.topics.problems, start="end") as reader:
        publish(ctx, 3, first=88)
        records = []
        while len(records) < 3:
            records += reader.poll(1)
    assert sorted(r.message.ordinal for r in records if r.message) == [88, 89, 90]


def test_follows_until_it_is_stopped(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 5)
    stop = threading.Event()
    seen: list[int] = []
    with TopicReader[Problem](ctx.common, ctx.codec, ctx.topics.problems) as reader:
        for record in reader.follow(stop):
            assert record.message is not None
            seen.append(record.message.ordinal)
            if len(seen) == 5:
                publish(ctx, 5, first=6)
            if len(seen) == 10:
                stop.set()
    assert sorted(seen) == list(range(1, 11))


def test_a_missing_topic_is_named(ctx: ServiceContext[Section]) -> None:
    with pytest.raises(InfrastructureError, match=r"cannot read topic nowhere\.problems.*topics apply"):
        TopicReader(ctx.common, ctx.codec, Topics("nowhere.").problems)


def test_publisher_refuses_what_is_too_large(ctx: ServiceContext[Section]) -> None:
    with Publisher(ctx.common, ctx.codec) as publisher:
        publisher.publish(ctx.topics.problems, make_problem(1))
        with pytest.raises(BadInput, match="too large"):
            publisher.publish(ctx.topics.problems, make_problem(2, prompt="x" * 9_000_000))
    assert len(list(read_all(ctx.common, ctx.codec, ctx.topics.problems))) == 1


@pytest.mark.kafka
def test_publisher_tells_what_was_not_delivered(kafka_broker: Any, prefix: str) -> None:
    """The embedded broker makes missing topics by itself, so only Kafka can show this."""
    apply_topics(kafka_broker.bootstrap, prefix)
    ctx = make_context(kafka_broker.bootstrap, prefix)
    publisher = Publisher(ctx.common, ctx.codec, {"delivery.timeout.ms": 1000, "linger.ms": 0})
    publisher.publish(Topics("nowhere.").problems, make_problem(1))
    with pytest.raises(InfrastructureError, match=r"nowhere\.problems"):
        publisher.flush_acked(20)
    publisher.publish(ctx.topics.problems, make_problem(1))
    publisher.flush_acked(20)
    publisher.close()
    assert len(list(read_all(ctx.common, ctx.codec, ctx.topics.problems))) == 1


def test_publisher_names_an_absent_broker() -> None:
    ctx = make_context("127.0.0.1:1", "x.")
    publisher = Publisher(ctx.common, ctx.codec, {"log_level": 0})
    publisher.publish(ctx.topics.problems, make_problem(1))
    with pytest.raises(InfrastructureError, match="1 messages not acknowledged"):
        publisher.flush_acked(0.5)
    publisher.close()
