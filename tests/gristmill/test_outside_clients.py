"""Clients that share no code with Gristmill read its topics: confluent-kafka's AvroDeserializer, KafkaJS."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.kafka import consumer_config, producer_config
from gristmill.messages import MESSAGES, Completion, Message, pack_ids, pack_logprobs
from gristmill.registry import open_codec
from gristmill.topics import Topics
from support.context import apply_topics
from support.messages import small_message
from support.registry import Registry, install_outside_clients

pytestmark = pytest.mark.registry

ROOT = Path(__file__).parents[2]
SAMPLES = [small_message(message) for message in MESSAGES]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    if missing := install_outside_clients(folder):
        pytest.skip(missing)
    return folder


def plain(message: Message) -> Any:
    """What a client without our classes should see, bytes as the JSON of a JavaScript Buffer."""
    return json.loads(
        json.dumps(
            msgspec.to_builtins(message, builtin_types=(bytes,)),
            default=lambda value: {"type": "Buffer", "data": list(value)},
        )
    )


def test_every_message_decodes_with_the_registry_client_for_kafkajs(registry: Registry, node: Path) -> None:
    codec = open_codec(CommonConfig(registry_url=registry.url))
    lines = "\n".join(base64.b64encode(codec.encode(message)).decode() for message in SAMPLES)
    done = subprocess.run(
        ["node", "decode.mjs", registry.url],
        cwd=node,
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [plain(message) for message in SAMPLES]


def _publish(common: CommonConfig, topic: str, codec: Codec) -> list[Completion]:
    base = small_message(Completion)
    assert isinstance(base, Completion)
    sent = [
        msgspec.structs.replace(
            base,
            group_id=f"run:{ordinal:08d}",
            ordinal=ordinal,
            text="résumé \N{GRINNING FACE}" * ordinal,
            completion_token_ids=pack_ids(range(ordinal)),
            logprobs=pack_logprobs([-0.5] * ordinal),
            tests=None,
        )
        for ordinal in (1, 2, 300)
    ]
    producer = Producer(producer_config(common))
    for message in sent:
        producer.produce(topic, key=message.key, value=codec.encode(message), partition=0)
    assert producer.flush(30) == 0
    return sent


def test_kafkajs_reads_a_topic(registry: Registry, node: Path, broker: Any, prefix: str) -> None:
    topics = apply_topics(broker.bootstrap, prefix)
    common = CommonConfig(bootstrap=broker.bootstrap, topic_prefix=prefix, registry_url=registry.url)
    sent = _publish(common, topics.completions_math.name, open_codec(common))
    done = subprocess.run(
        ["node", "read_topic.mjs", broker.bootstrap, topics.completions_math.name, registry.url, str(len(sent))],
        cwd=node,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    received = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["value"] for record in received] == [plain(message) for message in sent]
    assert [record["key"] for record in received] == [message.key for message in sent]


def test_confluent_kafka_reads_a_topic(registry: Registry, embedded_broker: Any, prefix: str) -> None:
    topics = apply_topics(embedded_broker.bootstrap, prefix)
    common = CommonConfig(bootstrap=embedded_broker.bootstrap, topic_prefix=prefix, registry_url=registry.url)
    topic = topics.completions_math.name
    sent = _publish(common, topic, open_codec(common))
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    consumer = Consumer(consumer_config(common, "outside"))
    received: list[Any] = []
    try:
        consumer.subscribe([topic])
        while len(received) < len(sent):
            record = consumer.poll(30)
            assert record is not None
            assert record.error() is None
            received.append(deserialize(record.value(), SerializationContext(topic, MessageField.VALUE)))
    finally:
        consumer.close()
    assert [
        json.loads(json.dumps(value, default=lambda b: {"type": "Buffer", "data": list(b)})) for value in received
    ] == [plain(message) for message in sent]


def blocks() -> list[str]:
    """The Python examples of docs/messages.md."""
    page = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_examples_of_the_page_run(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    value = small_message(Completion)
    with_registry, without, ours = blocks()

    names: dict[str, Any] = {
        "registry_url": registry.url,
        "value": open_codec(CommonConfig(registry_url=registry.url)).encode(value),
    }
    exec(with_registry, names)
    assert names["record"]["sample_id"] == "text"

    names = {"value": Codec().encode(value)}
    exec(without, names)
    assert names["token_ids"].tolist() == [0x04030201]
    assert names["logprobs"].size == 1

    names = {"value": Codec().encode(value)}
    exec(ours, names)
    assert names["completion"] == value
    assert names["token_ids"].tolist() == [0x04030201]


def test_the_page_lists_the_topics_as_declared() -> None:
    page = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z.-]+)` \| [^|]+ \| (?:`(\w+)`|raw bytes) \| (\d+) \|", page, re.MULTILINE)
    declared = [
        (topic.name, topic.message.__name__ if topic.message else "", str(topic.partitions)) for topic in Topics()
    ]
    assert rows == declared
