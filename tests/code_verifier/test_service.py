"""The service on a real broker with real sandboxes: payloads, rewards, kill -9, replicas, and what it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import httpx
import msgspec
import pytest
import yaml

from code_verifier.config import CodeConfig
from code_verifier.container import OWNER_LABEL, SANDBOX_LABEL
from code_verifier.service import SERVICE
from gristmill.broker import free_port
from gristmill.errors import ConfigError
from gristmill.local.helpers import gristmill_command
from gristmill.local.options import LineOptions, resolve
from gristmill.messages import (
    CodeTests,
    Completion,
    Problem,
    Verdict,
    make_sample_id,
)
from gristmill.publisher import Publisher
from gristmill.reader import read_all
from gristmill.service import ServiceContext
from problem_producer.config import ProblemsConfig
from problem_producer.sequence import ProblemSequence
from support.context import apply_topics, make_context, make_problem
from support.processes import Process, gristmill, wait_until
from support.verifiers import OWN, RunningService, all_verdicts, full_completion

ADD = "```python\ndef add(a, b):\n    return a + b\n```"
TESTS = CodeTests(kind="assert", source="assert add(2, 3) == 5\nassert add(1, 1) == 2\n", entry_point="add")
DATA = Path(os.environ.get("GRISTMILL_SHARED", Path(__file__).parents[3] / "shared")) / "datasets"


def completion(problem: Problem, index: int, text: str) -> Completion:
    """What the generator would make of a problem."""
    return full_completion(
        problem.ordinal,
        index,
        text,
        run_id=problem.run_id,
        sample_id=make_sample_id(problem.group_id, index),
        group_id=problem.group_id,
        group_size=problem.group_size,
        problem_id=problem.problem_id,
        kind="code",
        source=problem.source,
        tests=problem.tests,
        policy_run_id=problem.run_id,
    )


def verdicts(ctx: ServiceContext[CodeConfig], *, repeats: bool = False) -> dict[str, Verdict]:
    """Verdicts by sample; without ``repeats`` each comes once."""
    records = all_verdicts(ctx)
    found = {verdict.sample_id: verdict for verdict in records}
    assert repeats or len(found) == len(records)
    return found


def containers(pid: int) -> list[str]:
    """Sandbox containers that a process of this machine owns."""
    with contextlib.closing(docker.from_env(timeout=30)) as client:
        found = client.api.containers(all=True, filters={"label": SANDBOX_LABEL})
        return [item["Id"] for item in found if f":{pid}:" in item["Labels"].get(OWNER_LABEL, "")]


@pytest.mark.docker
def test_completions_become_verdicts(embedded_broker: Any, prefix: str, code_config: CodeConfig) -> None:
    apply_topics(embedded_broker.bootstrap, prefix)
    config = code_config.model_copy(
        update={"time_limit_s": 1.0, "reward_passed": 2.0, "reward_failed": -1.0, "no_code_reward": -0.5}
    )
    ctx = make_context(embedded_broker.bootstrap, prefix, config, name="code_verifier", drain_timeout_s=20)
    problem = make_problem(1, kind="code", prompt=None, reference=None, tests=TESTS, group_size=11)
    broken = make_problem(2, kind="code", tests=CodeTests(kind="assert", source="assert add("), group_size=2)
    untested = make_problem(3, kind="code", group_size=1)
    texts = {
        ADD: ("correct", 2.0, "passed", "run"),
        ADD.replace("+", "-"): ("wrong", -1.0, "wrong_answer", "run"),
        ADD.replace("a + b", "c"): ("wrong", -1.0, "runtime_error", "run"),
        ADD.replace("(a, b)", "(a, b"): ("wrong", -1.0, "syntax_error", "load"),
        "while True: pass": ("wrong", -1.0, "time_limit", "run"),
        "x = bytearray(1 << 40)": ("wrong", -1.0, "memory_limit", "run"),
        "```python\nimport os\nos._exit(0)\n```": ("wrong", -1.0, "runtime_error", "run"),
        # Half a surrogate pair cannot be written as text; that must not cost the verdict.
        ADD.replace("return a + b", "raise ValueError('\\ud800')"): ("wrong", -1.0, "runtime_error", "run"),
        '{"code": "def add(a, b):\\n    return 1  # \\ud800\\n"}': ("wrong", -1.0, "syntax_error", "load"),
        "I cannot.": ("unparsable", -0.5, "no_code", "extract"),
        "<think>\n" + ADD: ("unparsable", -0.5, "no_code", "extract"),
    }
    sent = [completion(problem, index, text) for index, text in enumerate(texts)]
    errors = [completion(broken, 0, ADD), completion(broken, 1, "I cannot."), completion(untested, 0, ADD)]
    with Publisher(ctx.common, ctx.codec) as publisher:
        for item in [*sent, *errors]:
            publisher.publish(ctx.topics.completions_code, item, {"sample_id": item.sample_id})
        lost = [("sample_id", b"run:00000009/3"), ("group_size", b"4")]
        publisher.publish_raw(ctx.topics.completions_code, "run:00000009", b"rubbish", lost)
        publisher.flush_acked(30)
    with RunningService(SERVICE, ctx, stop_timeout_s=60) as service:
        wait_until(lambda: len(verdicts(ctx)) >= 15 or service.failure is not None, 90)
    found = verdicts(ctx)
    for item, expected in zip(sent, texts.values(), strict=True):
        verdict = found[item.sample_id]
        assert (verdict.status, verdict.reward, verdict.detail, verdict.stage) == expected, verdict
        for name in set(msgspec.structs.asdict(verdict)) - OWN - {"verified_at_ms"}:
            assert getattr(verdict, name) == getattr(item, name), name
        assert verdict.verifier == "code_verifier"
    assert found[sent[0].sample_id].extracted == "def add(a, b):\n    return a + b\n"
    for item in errors:
        verdict = found[item.sample_id]
        assert (verdict.status, verdict.reward, verdict.stage) == ("error", None, "tests"), verdict
    assert (found["run:00000009/3"].status, found["run:00000009/3"].kind) == ("error", "code")


@pytest.fixture
def settings(embedded_broker: Any, prefix: str, code_config: CodeConfig, tmp_path: Path) -> Path:
    """A configuration file for service processes."""
    apply_topics(embedded_broker.bootstrap, prefix)
    code = {"image": code_config.image, "workers": 1, "time_limit_s": 5.0, "concurrency": 4}
    values = {
        "bootstrap": embedded_broker.bootstrap, "topic_prefix": prefix, "run_id": "run", "code": code,
        "log_format": "json",
    }  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def service(settings: Path, name: str) -> Replica:
    port = free_port()
    arguments = ["run", "code_verifier", "--config", str(settings), "--metrics-port", str(port)]
    return Replica(gristmill_command(*arguments), settings.with_name(f"{name}.log"), port)


class Replica(Process):
    """The service as a process, with its metrics."""

    def __init__(self, command: list[str], log: Path, port: int) -> None:
        super().__init__(command, log)
        self._url = f"http://127.0.0.1:{port}"

    def read(self, path: str) -> str:
        """What it says there; nothing while it does not answer."""
        try:
            return httpx.get(f"{self._url}/{path}", timeout=5).raise_for_status().text
        except httpx.HTTPError:
            return ""


def ready(replica: Replica) -> bool:
    return bool(replica.read("readyz"))


def handled(replica: Replica) -> int:
    found = re.findall(r"^gristmill_code_verdicts_total\{.*\} ([\d.]+)", replica.read("metrics"), re.M)
    return int(sum(map(float, found)))


def code_problems(count: int) -> Iterator[tuple[Problem, str]]:
    """HumanEval and MBPP as the producer sends them, with their reference programs."""
    config = ProblemsConfig.model_validate({
        "sources": [f"humaneval:{DATA}/humaneval/HumanEval.jsonl.gz", f"mbpp:{DATA}/mbpp/sanitized-mbpp.json"],
        "group_size": 2, "shuffle": False,
    })  # fmt: skip
    sequence = ProblemSequence(config, "run")
    for ordinal, turn in zip(range(1, count + 1), sequence.turns(), strict=False):
        yield sequence.at(ordinal), sequence.rendered(turn)[1].item.solution or ""


@pytest.mark.docker
@pytest.mark.skipif(not DATA.exists(), reason=f"the datasets are not at {DATA}")
def test_killed_replicas_lose_nothing_and_leave_nothing(settings: Path, embedded_broker: Any, prefix: str) -> None:
    """Two replicas share the work; one is killed in the middle of it, the other is terminated at the end."""
    ctx: ServiceContext[Any] = make_context(embedded_broker.bootstrap, prefix)
    sent: dict[str, bool] = {}
    with service(settings, "one") as one, service(settings, "two") as two:
        for replica in (one, two):
            wait_until(lambda r=replica: r.status is not None or ready(r), 90, "ready replicas")
            assert replica.status is None, replica.text()
        with Publisher(ctx.common, ctx.codec) as publisher:
            for problem, solution in code_problems(80):
                assert problem.tests is not None
                name = problem.tests.entry_point or "f"
                for index, body in enumerate(
                    (solution.split("\n", 1)[1], f"def {name}(*a, **k):\n    return None\n```")
                ):
                    item = completion(problem, index, f"```python\nimport time\ntime.sleep(0.2)\n{body}")
                    publisher.publish(ctx.topics.completions_code, item, {"sample_id": item.sample_id})
                    sent[item.sample_id] = index == 0
            publisher.flush_acked(30)
        wait_until(lambda: all(handled(replica) >= 10 for replica in (one, two)), 90, "both replicas at work")
        assert len(containers(one.pid)) >= 2
        one.kill()
        assert len(verdicts(ctx, repeats=True)) < len(sent)
        wait_until(lambda: two.status is not None or len(verdicts(ctx, repeats=True)) == len(sent), 150, "the rest")
        assert two.status is None, two.text()
        wait_until(lambda: not containers(one.pid), 20, "the killed replica's containers to go")
        two.terminate()
        assert two.wait(60) == 0, two.text()
        assert containers(two.pid) == []
    found = verdicts(ctx, repeats=True)
    assert set(found) == set(sent)
    assert {name: verdict.status == "correct" for name, verdict in found.items()} == sent
    assert list(read_all(ctx.common, ctx.codec, ctx.topics.dead_letters)) == []


def test_without_an_engine_the_service_says_so(tmp_path: Path, embedded_broker: Any, prefix: str) -> None:
    config = CodeConfig(docker_host=f"unix://{tmp_path}/none.sock")
    ctx = make_context(embedded_broker.bootstrap, prefix, config, name="code_verifier")
    with pytest.raises(ConfigError, match="Docker engine"):
        asyncio.run(SERVICE.run(ctx))  # type: ignore[arg-type]


@pytest.mark.parametrize(("sources", "more", "verifiers"), [
    (["arithmetic"], {}, ("math_verifier",)),
    (["humaneval:x.jsonl"], {}, ("code_verifier",)),
    (["mbpp:x.jsonl", "gsm8k:y.jsonl"], {}, ("math_verifier", "code_verifier")),
    (["arithmetic"], {"local": {"verifiers": ["code", "math"]}}, ("math_verifier", "code_verifier")),
    ([{"spec": "jsonl:x.jsonl", "fields": {"kind": "code", "tests": "t"}}], {}, ("code_verifier",)),
])  # fmt: skip
def test_the_local_line_starts_the_verifiers_that_its_problems_need(
    sources: list[Any], more: dict[str, Any], verifiers: tuple[str, ...]
) -> None:
    resolved = resolve(LineOptions(flags={"problems": {"sources": sources}, **more}), "run")
    assert resolved.verifiers == verifiers


def test_a_line_with_code_needs_an_engine(tmp_path: Path, embedded_broker: Any, prefix: str) -> None:
    """It says so before it makes anything ready."""
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"task_id": 1}\n', encoding="utf-8")
    with gristmill(
        "up", f"--source=humaneval:{problems}", f"--bootstrap={embedded_broker.bootstrap}", f"--topic_prefix={prefix}",
        f"--data_dir={tmp_path / 'data'}", f"--code.docker_host=unix://{tmp_path}/none.sock", log=tmp_path / "log",
    ) as line:  # fmt: skip
        assert line.wait(120) != 0
    assert "the self-test of the code sandbox failed" in line.text()
    assert "Docker engine" in line.text()
    assert not list((tmp_path / "data").glob("runs/*/logs/engine.log"))
