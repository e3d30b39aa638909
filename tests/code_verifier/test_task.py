"""From tests and completions to jobs, and from statuses to verdicts."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from code_verifier.config import CodeConfig
from code_verifier.job import AssertTests, CallTests, CodeStatus, Job, StdioTests
from code_verifier.mapping import reward_of, stage_of, verdict_status
from code_verifier.task import BadTests, called_name, make_task, read_tests
from gristmill.messages import CodeTests, TestCase, VerdictStatus

ADD = "```python\ndef add(a, b):\n    return a + b\n```"
CASE = (TestCase(input="1 2", expected="3"),)


def test_a_job_has_the_program_and_its_tests() -> None:
    task = make_task(CodeTests(kind="assert", source="assert add(1, 2) == 3\n", time_limit_s=2.5), ADD)
    assert task.job == Job(
        "def add(a, b):\n    return a + b\n", AssertTests("assert add(1, 2) == 3\n", None, ""), True, 2.5
    )
    assert (task.program, task.how) == ("def add(a, b):\n    return a + b\n", "fence")


def test_no_program_no_job() -> None:
    task = make_task(CodeTests(kind="assert", source="assert add(1, 2) == 3\n"), "I cannot.")
    assert (task.job, task.program) == (None, None)


def test_the_prompt_goes_to_program_and_tests() -> None:
    prompt = "import math\n\ndef half(x):\n    return x / 2\n\ndef add(a, b):\n"
    tests = CodeTests(kind="assert", source="check(add)", entry_point="add", prompt=prompt)
    task = make_task(tests, "    return half(a + b) * 2\n")
    assert task.job is not None
    assert task.job.source == prompt + "    return half(a + b) * 2\n"
    assert task.job.tests == AssertTests("check(add)", "add", prompt)


def test_the_name_under_test_is_found_where_it_is_not_given() -> None:
    two = "```python\ndef add(a, b):\n    return a + b\n```\n```python\ndef show():\n    print(add(1, 2))\n```"
    task = make_task(CodeTests(kind="assert", source="import math\nassert math.isclose(add(1, 2), 3)\n"), two)
    assert task.program == "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(("source", "name"), [
    ("assert add(1) == 2", "add"),
    ("assert set(f(1)) == {1}", "f"),
    ("from x import g\nassert g(h(2))", "h"),
    ("def check(c):\n    assert c(1)\ncheck(add)", "add"),
    ("assert len([1]) == 1", None),
    ("s = Stack()\ns.push(1)", "Stack"),
    ("((", None),
])  # fmt: skip
def test_called_name(source: str, name: str | None) -> None:
    assert called_name(source) == name


def test_cases_and_checkers() -> None:
    method = read_tests(CodeTests(kind="assert", source="check(S().f)", entry_point="S().f"))
    assert method == AssertTests("check(S().f)", "S.f")
    call = CodeTests(kind="call", entry_point="S.f", cases=(TestCase(input="[1, [2]]", expected="NaN"),))
    assert isinstance(read_tests(call), CallTests)
    near = CodeTests(kind="call", entry_point="f", checker="float", cases=(TestCase(input="[]", expected="0.5"),))
    found = read_tests(near)
    assert isinstance(found, CallTests)
    assert found.tolerance == 1e-6
    for checker in ("exact", "tokens", "float"):
        found_io = read_tests(CodeTests(kind="stdio", cases=CASE, checker=checker))
        assert isinstance(found_io, StdioTests)
        assert found_io.checker == checker
    own = CodeTests(
        kind="stdio", cases=CASE, checker="custom", checker_source="def check(input, output, expected): return True"
    )
    found_io = read_tests(own)
    assert isinstance(found_io, StdioTests)
    assert found_io.checker_source is not None


@pytest.mark.parametrize(("over", "said"), [
    ({"kind": "assert", "source": ""}, "without a source"),
    ({"kind": "assert", "source": "assert add("}, "not compile"),
    ({"kind": "assert", "source": "return 1"}, "not compile"),
    ({"kind": "assert", "source": "x = 1\0"}, "not compile"),
    ({"kind": "assert", "source": "assert f()", "entry_point": "not a name"}, "not a name"),
    ({"kind": "assert", "source": "assert f()", "time_limit_s": 0.0}, "time limit"),
    ({"kind": "assert", "source": "assert f()", "time_limit_s": float("nan")}, "time limit"),
    ({"kind": "call", "cases": (TestCase(input="[1]", expected="1"),)}, "entry point"),
    ({"kind": "call", "entry_point": "f"}, "no cases"),
    ({"kind": "call", "entry_point": "f", "cases": (TestCase(input="1", expected="1"),)}, "JSON array"),
    ({"kind": "call", "entry_point": "f", "cases": (TestCase(input="[1", expected="1"),)}, "case 0: input is not JSON"),
    ({"kind": "call", "entry_point": "f", "cases": (TestCase(input="[1]", expected="x"),)}, "expected value"),
    ({"kind": "call", "entry_point": "f", "cases": (TestCase(input="[" * 100_000, expected="x"),)}, "not JSON"),
    ({"kind": "stdio"}, "no cases"),
    ({"kind": "stdio", "cases": CASE, "checker": "fuzzy"}, "no checker 'fuzzy'"),
    ({"kind": "stdio", "cases": CASE, "checker": "custom"}, "does not define check"),
    ({"kind": "stdio", "cases": CASE, "checker": "custom", "checker_source": "def check("}, "not compile"),
    ({"kind": "stdio", "cases": CASE * 10_001}, "the limit is 10000"),
])  # fmt: skip
def test_tests_that_cannot_be_used(over: dict[str, Any], said: str) -> None:
    with pytest.raises(BadTests, match=said.replace("(", r"\(")):
        make_task(CodeTests(**over), ADD)


def test_every_status_has_a_verdict() -> None:
    found = {status: verdict_status(status) for status in get_args(CodeStatus)}
    assert found.pop("passed") == "correct"
    assert found.pop("no_code") == "unparsable"
    assert found.pop("sandbox_error") == "error"
    assert set(found.values()) == {"wrong"}
    assert {stage_of(status) for status in get_args(CodeStatus)} == {"extract", "load", "run"}


def test_only_decided_statuses_carry_a_reward() -> None:
    config = CodeConfig(reward_passed=2.0, reward_failed=-1.0, no_code_reward=None)
    rewards = {status: reward_of(status, config) for status in get_args(VerdictStatus)}
    assert rewards == {"correct": 2.0, "wrong": -1.0, "unparsable": None, "timeout": None, "error": None}
    assert reward_of("unparsable", CodeConfig()) == 0.0


def test_a_search_that_is_too_deep_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that some walk cannot take must not end the verifier, which would meet it again after its restart."""

    def deep(*_: Any, **__: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr("code_verifier.task.extract", deep)
    assert make_task(CodeTests(kind="assert", source="assert add(1, 2) == 3\n"), ADD).job is None
