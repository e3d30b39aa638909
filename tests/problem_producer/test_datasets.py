"""Every public dataset that lies in the shared folder loads completely, with the right golds and tests."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from problem_producer.config import ProblemsConfig
from problem_producer.items import Item
from problem_producer.sources import RowSource, open_sources

SHARED = Path(os.environ.get("GRISTMILL_SHARED", Path(__file__).parents[3] / "shared")) / "datasets"


def load(spec: str) -> RowSource:
    path = SHARED / spec.partition(":")[2].partition(",")[0]
    if not path.is_file():
        pytest.skip(f"{path} is absent (set GRISTMILL_SHARED)")
    kind, _, rest = spec.partition(":")
    (source,) = open_sources(ProblemsConfig.model_validate({"sources": f"{kind}:{SHARED}/{rest}"}))
    assert isinstance(source, RowSource)
    return source


def items(source: RowSource) -> list[Item]:
    assert source.size is not None
    return [source.problem(index).item for index in range(source.size)]


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ("gsm8k:gsm8k/train.jsonl", 7473),
        ("gsm8k:gsm8k/test.jsonl", 1319),
        ("math500:math500/test.jsonl", 500),
        ("aime:aime/aime2024.jsonl", 30),
        ("aime:aime/aime2025.jsonl", 30),
        ("humaneval:humaneval/HumanEval.jsonl.gz", 164),
        ("mbpp:mbpp/mbpp.jsonl", 974),
        ("mbpp:mbpp/sanitized-mbpp.json", 427),
        ("mbpp:mbpp/mbpp.jsonl,subset=prompt", 10),
        ("mbpp:mbpp/mbpp.jsonl,subset=test", 500),
        ("mbpp:mbpp/mbpp.jsonl,subset=validation", 90),
        ("mbpp:mbpp/mbpp.jsonl,subset=train", 374),
    ],
)
def test_counts_and_identities(spec: str, count: int) -> None:
    source = load(spec)
    found = items(source)
    assert (source.size, list(source.faults)) == (count, [])
    assert len({item.problem_id for item in found}) == count
    for item in found:
        assert item.text.strip()
        assert item.solution is not None or spec.endswith("aime2025.jsonl")
        assert (item.answer is None) == (item.kind == "code") == (item.tests is not None)


def test_gsm8k_golds_are_the_raw_ones_without_commas() -> None:
    commas = negatives = 0
    for name in ("train", "test"):
        found = items(load(f"gsm8k:gsm8k/{name}.jsonl"))
        rows = [json.loads(line) for line in (SHARED / f"gsm8k/{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for item, row in zip(found, rows, strict=True):
            raw = row["answer"].split("####")[1].strip()
            assert item.metadata["gold"] == raw
            assert item.answer == raw.replace(",", "")
            assert re.fullmatch(r"-?\d+", item.answer)
            assert item.solution is not None
            assert item.solution.endswith(f"\\boxed{{{item.answer}}}")
            assert "<<" not in item.solution
            assert "####" not in item.solution
            commas += "," in raw
            negatives += raw.startswith("-")
    assert (commas, negatives) == (93, 5)


def test_math500_keeps_answer_level_and_subject() -> None:
    found = items(load("math500:math500/test.jsonl"))
    rows = [json.loads(line) for line in (SHARED / "math500/test.jsonl").read_text(encoding="utf-8").splitlines()]
    for item, row in zip(found, rows, strict=True):
        assert (item.answer, item.difficulty, item.topic) == (row["answer"].strip(), row["level"], row["subject"])
        assert item.problem_id == f"math500/{row['unique_id']}"


@pytest.mark.parametrize("year", [2024, 2025])
def test_aime_golds_are_integers(year: int) -> None:
    for item in items(load(f"aime:aime/aime{year}.jsonl")):
        assert item.answer is not None
        assert str(int(item.answer)) == item.answer
        assert 0 <= int(item.answer) <= 999


RUN = """
import json, sys
bad = []
for name, code, tests in json.load(sys.stdin):
    space = {"__name__": "candidate"}
    try:
        exec(code, space)
        exec(tests, space)
    except BaseException as error:
        bad.append(f"{name}: {error!r}")
json.dump(bad, sys.stdout)
"""


@pytest.mark.parametrize(
    "spec",
    ["mbpp:mbpp/sanitized-mbpp.json", "mbpp:mbpp/mbpp.jsonl,challenge=true", "humaneval:humaneval/HumanEval.jsonl.gz"],
)
def test_reference_programs_pass_the_tests_that_travel(spec: str) -> None:
    # Every seventh: all of them are the code verifier's business.
    programs = []
    for item in items(load(spec))[::7]:
        assert item.tests is not None
        assert item.tests.kind == "assert"
        assert item.solution is not None
        code = item.solution.removeprefix("```python\n").removesuffix("\n```")
        programs.append((item.problem_id, code, item.tests.source))
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(programs), capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout[done.stdout.rindex("[") :]) == []


def test_code_prompts_name_what_is_wanted() -> None:
    humaneval = load("humaneval:humaneval/HumanEval.jsonl.gz")
    item, prompt = humaneval.problem(0)
    assert item.tests is not None
    assert item.tests.entry_point == "has_close_elements"
    assert item.tests.source.endswith("check(has_close_elements)\n")
    assert "def has_close_elements" in prompt.messages[0].content
    assert "Complete this Python function" in prompt.messages[0].content
    named = 0
    mbpp = load("mbpp:mbpp/mbpp.jsonl")
    assert mbpp.size is not None
    for index in range(mbpp.size):
        item, prompt = mbpp.problem(index)
        assert all(test in prompt.messages[0].content for test in item.visible_tests)
        named += item.tests is not None and item.tests.entry_point is not None
    assert named > 950


def test_the_split_by_digest_is_disjoint_complete_and_about_an_eighth() -> None:
    whole = {item.problem_id for item in items(load("gsm8k:gsm8k/train.jsonl"))}
    train = {item.problem_id for item in items(load("gsm8k:gsm8k/train.jsonl,split=train"))}
    heldout = {item.problem_id for item in items(load("gsm8k:gsm8k/train.jsonl,split=heldout"))}
    assert train | heldout == whole
    assert not train & heldout
    assert 0.10 < len(heldout) / len(whole) < 0.15
