"""What the live table counts, and that counting does not grow with the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gristmill.codec import Codec
from gristmill.local.figures import figures
from gristmill.local.stats import RATE_WINDOW_S, LineStats, Rate, Timings
from gristmill.messages import Completion, Message, PolicyVersion, TrainingStep, Verdict, make_group_id
from gristmill.metrics import Metrics
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


def exposition(delivered: tuple[float, int], transfers: tuple[float, int]) -> str:
    """Metrics as a generator shows them."""
    registry = Metrics()
    delivery = registry.histogram("generator_delivery_seconds", "doc")
    phase = registry.histogram("generator_delivery_phase_seconds", "doc", ("mode", "phase"))
    registry.histogram("generator_update_stall_seconds", "never observed")
    for total, count, item in ((*delivered, delivery), (*transfers, phase.labels("lora", "transfer"))):
        for _ in range(count):
            item.observe(total / count)
    return generate_latest(registry.registry).decode()


def test_timings_are_means_over_all_processes_by_phase() -> None:
    timings = Timings()
    for process, text in (
        ("a", exposition((1.0, 1), (1.0, 1))),
        ("a", exposition((6.0, 3), (2.0, 4))),  # counted anew, not added
        ("b", exposition((4.0, 1), (0.0, 0))),
    ):
        for family in text_string_to_metric_families(text):
            if family.type == "histogram":
                timings.take(process, family)
    means = timings.means()
    assert means == {
        ("gristmill_generator_delivery_seconds", ""): 2.5,
        ("gristmill_generator_delivery_phase_seconds", "transfer"): 0.5,
    }


def test_figures_of_a_run() -> None:
    topics, codec = Topics("t."), Codec()
    stats = LineStats(topics, "run")
    for number in (1, 2):
        completion = msgspec.structs.replace(
            small_message(Completion),
            run_id="run",
            completion_token_ids=b"\0" * 4 * 30,
            completed_at_ms=1_000_000 + 2000 * number,
            generation_s=1.0,
        )
        stats.take(topics.completions_math, FakeRecord(codec.encode(completion)), codec)
    policy = msgspec.structs.replace(small_message(PolicyVersion), run_id="run", max_staleness=3)
    stats.take(topics.policies, FakeRecord(codec.encode(policy)), codec)
    base = small_message(TrainingStep)
    steps = [
        msgspec.structs.replace(base, staleness={"0": 8}, mismatch_kl=2e-4, mismatch_max_ratio=1.5, train_s=1.0),
        msgspec.structs.replace(
            base, staleness={"1": 2, "0": 6}, mismatch_kl=1e-4, mismatch_max_ratio=1.2, train_s=3.0
        ),
    ]
    found = figures(stats, steps)
    assert found.staleness == {"0": 14, "1": 2}
    assert found.mismatch_kl == (1e-4, 2e-4)
    assert found.mismatch_max_ratio == 1.5
    assert found.tokens_per_s == 20.0
    assert found.step_s["train"] == 2.0
    assert found.delivery_s is None
    text = "\n".join(found.lines())
    assert "trained samples by staleness: 0: 14, 1: 2; largest 1, bound 3" in text
    assert "1.00e-04 to 2.00e-04, largest ratio 1.5" in text
    assert figures(LineStats(topics, "run"), []).lines() == []
