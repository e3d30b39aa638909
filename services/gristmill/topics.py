"""The topics of the line, declared once, and applied idempotently.

Nothing else creates topics. ``apply`` may run twice at once: a topic that the other call created counts as
created, and existing topics are checked against the declaration rather than changed behind anyone's back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from gristmill.errors import ConfigError, InfrastructureError
from gristmill.messages import (
    Completion,
    Message,
    PolicyVersion,
    Problem,
    ProblemKind,
    Rejection,
    TrainingStep,
    Verdict,
)

MEBIBYTE = 1024 * 1024
MAX_MESSAGE_BYTES = 8 * MEBIBYTE
"""Largest record of any topic: a completion of 128k tokens takes 1.5 MB."""
WEEK_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: its full name, what it carries, and how it is kept."""

    name: str
    message: type[Message] | None
    partitions: int
    config: dict[str, str] = field(default_factory=dict, hash=False)


class Topics:
    """All topics under one prefix.

    ``partitions`` applies to the topics that scale out; ``policies`` and ``training`` always have one partition,
    which gives them a total order.
    """

    def __init__(self, prefix: str = "", partitions: int = 8) -> None:
        delete = {
            "cleanup.policy": "delete",
            "retention.ms": str(WEEK_MS),
            "max.message.bytes": str(MAX_MESSAGE_BYTES),
        }
        compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.5"}
        forever = {"cleanup.policy": "delete", "retention.ms": "-1"}

        def topic(name: str, message: type[Message] | None, count: int, config: dict[str, str]) -> Topic:
            return Topic(prefix + name, message, count, config)

        self.prefix = prefix
        self.problems = topic("problems", Problem, partitions, delete)
        self.completions_math = topic("completions.math", Completion, partitions, delete)
        self.completions_code = topic("completions.code", Completion, partitions, delete)
        self.verdicts = topic("verdicts", Verdict, partitions, delete)
        self.policies = topic("policies", PolicyVersion, 1, compact)
        self.rejections = topic("rejections", Rejection, partitions, forever)
        self.training = topic("training", TrainingStep, 1, forever)
        self.dead_letters = topic("dead-letters", None, 1, delete)

    def __iter__(self) -> Iterator[Topic]:
        return (value for value in vars(self).values() if isinstance(value, Topic))

    def completions(self, kind: ProblemKind) -> Topic:
        """Topic that the verifier of ``kind`` reads."""
        return self.completions_math if kind == "math" else self.completions_code

    def find(self, name: str) -> Topic:
        """Topic by its name, with or without the prefix.

        Raises:
            ConfigError: no such topic; the message lists them.
        """
        for candidate in self:
            if name in (candidate.name, candidate.name.removeprefix(self.prefix)):
                return candidate
        known = ", ".join(topic.name for topic in self)
        raise ConfigError(f"no topic {name!r}; the topics are {known}")


@dataclass(frozen=True, slots=True)
class Applied:
    """What :func:`apply` did for one topic."""

    topic: Topic
    created: bool
    partitions: int


def apply(admin: AdminClient, topics: Topics, *, replication: int = 1, timeout_s: float = 30.0) -> list[Applied]:
    """Create what is missing; leave what exists.

    Raises:
        ConfigError: an existing topic breaks the line (``policies`` or ``training`` with several partitions).
        InfrastructureError: the cluster does not answer or refuses.
    """
    existing = _partition_counts(admin, timeout_s)
    missing = [topic for topic in topics if topic.name not in existing]
    created: set[str] = set()
    if missing:
        requests = [
            NewTopic(t.name, num_partitions=t.partitions, replication_factor=replication, config=t.config)
            for t in missing
        ]
        for name, future in admin.create_topics(requests, request_timeout=timeout_s).items():
            try:
                future.result(timeout_s)
                created.add(name)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise InfrastructureError(f"topic {name}: {error.args[0].str()}") from error
        existing |= {topic.name: topic.partitions for topic in missing if topic.name in created}
        # Those that someone else made in this moment are of his making: ask.
        existing |= _await_counts(admin, {topic.name for topic in missing} - created, timeout_s)
    for topic in (topics.policies, topics.training):
        if existing[topic.name] != 1:
            raise ConfigError(
                f"topic {topic.name} has {existing[topic.name]} partitions; it must have one, for a total order"
            )
    return [Applied(topic, topic.name in created, existing[topic.name]) for topic in topics]


def _await_counts(admin: AdminClient, names: set[str], timeout_s: float) -> dict[str, int]:
    """Partitions of topics that exist, although the broker asked may not have heard of them yet."""
    deadline = time.monotonic() + timeout_s
    found: dict[str, int] = {}
    while missing := names - found.keys():
        if time.monotonic() > deadline:
            raise InfrastructureError(f"topics {sorted(missing)} exist, but the cluster does not list them")
        counts = _partition_counts(admin, timeout_s)
        found = {name: counts[name] for name in names if counts.get(name)}
        time.sleep(0.05)
    return found


def _partition_counts(admin: AdminClient, timeout_s: float) -> dict[str, int]:
    try:
        metadata = admin.list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise InfrastructureError(
            f"the Kafka cluster does not answer within {timeout_s:g} s ({error.args[0].str()}); is --bootstrap right?"
        ) from error
    return {name: len(topic.partitions) for name, topic in metadata.topics.items()}
