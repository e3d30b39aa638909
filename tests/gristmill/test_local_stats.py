"""What the live table counts, and that counting does not grow with the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from gristmill.codec import Codec
from gristmill.local.stats import RATE_WINDOW_S, LineStats, Rate
from gristmill.messages import Message, PolicyVersion, TrainingStep, Verdict, make_group_id
from gristmill.topics import Topics
from support.messages import small_message


@dataclass
class FakeRecord:
    """The part of a Kafka record that statistics look at."""

    content: bytes

    def value(self) -> bytes:
        return self.content


def test_a_rate_forgets_although_nobody_asks() -> None:
    now = 0.0
    rate = Rate(lambda: now)
    for _ in range(1000):
        now += 1.0
        rate.add(10)
    assert len(rate._events) <= RATE_WINDOW_S + 1
    assert rate.per_second() == 10 * (RATE_WINDOW_S + 1) / RATE_WINDOW_S
    now += 2 * RATE_WINDOW_S
    assert rate.per_second() == 0


def test_groups_in_flight_and_the_last_step() -> None:
    topics, codec = Topics("t."), Codec()
    stats = LineStats(topics, "run")

    def take(topic: Any, message: Message, **values: Any) -> None:
        changed = msgspec.structs.replace(message, **{"run_id": "run", **values})
        stats.take(topic, FakeRecord(codec.encode(changed)), codec)

    for ordinal in (1, 2, 5, 4, 3, 5):
        take(topics.verdicts, small_message(Verdict), ordinal=ordinal, group_id=make_group_id("run", ordinal))
    take(topics.verdicts, small_message(Verdict), ordinal=99, run_id="another")
    assert stats.groups_in_flight == 5
    take(topics.policies, small_message(PolicyVersion), settled_groups=3)
    assert stats.groups_in_flight == 2
    for step in (1, 3, 2):
        take(topics.training, small_message(TrainingStep), step=step)
    assert stats.last_step is not None
    assert stats.last_step.step == 3
    assert stats.topics[topics.verdicts.name].records == 7
