"""No program is paid for nothing, and none is refused for being odd. See :mod:`cheats` for the programs."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cheats import CHEATS, HONEST, RIGHT, Program

from code_verifier.config import CodeConfig
from code_verifier.job import AssertTests, CallTests, Case, Job, Outcome, StdioTests
from code_verifier.pool import SandboxPool

pytestmark = pytest.mark.docker

HANDED = Path(os.environ.get("GRISTMILL_SHARED", Path(__file__).parents[3] / "shared")) / "cases" / "code_handed.jsonl"
SPOKEN = {
    "timeout": "time_limit",
    "not_completed": "runtime_error",
    "tampered": "runtime_error",
    "killed": "runtime_error",
}
CONTROL = Job(RIGHT, AssertTests("assert add(2, 3) == 5"))


def _handed() -> list[dict[str, Any]]:
    """Rows of programs that misbehave; the others are extraction's and the offline command's to test."""
    if not HANDED.exists():
        return []
    rows = [json.loads(line) for line in HANDED.read_text().splitlines()]
    return [row for row in rows if row["id"][:2] in {"rs", "rh", "ba", "io"}]


def _job(row: dict[str, Any]) -> Job:
    source = row["completion"].partition("```python\n")[2].rpartition("```")[0] or row["completion"]
    if row["test_type"] == "stdio":
        return Job(source, StdioTests(tuple(Case(t["stdin"], t["stdout"]) for t in row["tests"]), "float"), time_s=10.0)
    return Job(
        source,
        AssertTests(row["tests"], row["entry_point"]),
        time_s=3.0 if "timeout" in row["expected_status"] else 15.0,
    )


@pytest.fixture(scope="module")
def outcomes(shared_pool: SandboxPool) -> dict[str, Outcome]:
    """All programs run, two at a time."""
    jobs = {program.name: program.job for program in CHEATS + HONEST} | {row["id"]: _job(row) for row in _handed()}
    with ThreadPoolExecutor(2) as executor:
        return dict(zip(jobs, executor.map(shared_pool.run, jobs.values()), strict=True))


@pytest.mark.parametrize("program", CHEATS, ids=lambda p: p.name)
@pytest.mark.timeout(300)
def test_cheat_is_not_paid(outcomes: dict[str, Outcome], program: Program) -> None:
    outcome = outcomes[program.name]
    wanted = (program.status,) if isinstance(program.status, str) else program.status
    assert outcome.status in wanted, outcome
    assert "passed" not in wanted
    assert "sandbox_error" not in wanted
    assert len(outcome.stdout) <= 9_000
    assert len(outcome.stderr) <= 9_000


@pytest.mark.parametrize("program", HONEST, ids=lambda p: p.name)
@pytest.mark.timeout(300)
def test_honest_program_passes(outcomes: dict[str, Outcome], program: Program) -> None:
    assert outcomes[program.name].status == "passed", outcomes[program.name]


@pytest.mark.parametrize("row", _handed(), ids=lambda row: row["id"])
@pytest.mark.timeout(300)
def test_handed_row(outcomes: dict[str, Outcome], row: dict[str, Any]) -> None:
    outcome = outcomes[row["id"]]
    allowed = {SPOKEN.get(word, word) for word in row["expected_status"]}
    if row["contested"]:
        # The policy, where judges differ: see docs/code-sandbox.md.
        assert outcome.status != "sandbox_error", outcome
        return
    assert outcome.status in allowed, outcome
    assert (outcome.status == "passed") == (row["expected_verdict"] == "pass")


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("assert add(2, 3 == 5", "do not compile"),
        ("assert 1 == 1", "never used the program"),
        ("def check(candidate):\n    assert candidate(2, 3) == 5\n", "never used the program"),
        ("import unittest\nclass T(unittest.TestCase):\n    x = add\n", "never used the program"),
        ("import no_such_module\nassert add(2, 3) == 5", "failed by themselves"),
        ("assert 1 == 2\nassert add(2, 3) == 5", None),
        ("undefined = 1 / 0\nassert add(2, 3) == 5", "failed by themselves"),
        ("while True: pass", "by themselves"),
        ("class B(Base): pass\nassert B().x == 1", "derive a class"),
        ("x = 0\nfor _ in range(1000): x = [x]\nassert add(x, x) == 5", "cannot be carried"),
        ("import time\ntime.time = lambda: 0\nassert add(2, 3) == 5", "set time.time"),
        ("from unittest.mock import patch\nwith patch('time.time'):\n    assert add(2, 3) == 5", "patch 'time.time'"),
        ("import os\nos.environ['X'] = '1'\nassert add(2, 3) == 5", "set os.environ"),
        ("with open('numbers', 'w') as f:\n    f.write('1')\nassert add(2, 3) == 5", "prepare by open"),
        ("", None),
        ("import os\nos._exit(0)", "ended their own process"),
        ("import os\nos._exit(3)", "ended their own process"),
        ("import os\nassert add(2, 3) == 5\nos._exit(0)", "ended their own process"),
        ("x = add(2, 3)\ndef test_add(fixture):\n    assert x == fixture", "takes arguments"),
        (
            "x = add(2, 3)\nclass TestAdd:\n    def test_add(self, a):\n        assert x == a",
            "takes arguments",
        ),
    ],
)
def test_tests_that_cannot_decide_say_nothing_of_the_program(
    shared_pool: SandboxPool, tests: str, reason: str | None
) -> None:
    source = RIGHT + "class Base:\n    x = 1\n"
    outcome = shared_pool.run(Job(source, AssertTests(tests), time_s=5.0 if "while" in tests else 20.0))
    if reason is None:
        assert outcome.status in {"sandbox_error", "wrong_answer"}
    else:
        assert outcome.status == "sandbox_error", outcome
        assert reason in outcome.reason


def test_each_assert_is_a_test(shared_pool: SandboxPool) -> None:
    source = "def f(x):\n    if x == 3:\n        raise KeyError(x)\n    return 1"
    tests = AssertTests("y = 1\nassert f(1) == y\nassert f(2) == 2, 'no'\nassert f(3) == 1\nassert f(4) == y\n")
    first = shared_pool.run(Job(source, tests))
    assert [test.status for test in first.tests] == ["passed", "wrong_answer"]
    assert first.reason == "AssertionError: no at line 3 of the tests: assert f(2) == 2, 'no'"
    both = shared_pool.run(Job(source, tests, stop_at_first_failure=False))
    assert [test.status for test in both.tests] == ["passed", "wrong_answer", "runtime_error", "passed"]
    assert both.status == "wrong_answer"
    assert both.tests[2].reason == "KeyError: 3 (line 3, in f of the program) at line 4 of the tests: assert f(3) == 1"
    assert [test.index for test in both.tests] == [0, 1, 2, 3]


def test_each_case_is_a_test(shared_pool: SandboxPool) -> None:
    job = Job(
        "def f(x):\n    return x + 1",
        CallTests("f", (Case("[1]", "2"), Case("[1]", "3"), Case('["a"]', "1"), Case("[0.1]", "1.1"))),
        stop_at_first_failure=False,
    )
    outcome = shared_pool.run(job)
    assert [test.status for test in outcome.tests] == ["passed", "wrong_answer", "runtime_error", "passed"]
    assert "got 2, expected 3" in outcome.reason
    bad = shared_pool.run(Job("def f(x): ...", CallTests("f", (Case("{}", "2"),))))
    assert bad.status == "sandbox_error"
    missing = shared_pool.run(Job("def g(x): ...", CallTests("f", (Case("[1]", "2"),))))
    assert missing.status == "runtime_error"


def test_a_checker_that_is_none(shared_pool: SandboxPool) -> None:
    for source in ("def chek(a, b, c): return True", "def check(", "import nothing_at_all", "raise SystemExit(0)"):
        tests = StdioTests((Case("", "5"),), "custom", source)
        assert shared_pool.run(Job("print(5)", tests)).status == "sandbox_error"


@pytest.mark.parametrize(
    "checker",
    [
        "def check(output, expected): return True",
        "def check(input, output, expected): return outptu == expected",
        "def check(input, output, expected): output == expected",
        "import os\ndef check(input, output, expected): os._exit(0)",
        "def check(input, output, expected): raise SystemExit(0)",
        "def check(input, output, expected):\n    while True: pass",
    ],
)
def test_a_checker_that_cannot_take_what_is_expected(shared_pool: SandboxPool, checker: str) -> None:
    outcome = shared_pool.run(Job("print(6)", StdioTests((Case("", "5"),), "custom", checker)))
    assert outcome.status == "sandbox_error", outcome
    assert shared_pool.run(CONTROL).status == "passed"


@pytest.mark.parametrize(
    ("expected", "status"), [("", "wrong_answer"), ("many answers are right", "wrong_answer"), ("5", "wrong_answer")]
)
def test_a_checker_fails_on_the_programs_output(shared_pool: SandboxPool, expected: str, status: str) -> None:
    checker = "def check(input, output, expected): return len(output) < 9 and (expected != output or int(output) == 5)"
    tests = StdioTests((Case("", expected),), "custom", checker)
    assert shared_pool.run(Job("print('no number')", tests)).status == status
    assert shared_pool.run(Job("print(5)", tests)).status == "passed"


def test_peak_and_output_are_reported(shared_pool: SandboxPool) -> None:
    source = (
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\n"
        "def add(a, b):\n    x = b'x' * (100 << 20)\n    print('call')\n    return a + b"
    )
    outcome = shared_pool.run(Job(source, AssertTests("assert add(2, 3) == 5"), time_s=20.0))
    assert outcome.status == "passed"
    assert (outcome.stdout, outcome.stderr) == ("out\ncall\n", "err\n")
    assert outcome.peak_bytes > 100 << 20
    assert outcome.seconds > 0


def test_sandbox_is_as_new_after_all_of_them(outcomes: dict[str, Outcome], shared_pool: SandboxPool) -> None:
    for _ in range(4):
        assert shared_pool.run(CONTROL).status == "passed"
    assert shared_pool.counts.broken == 0
    look = Job(
        "import os\ndef look():\n    return (sorted(os.listdir('/tmp')), os.listdir('/dev/shm'),"
        " sorted(int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()))",
        AssertTests("assert look() == (['work'], [], [1])"),
    )
    for _ in range(4):
        outcome = shared_pool.run(look)
        assert outcome.status == "passed", outcome


def test_verdicts_repeat(shared_pool: SandboxPool) -> None:
    """The hash seed and the random state are fixed, so a program that depends on them has one verdict."""
    job = Job(
        "import random\ndef f(d):\n    print(list(d), random.random())\n    return list(d)[0]\n",
        AssertTests("assert f({'a', 'b', 'c'}) == 'a'"),
    )
    first = shared_pool.run(job)
    assert all(shared_pool.run(job).stdout == first.stdout for _ in range(6))


SEARCH = r"""
import re
mark = re.compile(rb'secre[t](sourc|outpu)[et]')
def search():
    found = 0
    for line in open('/proc/self/maps'):
        first, last, flags, rest = re.match(r'(\w+)-(\w+) (\S+)(.*)', line).groups()
        if flags[0] != 'r' or '[v' in rest:
            continue
        with open('/proc/self/mem', 'rb', 0) as memory:
            memory.seek(int(first, 16))
            try:
                found += len(mark.findall(memory.read(int(last, 16) - int(first, 16))))
            except OSError:
                continue
    return found
