"""All 1,565 reference programs pass their own tests, on the way that problems go in the line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from code_verifier.api import verify_many
from code_verifier.config import CodeConfig
from code_verifier.pool import SandboxPool
from gristmill.messages import CodeTests
from problem_producer.adapters import adapter_for
from problem_producer.config import SourceConfig
from problem_producer.items import Item
from problem_producer.rows import open_file

DATA = Path(os.environ.get("GRISTMILL_SHARED", Path(__file__).parents[3] / "shared")) / "datasets"
SETS = {
    "humaneval": (SourceConfig(kind="humaneval", path=DATA / "humaneval" / "HumanEval.jsonl.gz"), 164),
    "mbpp": (SourceConfig(kind="mbpp", path=DATA / "mbpp" / "mbpp.jsonl", challenge=True), 974),
    "sanitized": (SourceConfig(kind="mbpp", path=DATA / "mbpp" / "sanitized-mbpp.json"), 427),
}

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not DATA.exists(), reason=f"the datasets are not at {DATA}"),
]


@pytest.fixture(scope="module")
def pool(code_config: CodeConfig) -> Iterator[SandboxPool]:
    """With time enough on a busy machine: mbpp/123 alone takes seconds."""
    with SandboxPool(code_config.model_copy(update={"time_limit_s": 60.0, "job_limit_s": 60.0})) as pool:
        yield pool


def items(name: str) -> list[Item]:
    source, count = SETS[name]
    assert source.path is not None
    adapt = adapter_for(source, name)
    rows = open_file(source.path)
    assert len(rows) == count
    return [adapt(rows.row(index)) for index in range(count)]


def checks_of(item: Item) -> CodeTests:
    assert item.tests is not None
    return item.tests


@pytest.mark.parametrize("name", SETS)
def test_references_pass(name: str, pool: SandboxPool) -> None:
    found = items(name)
    rows = [(item.solution or "", checks_of(item)) for item in found]
    failed = [
        f"{item.problem_id}: {result.status}: {result.reason}"
        for item, result in zip(found, verify_many(rows, pool=pool), strict=True)
        if not result.correct
    ]
    assert not failed


def test_bodies_that_continue_the_prompt_pass(pool: SandboxPool) -> None:
    """HumanEval's references as a model that completes text writes them."""
    found = items("humaneval")
    rows = [(str(item.row["canonical_solution"]), checks_of(item)) for item in found]
    results = list(verify_many(rows, pool=pool))
    assert {result.how for result in results} == {"continuation"}
    assert [item.problem_id for item, result in zip(found, results, strict=True) if not result.correct] == []


def test_functions_without_what_the_prompt_defines_pass(pool: SandboxPool) -> None:
    """The function alone: imports and helpers come from the prompt."""
    rows = []
    found = items("humaneval")
    for item in found:
        whole = item.row["prompt"] + item.row["canonical_solution"]
        start = whole.index(f"def {item.row['entry_point']}(")
        rows.append((f"```python\n{whole[start:]}\n```", checks_of(item)))
    results = list(verify_many(rows, pool=pool))
    assert [item.problem_id for item, result in zip(found, results, strict=True) if not result.correct] == []


def test_a_function_that_gives_nothing_fails_everywhere(pool: SandboxPool) -> None:
    """No problem's tests pass by themselves."""
    found = [item for item in items("humaneval") if item.tests is not None and item.tests.entry_point is not None]
    stub = "```python\ndef {}(*args, **kwargs):\n    return None\n```"
    rows = [(stub.format(checks_of(item).entry_point), checks_of(item)) for item in found]
    results = list(verify_many(rows, pool=pool))
    assert [item.problem_id for item, result in zip(found, results, strict=True) if result.correct] == []
    assert {result.status for result in results} <= {"wrong_answer", "runtime_error"}
