"""Topics are declared once, and applying them twice, or twice at once, changes nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from gristmill.config import CommonConfig
from gristmill.errors import ConfigError, InfrastructureError
from gristmill.kafka import admin_config
from gristmill.topics import Applied, Topics, apply


def admin(broker: object) -> AdminClient:
    return AdminClient(admin_config(CommonConfig(bootstrap=broker.bootstrap)))  # type: ignore[attr-defined]


def test_apply_is_idempotent(broker: object, prefix: str) -> None:
    topics = Topics(prefix, 3)
    first = apply(admin(broker), topics)
    again = apply(admin(broker), topics)
    assert all(item.created for item in first)
    assert not any(item.created for item in again)
    assert [(item.topic, item.partitions) for item in first] == [(item.topic, item.partitions) for item in again]
    assert {item.topic.name: item.partitions for item in again} == {t.name: t.partitions for t in topics}


def test_two_may_apply_at_once(broker: object, prefix: str) -> None:
    topics = Topics(prefix, 2)

    def once(_number: int) -> list[Applied]:
        return apply(admin(broker), topics)

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(once, range(4)))
    for index, topic in enumerate(topics):
        assert sum(outcome[index].created for outcome in outcomes) <= 1, topic
    found = admin(broker).list_topics(timeout=10).topics
    assert {t.name: len(found[t.name].partitions) for t in topics} == {t.name: t.partitions for t in topics}


def test_a_policies_topic_without_total_order_is_refused(broker: object, prefix: str) -> None:
    client = admin(broker)
    for future in client.create_topics([NewTopic(f"{prefix}policies", 3, 1)]).values():
        future.result(10)
    with pytest.raises(ConfigError, match=r"policies has 3 partitions; it must have one"):
        apply(client, Topics(prefix, 2))


def test_an_absent_cluster_is_named() -> None:
    client = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with pytest.raises(InfrastructureError, match="does not answer"):
        apply(client, Topics("x."), timeout_s=1.0)


def test_find_takes_names_with_and_without_prefix() -> None:
    topics = Topics("a.")
    assert topics.find("problems") is topics.find("a.problems") is topics.problems
    with pytest.raises(ConfigError, match=r"no topic 'problem'.*a\.problems"):
        topics.find("problem")