def control():
    global kept
    kept = b''.join([b'secret', b'source'])
    return search() > 0
"""


def test_nothing_of_one_program_is_in_the_memory_of_the_next(shared_pool: SandboxPool) -> None:
    """Another's right answer to the same problem would be worth finding."""
    left = Job("secretsource = 1\nprint('secretoutput' * 3)" + RIGHT, AssertTests("assert add(2, 3) == 5"))
    search = Job(SEARCH, AssertTests("assert search() == 0\nassert control()"))
    for _ in range(4):
        assert shared_pool.run(left).status == "passed"
        outcome = shared_pool.run(search)
        assert outcome.status == "passed", outcome


LITTERS = """
import os, time
n = int(input())
print(n, flush=True)
if n == 2:
    begun = time.time()
    for root in ("/tmp", "/dev/shm"):
        os.chdir(root)
        try:
            for i in range(90):
                os.mkdir(f"d{i}")
                for j in range(90):
                    os.mkdir(f"d{i}/e{j}")
                    os.mkdir(f"d{i}/e{j}/f")
        except OSError:
            pass
    time.sleep(max(0, 3.8 - (time.time() - begun)))
"""


@pytest.mark.timeout(120)
def test_litter_near_the_jobs_end_is_no_checkers_fault(code_config: CodeConfig) -> None:
    checker = "def check(input, output, expected):\n    return int(output) == int(expected)\n"
    tests = StdioTests((Case("1", "1"), Case("2", "4")), "custom", checker)
    with SandboxPool(code_config.model_copy(update={"workers": 1, "job_limit_s": 4.0})) as pool:
        assert pool.run(Job(LITTERS, tests, time_s=60.0)).status in {"wrong_answer", "time_limit"}
