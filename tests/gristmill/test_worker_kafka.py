"""What only Apache Kafka can do: restart, authentication, compaction, retention, topics made anew."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from gristmill.config import Section, SecurityConfig
from gristmill.errors import InfrastructureError
from gristmill.kafka import admin_config
from gristmill.messages import PolicyVersion, Problem
from gristmill.publisher import Publisher
from gristmill.reader import TopicReader, end_offsets, read_all
from gristmill.service import ServiceContext
from gristmill.topics import Topics, apply
from gristmill.worker import Incoming, Outgoing
from support.context import apply_topics, make_context, make_problem
from support.kafka import EAGER_CLEANING, KafkaBroker, running_kafka
from support.processes import wait_until
from support.workers import RunningWorker, committed, to_rejection

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One of this file's own: it is killed in between, and cleans up at once."""
    with running_kafka(tmp_path_factory.mktemp("own-kafka"), EAGER_CLEANING) as broker:
        yield broker


@pytest.fixture
def ctx(kafka_broker: KafkaBroker, prefix: str) -> ServiceContext[Section]:
    apply_topics(kafka_broker.bootstrap, prefix)
    return make_context(kafka_broker.bootstrap, prefix)


def publish(ctx: ServiceContext[Section], count: int, first: int = 1) -> None:
    with Publisher(ctx.common, ctx.codec) as publisher:
        for ordinal in range(first, first + count):
            publisher.publish(ctx.topics.problems, make_problem(ordinal))


def outputs(ctx: ServiceContext[Section]) -> Counter[int]:
    records = read_all(ctx.common, ctx.codec, ctx.topics.rejections)
    return Counter(record.message.ordinal for record in records if record.message is not None)


def admin(ctx: ServiceContext[Section]) -> AdminClient:
    return AdminClient(admin_config(ctx.common))


def test_sasl(kafka_broker: KafkaBroker, prefix: str) -> None:
    security = SecurityConfig(
        protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="gristmill",
        sasl_password=SecretStr("secret"),
    )
    ctx = make_context(kafka_broker.sasl_bootstrap, prefix, security=security)
    apply(admin(ctx), ctx.topics)
    publish(ctx, 20)
    with RunningWorker(ctx, lambda incoming: [to_rejection(ctx.topics, incoming.message)]):
        wait_until(lambda: len(outputs(ctx)) == 20)
    wrong = security.model_copy(update={"sasl_password": SecretStr("guess")})
    stranger = make_context(kafka_broker.sasl_bootstrap, prefix, security=wrong)
    with pytest.raises(InfrastructureError):
        apply(admin(stranger), stranger.topics, timeout_s=3)
    with RunningWorker(stranger, lambda incoming: []):
        wait_until(lambda: "uthentication" in stranger.health.ready()[1])
        assert not stranger.health.ready()[0]


def test_policies_keep_the_last_record_of_a_run(ctx: ServiceContext[Section]) -> None:
    resource = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "200"}
    alter(ctx, ctx.topics.policies.name, resource)
    with Publisher(ctx.common, ctx.codec) as publisher:
        for version in range(60):
            publisher.publish(ctx.topics.policies, policy(version, "a"))
            publisher.publish(ctx.topics.policies, policy(version, "b"))
            publisher.flush_acked()
            time.sleep(0.01)

    def kept() -> list[PolicyVersion]:
        publish_policy = policy(99, "c")  # a later record lets the segment before it be cleaned
        with Publisher(ctx.common, ctx.codec) as publisher:
            publisher.publish(ctx.topics.policies, publish_policy)
        return [r.message for r in read_all(ctx.common, ctx.codec, ctx.topics.policies) if r.message]

    wait_until(lambda: len([p for p in kept() if p.run_id != "c"]) < 40, 40, "compaction")
    found = kept()
    assert [p.version for p in found if p.run_id == "a"][-1] == 59
    assert [p.version for p in found if p.run_id == "b"][-1] == 59
    with TopicReader[PolicyVersion](ctx.common, ctx.codec, ctx.topics.policies, start={0: 3}) as reader:
        assert reader.gone == []
        assert list(reader.read_to_end())


