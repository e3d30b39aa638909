"""The service on a real broker: payloads, rewards, dead letters, and the offline command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from gristmill.cli import build
from gristmill.config import load_settings
from gristmill.errors import MissingExtra
from gristmill.messages import Verdict
from gristmill.publisher import Publisher
from gristmill.reader import read_all
from gristmill.service import ServiceContext
from gristmill.verdicts import lost_verdict
from gristmill.worker import RawRecord
from grpo_trainer.assembler import Assembler, Rules
from math_verifier.config import MathConfig, MathPolicy
from math_verifier.pool import open_pool
from math_verifier.service import SERVICE, reward_of
from support.context import apply_topics, make_context
from support.math_rows import HANGS, completion
from support.processes import wait_until
from support.verifiers import OWN, RunningService, all_verdicts


@pytest.fixture
def ctx(embedded_broker: Any, prefix: str) -> ServiceContext[MathConfig]:
    apply_topics(embedded_broker.bootstrap, prefix)
    config = MathConfig(workers=1, time_limit_s=1.0, unparsable_reward=-0.5, reward_correct=2.0, reward_wrong=0.25)
    return make_context(embedded_broker.bootstrap, prefix, config, name="math_verifier", drain_timeout_s=10)


def verdicts(ctx: ServiceContext[MathConfig]) -> dict[str, Verdict]:
    records = all_verdicts(ctx)
    found = {verdict.sample_id: verdict for verdict in records}
    assert len(found) == len(records)
    return found


def test_completions_become_verdicts(ctx: ServiceContext[MathConfig]) -> None:
    sent = [
        completion(1, 0, "so \\boxed{0.5}"),
        completion(1, 1, "so \\boxed{0.6}"),
        completion(1, 2, "I do not know"),
        completion(1, 3, f"\\boxed{{{HANGS[0]}}}", reference=HANGS[1]),
        completion(1, 4, "\\boxed{1}", reference=None),
        completion(1, 5, "\\boxed{1}", reference="\\frac{1"),
        completion(2, 0, "<think>\\boxed{0.5}", finish_reason="length"),
    ]
    with Publisher(ctx.common, ctx.codec) as publisher:
        for item in sent:
            publisher.publish(ctx.topics.completions_math, item, {"sample_id": item.sample_id})
        publisher.publish_raw(
            ctx.topics.completions_math,
            "run:00000009",
            b"rubbish",
            [("sample_id", b"run:00000009/3"), ("group_size", b"4")],
        )
        publisher.publish_raw(ctx.topics.completions_math, "run:00000010", b"rubbish", [])
        publisher.flush_acked(30)
    with RunningService(SERVICE, ctx):
        wait_until(lambda: len(verdicts(ctx)) >= 8, 60)
        wait_until(lambda: len(list(read_all(ctx.common, ctx.codec, ctx.topics.dead_letters))) >= 2, 30)
    found = verdicts(ctx)
    assert [found[item.sample_id].status for item in sent] == [
        "correct", "wrong", "unparsable", "timeout", "error", "error", "unparsable",
    ]  # fmt: skip
    assert [found[item.sample_id].reward for item in sent] == [2.0, 0.25, -0.5, None, None, None, -0.5]
    for item in sent:
        verdict = found[item.sample_id]
        for name in set(msgspec.structs.asdict(verdict)) - OWN - {"verified_at_ms"}:
            assert getattr(verdict, name) == getattr(item, name), name
        assert verdict.gold == item.reference
    first = found[sent[0].sample_id]
    assert (first.extracted, first.stage, first.verifier) == ("0.5", "exact", "math_verifier")
    lost = found["run:00000009/3"]
    assert (lost.status, lost.reward, lost.index, lost.ordinal, lost.group_size) == ("error", None, 3, 9, 4)
    letters = list(read_all(ctx.common, ctx.codec, ctx.topics.dead_letters))
    assert {letter.key for letter in letters} == {"run:00000009", "run:00000010"}


@pytest.mark.parametrize(
    ("status", "reward"),
    [("correct", 1.0), ("wrong", 0.0), ("unparsable", 0.0), ("timeout", None), ("error", None)],
)
def test_only_decided_statuses_carry_a_reward(status: Any, reward: float | None) -> None:
    assert reward_of(status, MathConfig()) == reward
    assert reward_of("unparsable", MathConfig(unparsable_reward=None)) is None


@pytest.mark.parametrize(
    ("key", "sample_id", "group_size"),
    [
        (b"run:00000001", None, b"4"),
        (b"run:00000002", b"run:00000001/0", b"4"),
        (b"run:00000001", b"nonsense", b"4"),
        (None, b"x/1", b"4"),
        (b"run:00000001", b"run:00000001/0", None),
        (b"run:00000001", b"run:00000001/0", b"four"),
        (b"run:00000001", b"run:00000001/4", b"4"),
    ],
)
def test_a_lost_completion_without_identity_gets_no_verdict(
    key: bytes | None, sample_id: bytes | None, group_size: bytes | None
) -> None:
    found = {"sample_id": sample_id, "group_size": group_size}
    headers = {name: value for name, value in found.items() if value is not None}
    record = RawRecord("completions.math", 0, 0, key, b"", headers)
    assert lost_verdict(record, ValueError("bad"), verifier="math_verifier", kind="math") is None


def test_the_trainer_can_place_the_verdict_on_a_lost_completion() -> None:
    headers = {"sample_id": b"run:00000001/2", "group_size": b"4"}
    verdict = lost_verdict(
        RawRecord("completions.math", 0, 0, b"run:00000001", b"", headers),
        ValueError("bad"),
        verifier="math_verifier",
        kind="math",
    )
    assert verdict is not None
    assembler = Assembler(Rules("run", groups_per_step=1, max_staleness=0))
    assert assembler.offer(verdict, 0.0) == "accepted"
    assert assembler.open_groups == 1


def test_the_policy_is_a_setting() -> None:
    assert MathConfig.model_validate({"policy": {"percent": "fraction"}}).policy.percent == "fraction"
    assert MathConfig().policy == MathPolicy()


def test_the_pool_is_a_setting() -> None:
    environ = {"GRISTMILL_MATH__POOL": "ray", "GRISTMILL_MATH__RAY_RUNTIME_ENV": "{pip: [gristmill]}"}
    config = load_settings(environ=environ).section("math", MathConfig)
    assert (config.pool, config.ray_address, config.ray_runtime_env) == ("ray", None, {"pip": ["gristmill"]})


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"gristmill\[math-ray\]"):
        open_pool(MathConfig(pool="ray"))


def test_ray_is_imported_only_when_it_is_chosen() -> None:
    code = "import math_verifier.service, math_verifier.commands, sys; from math_verifier.config import MathConfig; "
    code += "from math_verifier.pool import open_pool; open_pool(MathConfig()); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_offline_rows_in_order_and_bad_rows_by_line(tmp_path: Path) -> None:
    lines = [
        '{"id": "a", "gold": "\\\\frac{1}{2}", "pred": "0.5"}',
        "not json",
        '{"id": "b", "gold": "2", "completion": "The answer is 3."}',
        "",
        '{"id": "c", "gold": "2"}',
        '{"id": "d", "gold": 2, "pred": 2.0}',
        "[1]",
        '{"gold": "2", "pred": "((", "extra": 1}',
        json.dumps({"id": "hung", "gold": HANGS[1], "pred": HANGS[0]}),
        '{"id": "half", "gold": "2", "pred": "\\ud83d"}',
        '{"id": "big", "gold": ' + "9" * 5000 + ', "pred": "1"}',
        '{"id": {"any": "json"}, "gold": "x+1", "pred": "1+x"}',
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    arguments = ["--in", str(source), "--out", str(target), "--workers", "1", "--time-limit", "1"]
    outcome = CliRunner().invoke(build(), ["verify", "math", *arguments])
    rows = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert [(row["id"], row["status"], row["correct"]) for row in rows] == [
        ("a", "correct", True), ("b", "wrong", False), ("d", "correct", True), (8, "unparsable", False),
        ("hung", "timeout", False), ("half", "unparsable", False), ({"any": "json"}, "correct", True),
    ]  # fmt: skip
    assert set(rows[0]) == {"id", "status", "correct", "extracted", "stage", "seconds"}
    assert outcome.exit_code == 1
    for number in (2, 5, 7, 11):
        assert f"line {number}:" in outcome.output
    assert outcome.output.count(f"{source}: line ") == 4
    assert "7 rows verified" in outcome.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
