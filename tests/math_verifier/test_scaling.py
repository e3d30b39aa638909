"""Replicas of the service in one consumer group: they share the completions, and a killed one loses nothing."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gristmill.messages import Completion
from gristmill.publisher import Publisher
from gristmill.service import ServiceContext
from math_verifier.config import MathConfig
from support.context import apply_topics, make_context
from support.math_rows import completion
from support.processes import Process, gristmill, wait_until
from support.verifiers import all_verdicts

GROUPS, SIZE = 40, 8
TEXTS = (
    ("correct", "so \\boxed{0.5}"),
    ("wrong", "so \\boxed{0.6}"),
    ("unparsable", "I do not know"),
    ("correct", "\\boxed{\\frac{1}{2}\\sin^2 x+\\frac{1}{2}\\cos^2 x}"),
)


def batch(first: int) -> dict[str, tuple[Completion, str]]:
    """Completions of ``GROUPS`` groups from ordinal ``first`` on, and the status that each must get."""
    found = {}
    for ordinal in range(first, first + GROUPS):
        for index in range(SIZE):
            status, text = TEXTS[(ordinal + index) % len(TEXTS)]
            item = completion(ordinal, index, text)
            found[item.sample_id] = (item, status)
    return found


def publish(ctx: ServiceContext[Any], items: dict[str, tuple[Completion, str]]) -> None:
    with Publisher(ctx.common, ctx.codec) as publisher:
        for item, _ in items.values():
            publisher.publish(ctx.topics.completions_math, item, {"sample_id": item.sample_id})
        publisher.flush_acked(30)


def assigned(replica: Process) -> int:
    """How many partitions a replica has, as far as it has said."""
    lines = [json.loads(line) for line in replica.text().splitlines() if line.startswith("{")]
    return sum(len(line["partitions"]) for line in lines if line["event"] == "partitions_assigned")


def done_by(replica: Process) -> int:
    """Verdicts of a replica, by its metrics."""
    port = next(json.loads(line)["port"] for line in replica.text().splitlines() if "status_server_started" in line)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text = page.read().decode()
    return int(sum(float(value) for value in re.findall(r"^gristmill_math_verdicts_total\{.*\} (\S+)$", text, re.M)))


@pytest.fixture
def ctx(broker: Any, prefix: str) -> ServiceContext[MathConfig]:
    apply_topics(broker.bootstrap, prefix)
    return make_context(broker.bootstrap, prefix, MathConfig(), name="math_verifier")


def test_two_replicas_share_the_completions_and_one_that_is_killed_loses_nothing(
    ctx: ServiceContext[MathConfig], tmp_path: Path
) -> None:
    environ = {
        "GRISTMILL_BOOTSTRAP": ctx.common.bootstrap,
        "GRISTMILL_TOPIC_PREFIX": ctx.common.topic_prefix,
        "GRISTMILL_LOG_FORMAT": "json",
        "GRISTMILL_METRICS_PORT": "0",
        "GRISTMILL_MATH__WORKERS": "1",
        "GRISTMILL_MATH__CONCURRENCY": "4",
    }
    replicas: list[Process] = []

    def found(items: dict[str, tuple[Completion, str]]) -> int:
        return len({verdict.sample_id for verdict in all_verdicts(ctx)} & items.keys())

    try:
        for number in range(2):
            log = tmp_path / f"replica{number}.log"
            replicas.append(gristmill("run", "math_verifier", log=log, environ=environ))
        first, second = replicas
        wait_until(lambda: assigned(first) > 0 and assigned(second) > 0, 60, "an assignment to both replicas")
        one, two = batch(1), batch(1 + GROUPS)
        publish(ctx, one)
        wait_until(lambda: found(one) == len(one), 60)
        assert Counter(verdict.sample_id for verdict in all_verdicts(ctx)) == dict.fromkeys(one, 1)
        shares = [done_by(replica) for replica in replicas]
        assert sum(shares) == len(one)
        assert min(shares) > 0

        publish(ctx, two)
        wait_until(lambda: done_by(first) > shares[0] + 8, 60, "work in the first replica's hands")
        first.kill()
        wait_until(lambda: found(two) == len(two), 90)
        second.terminate()
        assert second.wait() == 0, second.text()
    finally:
        for replica in replicas:
            if replica.status is None:
                replica.kill()
    verdicts = all_verdicts(ctx)
    wanted = {sample_id: status for sample_id, (_, status) in (one | two).items()}
    assert {(verdict.sample_id, verdict.status) for verdict in verdicts} == set(wanted.items())
    repeated = [name for name, count in Counter(verdict.sample_id for verdict in verdicts).items() if count > 1]
    assert not set(repeated) & one.keys()
