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

from code_verifier.job import AssertTests, Case, Job, Outcome, StdioTests
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
