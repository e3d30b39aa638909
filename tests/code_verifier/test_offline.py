"""The offline command and the Python API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from code_verifier.api import HELD, verify_completion, verify_many
from code_verifier.config import CodeConfig
from code_verifier.job import Job, Outcome
from code_verifier.offline import read_row
from code_verifier.pool import SandboxPool
from code_verifier.task import BadTests
from gristmill.cli import build
from gristmill.errors import BadInput, InfrastructureError
from gristmill.messages import CodeTests

ADD = "```python\ndef add(a, b):\n    return a + b\n```"
TESTS = CodeTests(kind="assert", source="assert add(2, 3) == 5\nassert add(1, 1) == 2\n")
ROW = {"id": "a", "completion": ADD, "test_type": "assert", "tests": TESTS.source}


def line(**over: Any) -> str:
    return json.dumps({name: value for name, value in (ROW | over).items() if value is not None})


@pytest.mark.docker
def test_rows_in_order_and_bad_rows_by_line(tmp_path: Path, code_config: CodeConfig) -> None:
    slow = "```python\nimport time\ndef add(a, b):\n    time.sleep(0.4)\n    return a + b\n```"
    lines = [
        line(id="slow", completion=slow),
        "not json",
        line(id="b", completion="def add(a, b):\n    return a - b\n"),
        "",
        line(id="c", tests="assert add("),
        line(id={"any": 1}, completion="no program here"),
        "[1]",
        line(id=None, test_type="stdio", completion="print(int(input()) + 1)", tests=[{"stdin": "1", "stdout": "2"}]),
        line(id="e", test_type="call", tests=[{"input": [1, 2], "expected": 3}], entry_point="add"),
        line(id="f", test_type=None, tests={"kind": "assert", "source": "assert add(1, 2) == 3", "prompt": None}),
        line(id="g", completion="while True: pass"),
    ]
    source, target, config = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "config.yaml"
    source.write_text("\n".join(lines), encoding="utf-8")
    config.write_text(yaml.safe_dump({"code": {"image": code_config.image}}), encoding="utf-8")
    arguments = ["verify", "code", "--in", str(source), "--out", str(target), "--config", str(config)]
    outcome = CliRunner().invoke(build(), [*arguments, "--workers", "2", "--time-limit", "2"])
    rows = [json.loads(text) for text in target.read_text(encoding="utf-8").splitlines()]
    assert [(row["id"], row["status"], row["correct"]) for row in rows] == [
        ("slow", "passed", True), ("b", "wrong_answer", False), ({"any": 1}, "no_code", False), (8, "passed", True),
        ("e", "passed", True), ("f", "passed", True), ("g", "time_limit", False),
    ]  # fmt: skip
    assert set(rows[0]) == {"id", "status", "correct", "tests", "seconds", "peak_bytes"}
    assert [test["status"] for test in rows[0]["tests"]] == ["passed", "passed"]
    assert [test["status"] for test in rows[1]["tests"]] == ["wrong_answer"]
    assert rows[0]["seconds"] >= 0.4
    assert rows[0]["peak_bytes"] > 1 << 20
    assert outcome.exit_code == 1
    for number in (2, 5, 7):
        assert f"line {number}:" in outcome.output
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_without_an_engine_nothing_is_run(tmp_path: Path) -> None:
    source, target, config = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "config.yaml"
    source.write_text(line() + "\n", encoding="utf-8")
    config.write_text(yaml.safe_dump({"code": {"docker_host": f"unix://{tmp_path}/none.sock"}}), encoding="utf-8")
    arguments = ["verify", "code", "--in", str(source), "--out", str(target), "--config", str(config)]
    outcome = CliRunner().invoke(build(), arguments)
    assert outcome.exit_code != 0
    assert "Docker" in str(outcome.exception)
    assert not target.exists()


@pytest.mark.parametrize(("over", "said"), [
    ({"completion": None}, '"completion" must be text'),
    ({"completion": 5}, '"completion" must be text'),
    ({"test_type": "magic"}, '"test_type" must be one of'),
    ({"test_type": None}, '"test_type" must be one of'),
    ({"tests": 5}, "must be Python source"),
    ({"tests": None}, "must be Python source"),
    ({"test_type": "stdio", "tests": "assert"}, "must be a list of cases"),
    ({"test_type": "stdio", "tests": [{"stdin": "1"}]}, 'case 0 of "tests" must be an object'),
    ({"test_type": "stdio", "tests": [{"stdin": 1, "stdout": "1"}]}, "must be text"),
    ({"test_type": "stdio", "tests": []}, "no cases"),
    ({"test_type": "call", "tests": [{"input": [1], "expected": 1}]}, "entry point"),
    ({"test_type": "call", "entry_point": "f", "tests": [{"input": 1, "expected": 1}]}, "JSON array"),
    ({"entry_point": 5}, '"entry_point" must be text'),
    ({"prompt": ["x"]}, '"prompt" must be text'),
    ({"time_limit_s": "1"}, "number of seconds"),
    ({"time_limit_s": -1}, "time limit"),
    ({"tests": {"kind": "magic"}}, '"tests": Invalid enum'),
])  # fmt: skip
def test_bad_rows(over: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        read_row(line(**over), 7)
    assert str(error.value).startswith("line 7: ")
    assert said in str(error.value)


def test_lists_of_asserts_and_all_fields() -> None:
    row = read_row(line(tests=["assert add(1, 2) == 3", "assert add(0, 0) == 0"], prompt="def add(a, b):\n",
                        entry_point="add", time_limit_s=2), 1)  # fmt: skip
    assert row.tests == CodeTests(
        kind="assert", source="assert add(1, 2) == 3\nassert add(0, 0) == 0", entry_point="add", time_limit_s=2.0,
        prompt="def add(a, b):\n",
    )  # fmt: skip


class Pool:
    """Answers jobs when it is told to; its first ``failures`` answers are that the engine is away."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.open = 0
        self.most = 0

    def submit(self, job: Job) -> Future[Outcome]:
        pool = self
        self.open += 1
        self.most = max(self.most, self.open)

        class Answer(Future[Outcome]):
            def done(self) -> bool:
                return False

            def result(self, timeout: float | None = None) -> Outcome:
                pool.open -= 1
                if pool.failures:
                    pool.failures -= 1
                    raise InfrastructureError("away")
                return Outcome("passed")

        return Answer()


