"""The trainer on a real broker, with a stand-in for the rest of the line."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from trainer_line import (
    Line,
    MakeGroup,
    audit,
    default_group,
    make_common,
    make_context,
    policies_of,
    rejections_of,
    steps_of,
)
from trainer_process import train_to
from trainer_synthetic import make_group, make_verdict

from gristmill.artifacts import from_uri, verify_dir
from gristmill.broker import EmbeddedBroker
from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.errors import ConfigError
from gristmill.messages import Verdict
from gristmill.publisher import Publisher
from gristmill.reader import read_all
from gristmill.service import ServiceContext
from gristmill.topics import Topics
from grpo_trainer.config import TrainerConfig
from grpo_trainer.service import run

pytestmark = pytest.mark.slow

Start = Callable[..., ServiceContext[TrainerConfig]]


@contextmanager
def lines(common: CommonConfig, count: int = 1, make: MakeGroup = default_group, **more: Any) -> Iterator[list[Line]]:
    """``count`` generators that share the ordinals."""
    running = [Line(common, make=make, share=(number, count), **more) for number in range(count)]
    for line in running:
        line.start()
    try:
        yield running
    finally:
        for line in running:
            line.close()


@pytest.fixture
def common(embedded_broker: EmbeddedBroker, prefix: str, tmp_path: Path) -> CommonConfig:
    return make_common(embedded_broker.bootstrap, prefix.rstrip("."), tmp_path / "data")


@pytest.fixture
def either(broker: Any, prefix: str, tmp_path: Path) -> CommonConfig:
    """On the embedded broker and on Apache Kafka."""
    return make_common(broker.bootstrap, prefix.rstrip("."), tmp_path / "data")


def troubled(ordinal: int, version: int) -> list[Verdict]:
    """Every second group is filtered, and some fail in each of the ways that groups can."""
    group = make_group(ordinal, version=version, varied=ordinal % 2 == 1)
    match ordinal % 7:
        case 0:
            return [make_verdict(ordinal, -1, group_size=0, status="error", reason="undecodable problem")]
        case 1:
            return [*group[:3], make_verdict(ordinal, 3, status="timeout")]
        case 2:
            return [make_verdict(ordinal, index, status="error") for index in range(4)]
        case 3:
            return [*group, *group]
        case _:
            return group


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
def test_the_bound_holds_and_nothing_deadlocks(max_staleness: int, either: CommonConfig, policy_dir: Path) -> None:
    """Two generators share the credit, every second group is filtered, groups fail."""
    common = either
    context = make_context(common, policy_dir, max_versions=5, max_staleness=max_staleness, incomplete_timeout_s=5.0)
    with lines(common, 2, troubled):
        run(context)
    steps, policies, report = steps_of(common), policies_of(common), audit(common)
    assert [step.version for step in steps] == [1, 2, 3, 4, 5]
    assert all(0 <= step.version - 1 - v <= max_staleness for step in steps for v in step.policy_versions)
    assert report.balanced, report.breaches
    assert report.filtered > 0
    assert report.failed > 0
    credit = [policy.admit_until for policy in policies]
    assert credit == sorted(credit), "credit never goes back"
    assert [p.version for p in policies] == sorted(p.version for p in policies)
    last = policies[-1]
    assert (last.trained, last.filtered, last.failed, last.rejected) == (
        report.trained,
        report.filtered,
        report.failed,
        report.rejected,
    )
    first_of = {policy.version: policy for policy in reversed(policies)}
    for policy in first_of.values():
        assert policy.admit_until == policy.settled_groups + (max_staleness + 1) * 2


def test_incomplete_groups_give_their_credit_back(common: CommonConfig, policy_dir: Path) -> None:
    def make(ordinal: int, version: int) -> list[Verdict]:
        return make_group(ordinal, version=version)[: 1 if ordinal % 2 else 4]

    context = make_context(common, policy_dir, max_versions=2, incomplete_timeout_s=0.5)
    with lines(common, make=make):
        run(context)
    assert {r.why for r in rejections_of(common)} == {"incomplete"}
    assert all(int(group_id[-1]) % 2 == 0 for step in steps_of(common) for group_id in step.group_ids)
    assert audit(common).balanced


def test_versions_are_served_as_they_were_trained(common: CommonConfig, policy_dir: Path) -> None:
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    with lines(common):
        run(make_context(common, policy_dir, max_versions=2))
    newest = {policy.version: policy for policy in policies_of(common)}
    assert [newest[v].name for v in (0, 1, 2)] == ["run-v0", "run-v1", "run-v2"]
    for policy in newest.values():
        folder = verify_dir(policy.uri, policy.sha256)
        assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
        settings = json.loads((folder / "adapter_config.json").read_text())
        assert (settings["r"], settings["lora_alpha"], settings["bias"]) == (4, 8, "none")
        assert not settings["use_rslora"]
        assert not settings["use_dora"]
    zero = load_file(from_uri(newest[0].uri) / "adapter_model.safetensors")
    assert all(not tensor.any() for name, tensor in zero.items() if "lora_B" in name), "version 0 is the base policy"
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(policy_dir), str(from_uri(newest[2].uri)))
    trained = load_file(common.data_dir / "runs/run/checkpoints/00000002-0001/weights.safetensors")
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            assert parameter.equal(trained[name])


def test_full_weights_are_published_whole(common: CommonConfig, policy_dir: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with lines(common):
        run(make_context(common, policy_dir, max_versions=1, weights="full"))
    policy = policies_of(common)[-1]
    assert policy.kind == "full"
    folder = verify_dir(policy.uri, policy.sha256)
    AutoTokenizer.from_pretrained(folder)
    model, base = AutoModelForCausalLM.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(policy_dir)
    changed = [n for (n, a), b in zip(model.named_parameters(), base.parameters(), strict=True) if not a.equal(b)]
    assert changed


def test_a_resumed_run_is_the_uninterrupted_one(
    embedded_broker: EmbeddedBroker, prefix: str, policy_dir: Path, tmp_path: Path
) -> None:
    """Equal to the last bit, with dropout drawing from the random state and a schedule that moves."""
    weights: list[bytes] = []
    adapter = {"r": 4, "alpha": 8, "dropout": 0.2}
    for name, stops, every in (("whole", [4], 1), ("parts", [2, 4], 1), ("sparse", [3, 4], 5)):
        common = make_common(embedded_broker.bootstrap, f"{prefix}{name}", tmp_path / name)
        with lines(common):
            for stop in stops:
                context = make_context(
                    common, policy_dir, max_versions=stop, lora=adapter, lr_scheduler="constant_with_warmup",
                    warmup_steps=3, checkpoint_every=every,
                )  # fmt: skip
                run(context)
        folder = common.data_dir / "runs/run/checkpoints/00000004-0001"
        weights.append((folder / "weights.safetensors").read_bytes())
        assert [step.step for step in steps_of(common)] == [1, 2, 3, 4]
        assert audit(common).balanced
    assert weights[0] == weights[1] == weights[2]


def test_foreign_runs_and_versions_that_go_back_are_never_trained_on(common: CommonConfig, policy_dir: Path) -> None:
    def make(ordinal: int, version: int) -> list[Verdict]:
        foreign = make_group(ordinal, version=version, run_id="another")
        if ordinal % 3 == 0:
            return [*foreign, *make_group(ordinal, version=version + 5)]
        if ordinal % 3 == 1 and ordinal > 3:
            policy = make_verdict(ordinal, 0, version=version, reward=0.5, policy_run_id="another")
            return [*foreign, policy, *make_group(ordinal, version=version)[1:]]
        return [*foreign, *make_group(ordinal, version=version)]

    with lines(common, make=make):
        run(make_context(common, policy_dir, max_versions=3))
    trained = {sample_id for step in steps_of(common) for sample_id in step.sample_ids}
    assert all(sample_id.startswith("run:") for sample_id in trained)
    assert all(int(sample_id[4:12]) % 3 == 2 or int(sample_id[4:12]) <= 2 for sample_id in trained)
    rejected = rejections_of(common)
    assert {r.why for r in rejected} == {"invalid"}
    assert {r.run_id for r in rejected} == {"run"}
    assert audit(common).balanced


def test_what_is_no_verdict_goes_to_the_dead_letters(common: CommonConfig, policy_dir: Path) -> None:
    topics = Topics(common.topic_prefix)
    with Publisher(common, Codec()) as publisher:
        publisher.publish_raw(topics.verdicts, "run:00000001", b"\x00garbage")
        forged = make_verdict(1, 0)
        publisher.publish(topics.verdicts, type(forged)(**{**vars_of(forged), "ordinal": 9}))
    with lines(common):
        run(make_context(common, policy_dir, max_versions=1))
    letters = list(read_all(common, Codec(), topics.dead_letters))
    assert len(letters) == 2
    assert {letter.header("service") for letter in letters} == {"grpo_trainer"}
    assert audit(common).trained == 8


def vars_of(verdict: Verdict) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in verdict.__struct_fields__}


def test_a_new_log_keeps_the_weights_and_starts_the_books_anew(
    embedded_broker: EmbeddedBroker, prefix: str, policy_dir: Path, tmp_path: Path
) -> None:
    """The broker lost its memory: the topics are there, and empty."""
    old = make_common(embedded_broker.bootstrap, f"{prefix}old", tmp_path / "data")
    with lines(old):
        run(make_context(old, policy_dir, max_versions=2))
    new = make_common(embedded_broker.bootstrap, f"{prefix}new", tmp_path / "data")
    with lines(new):
        run(make_context(new, policy_dir, max_versions=3))
        run(make_context(new, policy_dir, max_versions=4))
    assert policies_of(new)[0].version == 2
    assert policies_of(new)[0].sha256 == policies_of(old)[-1].sha256
    assert [step.step for step in steps_of(new)] == [3, 4]
    assert steps_of(new)[0].group_ids == ("run:00000001", "run:00000002")
    assert audit(new).balanced


def test_offsets_that_are_gone_neither_hang_nor_skip(either: CommonConfig, policy_dir: Path) -> None:
    common = either
    with lines(common, last=8) as (line,):
        run(make_context(common, policy_dir, max_versions=2))
        path = common.data_dir / "runs/run/checkpoints/00000002-0001/state.json"
        state = json.loads(path.read_text())
        state["read_from"] = {partition: 10_000 for partition in ("0", "1")}
        path.write_text(json.dumps(state))
        run(make_context(common, policy_dir, max_versions=4))
        assert len(line.emitted) == 4 * 8
    assert [step.step for step in steps_of(common)] == [1, 2, 3, 4]
    assert audit(common).balanced


def test_a_lost_checkpoint_is_refused_not_papered_over(common: CommonConfig, policy_dir: Path) -> None:
    with lines(common):
        run(make_context(common, policy_dir, max_versions=2))
    shutil.rmtree(common.data_dir / "runs/run/checkpoints/00000002-0001")
    with pytest.raises(ConfigError, match=r"has version 2.*newest checkpoint is of version 1.*run_id"):
        run(make_context(common, policy_dir, max_versions=3))
    shutil.rmtree(common.data_dir)
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        run(make_context(common, policy_dir, max_versions=3))


def test_one_trainer_per_run(common: CommonConfig, policy_dir: Path) -> None:
    first = make_context(common, policy_dir)
    thread = threading.Thread(target=run, args=(first,))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not policies_of(common) and time.monotonic() < deadline:
            time.sleep(0.1)
        with pytest.raises(ConfigError, match="another trainer"):
            run(make_context(common, policy_dir))
    finally:
        first.stop.set()
        thread.join(60)
    assert not thread.is_alive(), "it drains while it waits for a batch"


def test_a_restart_announces_the_settings_of_now(common: CommonConfig, policy_dir: Path) -> None:
    for max_staleness, groups_per_step in ((0, 2), (3, 4)):
        ctx = make_context(common, policy_dir, max_staleness=max_staleness, groups_per_step=groups_per_step)
        ctx.stop.set()
        run(ctx)
        last = policies_of(common)[-1]
        assert (last.version, last.max_staleness, last.groups_per_step) == (0, max_staleness, groups_per_step)
        assert last.admit_until == (max_staleness + 1) * groups_per_step


def test_a_data_folder_that_cannot_be_written_is_named(common: CommonConfig, policy_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    elsewhere = common.model_copy(update={"data_dir": tmp_path / "file"})
    with pytest.raises(ConfigError, match=r"data_dir: cannot write .*file.*Not a directory"):
        run(make_context(elsewhere, policy_dir))


@pytest.mark.parametrize("values", [{"base_model": "/nowhere"}, {"lora": {"target_modules": ("c_attn",)}}])
def test_models_that_cannot_be_used_are_named(values: dict[str, Any], common: CommonConfig, policy_dir: Path) -> None:
    context = make_context(common, policy_dir)
    context.config = TrainerConfig.model_validate({"base_model": str(policy_dir)} | values)
    with pytest.raises(ConfigError, match=r"base_model|target_modules"):
        run(context)


@pytest.mark.timeout(300)
def test_killed_at_any_moment_it_trains_nothing_twice_and_loses_nothing(either: CommonConfig, policy_dir: Path) -> None:
    """kill -9 again and again, at random; the topics alone prove that every sample ended exactly once."""
    rng = random.Random(7)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["grpo_trainer.run", "trainer_process"])
    arguments = (either.bootstrap, either.topic_prefix.rstrip("."), str(either.data_dir), str(policy_dir), 20)

    def newest() -> int:
        return max((policy.version for policy in policies_of(either)), default=-1)

    with lines(either, 2, troubled):
        for _ in range(5):
            wanted = newest() + rng.randrange(0, 4)
            process = processes.Process(target=train_to, args=arguments)
            process.start()
            while process.exitcode is None and newest() < wanted:
                time.sleep(0.02)
            time.sleep(rng.random() * 0.3)
            process.kill()
            process.join()
            assert process.exitcode in (-signal.SIGKILL, 0), "0 only when it was done first"
        process = processes.Process(target=train_to, args=arguments)
        process.start()
        process.join(120)
        assert process.exitcode == 0
    report, steps = audit(either), steps_of(either)
    assert [step.step for step in steps] == list(range(1, 21))
    trained = [sample_id for step in steps for sample_id in step.sample_ids]
    assert len(trained) == len(set(trained))
    assert report.balanced, report.breaches
    credit = [policy.admit_until for policy in policies_of(either)]
    assert credit == sorted(credit)
