"""Tap: rows, filters, and the command against a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gristmill.broker import EmbeddedBroker
from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.errors import ConfigError
from gristmill.messages import Rejection, Verdict, pack_ids, pack_logprobs
from gristmill.publisher import Publisher
from gristmill.tap import check_fields, parse_filter
from gristmill.topics import Topics


def verdict(index: int, status: str, reward: float | None) -> Verdict:
    return Verdict(
        run_id="r",
        sample_id=f"r:00000001/{index}",
        group_id="r:00000001",
        index=index,
        ordinal=1,
        group_size=3,
        problem_id="p",
        prompt_token_ids=pack_ids(range(30)),
        completion_token_ids=pack_ids([1, 2]),
        logprobs=pack_logprobs([-0.5, float("-inf")]),
        status=status,  # type: ignore[arg-type]
        reward=reward,
        verifier="math_verifier",
        verifier_version="1",
        verified_at_ms=1,
    )


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("status=wrong", {"status": "wrong"}, True),
        ("status!=wrong", {"status": "wrong"}, False),
        ("reward>=0.5", {"reward": 0.5}, True),
        ("reward>0.5", {"reward": 0.5}, False),
        ("reward=null", {"reward": None}, True),
        ("reward<1", {"reward": None}, False),
        ("index=2", {"index": 2}, True),
        ("absent=1", {"index": 2}, False),
    ],
)
def test_filters(text: str, row: dict[str, object], expected: bool) -> None:
    assert parse_filter(text).matches(row) is expected


def test_bad_filters_are_refused() -> None:
    with pytest.raises(ConfigError, match="write field=value"):
        parse_filter("status")
    with pytest.raises(ConfigError, match="no field 'lag'"):
        check_fields([parse_filter("lag=1")], Verdict)
    check_fields([parse_filter("lag=1")], Rejection)


def run_tap(broker: EmbeddedBroker, prefix: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gristmill", "tap", *arguments]
    command += ["--bootstrap", broker.bootstrap, "--topic-prefix", prefix]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "200"})


def test_the_command(embedded_broker: EmbeddedBroker, prefix: str) -> None:
    from confluent_kafka.admin import AdminClient

    from gristmill.topics import apply

    common = CommonConfig(bootstrap=embedded_broker.bootstrap, topic_prefix=prefix)
    topics = Topics(prefix)
    apply(AdminClient({"bootstrap.servers": common.bootstrap}), topics)
    with Publisher(common, Codec()) as publisher:
        for index, (status, reward) in enumerate([("correct", 1.0), ("wrong", 0.0), ("timeout", None)]):
            publisher.publish(topics.verdicts, verdict(index, status, reward))
        publisher.publish_raw(topics.verdicts, b"r:00000002", b"garbage")

    done = run_tap(embedded_broker, prefix, "verdicts", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert [row["status"] for row in rows if "status" in row] == ["correct", "wrong", "timeout"]
    assert [row["error"] for row in rows if "error" in row] == [
        "Verdict: no Confluent header (magic byte 0 and a 4-byte schema id)"
    ]
    (correct,) = [row for row in rows if row.get("status") == "correct"]
    assert correct["prompt_token_ids"][-1] == "… 22 more"
    assert correct["logprobs"] == [-0.5, "-inf"]

    done = run_tap(embedded_broker, prefix, "verdicts", "--where", "reward=0", "--json", "--full")
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert row["status"] == "wrong"
    assert row["prompt_token_ids"] == list(range(30))

    done = run_tap(embedded_broker, prefix, "verdicts", "--where", "status=correct", "-n", "1")
    assert "r:00000001" in done.stdout
    assert "prompt_token_ids" not in done.stdout

    done = run_tap(embedded_broker, prefix, "verdict")
    assert done.returncode == 2
    assert "no topic 'verdict'" in done.stderr