def test_retention_moves_the_beginning_and_nobody_stumbles(ctx: ServiceContext[Section]) -> None:
    name = ctx.topics.problems.name
    publish(ctx, 100)
    done: list[int] = []

    def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        done.append(incoming.message.ordinal)
        return []

    with RunningWorker(ctx, handle):
        wait_until(lambda: len(done) == 100)
    publish(ctx, 100, first=101)
    old = committed(ctx.common, ctx.topics.problems)
    alter(ctx, name, {"retention.ms": "1", "segment.ms": "100"})
    wait_until(lambda: list(read_all(ctx.common, ctx.codec, ctx.topics.problems)) == [], 40, "retention")
    alter(ctx, name, {"retention.ms": "600000", "segment.ms": "600000"})
    publish(ctx, 50, first=201)
    with TopicReader[Problem](ctx.common, ctx.codec, ctx.topics.problems, start=old) as reader:
        assert {gone.partition: gone.wanted for gone in reader.gone} == old
        assert sorted(r.message.ordinal for r in reader.read_to_end() if r.message) == list(range(201, 251))
    again = make_context(ctx.common.bootstrap, ctx.common.topic_prefix)
    with RunningWorker(again, handle):
        wait_until(lambda: len(done) >= 150)
        ends = end_offsets(ctx.common, ctx.codec, ctx.topics.problems)
        wait_until(lambda: committed(ctx.common, ctx.topics.problems) == ends)
    assert sorted(done[100:]) == list(range(201, 251))


def test_a_topic_made_anew_is_read_from_its_beginning(ctx: ServiceContext[Section]) -> None:
    publish(ctx, 100)
    done: Counter[int] = Counter()

    def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        done[incoming.message.ordinal] += 1
        return []

    options = {"topic.metadata.refresh.interval.ms": 1000}
    with RunningWorker(ctx, handle, consumer_options=options):
        wait_until(lambda: len(done) == 100)
        client = admin(ctx)
        for future in client.delete_topics([ctx.topics.problems.name]).values():
            future.result(10)
        time.sleep(1)
        apply(admin(ctx), Topics(ctx.common.topic_prefix, 4))
        publish(ctx, 20, first=1001)
        wait_until(lambda: sum(ordinal > 1000 for ordinal in done) == 20, 60)
        wait_until(lambda: sum(committed(ctx.common, ctx.topics.problems).values()) == 20)


def test_a_broker_that_is_killed_and_comes_back_loses_nothing(
    kafka_broker: KafkaBroker, ctx: ServiceContext[Section]
) -> None:
    publish(ctx, 400)
    seen: list[int] = []

    async def handle(incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        await asyncio.sleep(0.01)
        seen.append(incoming.message.ordinal)
        return [to_rejection(ctx.topics, incoming.message)]

    options = {"delivery.timeout.ms": 2000}
    with RunningWorker(ctx, handle, concurrency=2, producer_options=options) as running:
        wait_until(lambda: len(seen) > 50)
        kafka_broker.kill()
        try:
            wait_until(lambda: "Kafka" in ctx.health.ready()[1])
            assert ctx.health.live() == {}, "a restart of the service would not help"
            time.sleep(2.5)
        finally:
            kafka_broker.start()
        wait_until(lambda: set(outputs(ctx)) == set(range(1, 401)), 90)
        ends = end_offsets(ctx.common, ctx.codec, ctx.topics.problems)
        wait_until(lambda: committed(ctx.common, ctx.topics.problems) == ends)
        wait_until(lambda: ctx.health.ready()[0])
        assert running.running


def alter(ctx: ServiceContext[Section], topic: str, settings: dict[str, str]) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries: list[Any] = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client = admin(ctx)
    for future in client.incremental_alter_configs([resource]).values():
        future.result(10)


def policy(version: int, run_id: str) -> PolicyVersion:
    return PolicyVersion(
        run_id=run_id,
        version=version,
        step=version,
        name=f"{run_id}-v{version}",
        base_model="tiny",
        kind="lora",
        uri="file:///x",
        sha256="0" * 64,
        admit_until=1,
        settled_groups=0,
        trained=0,
        rejected=0,
        filtered=0,
        failed=0,
        max_staleness=1,
        groups_per_step=1,
        published_at_ms=0,
    )
