"""Client configurations for confluent-kafka, in one place."""

from __future__ import annotations

from typing import Any

from gristmill.config import CommonConfig
from gristmill.topics import MAX_MESSAGE_BYTES

ClientConfig = dict[str, Any]


def client_config(common: CommonConfig) -> ClientConfig:
    """Settings that producers, consumers and admin clients share."""
    security = common.security
    config: ClientConfig = {
        "bootstrap.servers": common.bootstrap,
        "client.id": "gristmill",
        "security.protocol": security.protocol,
        "topic.metadata.refresh.interval.ms": 30_000,
        "reconnect.backoff.max.ms": 2_000,
        "log_level": 4,
    }
    optional = {
        "sasl.mechanism": security.sasl_mechanism,
        "sasl.username": security.sasl_username,
        "sasl.password": security.sasl_password.get_secret_value() if security.sasl_password else None,
        "ssl.ca.location": str(security.ssl_ca) if security.ssl_ca else None,
        "ssl.certificate.location": str(security.ssl_certificate) if security.ssl_certificate else None,
        "ssl.key.location": str(security.ssl_key) if security.ssl_key else None,
    }
    return config | {key: value for key, value in optional.items() if value is not None}


def admin_config(common: CommonConfig) -> ClientConfig:
    """Settings of an admin client. Its calls raise what goes wrong, so it need not write to stderr as well."""
    return client_config(common) | {"log_level": 0}


def producer_config(common: CommonConfig, **over: Any) -> ClientConfig:
    """Settings of a producer: idempotent, all replicas, compressed. ``over``: Kafka's names with underscores."""
    base = client_config(common) | {
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "lz4",
        "linger.ms": 5,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "queue.buffering.max.kbytes": 256 * 1024,
        "delivery.timeout.ms": 120_000,
    }
    return base | _dotted(over)


def consumer_config(common: CommonConfig, group: str, **over: Any) -> ClientConfig:
    """Settings of a group consumer that commits by hand. ``group`` gets the topic prefix."""
    base = client_config(common) | {
        "group.id": f"{common.topic_prefix}{group}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "range",
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 2_000,
        "max.poll.interval.ms": 300_000,
        "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
        "queued.max.messages.kbytes": 64 * 1024,
        "fetch.wait.max.ms": 100,
    }
    return base | _dotted(over)


def reader_config(common: CommonConfig, **over: Any) -> ClientConfig:
    """Settings of a consumer that assigns its partitions itself and never commits."""
    return consumer_config(common, "reader", enable_partition_eof=True, **over)


def _dotted(over: dict[str, Any]) -> ClientConfig:
    return {key.replace("_", "."): value for key, value in over.items()}