def test_an_endless_input_is_held_in_part() -> None:
    def rows() -> Iterator[tuple[str, CodeTests]]:
        while True:
            yield ADD, TESTS

    pool = Pool()
    results = verify_many(rows(), pool=pool)
    assert [next(results).status for _ in range(3 * HELD)] == ["passed"] * 3 * HELD
    assert pool.most == HELD


def test_an_engine_that_comes_back_is_waited_for() -> None:
    assert verify_completion(ADD, TESTS, pool=Pool(failures=2)).correct


@pytest.mark.docker
def test_the_api_says_what_happened(shared_pool: SandboxPool) -> None:
    result = verify_completion(ADD, TESTS, pool=shared_pool)
    assert (result.status, result.correct, result.how, len(result.tests)) == ("passed", True, "fence", 2)
    text = "def add(a, b):\n    print('hello', flush=True)\n    return a * b\n"
    wrong = verify_completion(text, TESTS, stop_at_first_failure=False, pool=shared_pool)
    assert [test.status for test in wrong.tests] == ["wrong_answer", "wrong_answer"]
    assert wrong.stdout == "hello\nhello\n"
    assert wrong.program == text
    assert verify_completion("nothing", TESTS, pool=shared_pool).status == "no_code"
    with pytest.raises(BadTests):
        verify_completion(ADD, CodeTests(kind="assert", source="assert ("), pool=shared_pool)
