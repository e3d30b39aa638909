"""Accuracy: own cases of every kind, the handed cases, and real solutions."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from math_verifier.api import MathResult, verify_many
from math_verifier.pool import MathPool

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def patient() -> Iterator[MathPool]:
    """A pool for what is right or wrong, on machines however busy; the limit of 2 s is tested elsewhere."""
    with MathPool(2, time_limit_s=20) as running:
        yield running


def rows(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return [json.loads(line) for line in text.split("\n") if line]


def results(pool: MathPool, cases: list[dict[str, Any]]) -> list[MathResult]:
    triples = [
        (case["gold"], case["pred"], "answer") if "pred" in case else (case["gold"], case["completion"], "completion")
        for case in cases
    ]
    return list(verify_many(triples, pool=pool))  # type: ignore[arg-type]


def mistakes(cases: list[dict[str, Any]], found: list[MathResult]) -> list[tuple[Any, ...]]:
    return [
        (case["id"], case["gold"], case.get("pred", case.get("completion")), case["expected"], result)
        for case, result in zip(cases, found, strict=True)
        if result.correct != case["expected"]
    ]


def test_own_cases(patient: MathPool) -> None:
    cases = rows(HERE / "cases.jsonl")
    found = results(patient, cases)
    assert mistakes(cases, found) == []
    assert not [result for result in found if result.status in {"error", "timeout"}]


def test_own_answers_the_other_way_round(patient: MathPool) -> None:
    cases = [case for case in rows(HERE / "cases.jsonl") if "pred" in case and "\\boxed" not in case["pred"]]
    turned = [
        {**case, "gold": case["pred"], "pred": case["gold"]} for case in cases if not case["id"].startswith("malformed")
    ]
    assert mistakes(turned, results(patient, turned)) == []


def test_handed_cases_that_nobody_contests(pool: MathPool, shared: Path) -> None:
    cases = [case for case in rows(shared / "cases" / "math_handed.jsonl") if not case["contested"]]
    for case in cases:
        if case["kind"] == "completion":
            case["completion"] = case.pop("pred")
    assert len(cases) == 196
    assert mistakes(cases, results(pool, cases)) == []


def test_contested_handed_cases_follow_the_policy(pool: MathPool, shared: Path) -> None:
    """The rows where we decide otherwise than the row says; docs/math-verification.md says why."""
    cases = [case for case in rows(shared / "cases" / "math_handed.jsonl") if case["contested"]]
    for case in cases:
        if case["kind"] == "completion":
            case["completion"] = case.pop("pred")
    assert {mistake[0] for mistake in mistakes(cases, results(pool, cases))} == {"hm-02", "me-32", "me-50", "is-002"}


@pytest.mark.parametrize(("split", "count"), [("train", 7473), ("test", 1319)])
def test_gsm8k_rationales_match_their_own_answers(pool: MathPool, shared: Path, split: str, count: int) -> None:
    texts = [row["answer"] for row in rows(shared / "datasets" / "gsm8k" / f"{split}.jsonl")]
    pairs = [(text.rpartition("####")[2].strip(), text) for text in texts]
    assert [result.status for result in verify_many(pairs, pool=pool)] == ["correct"] * count


def test_math500_solutions_match_their_own_answers_only(pool: MathPool, shared: Path) -> None:
    problems = rows(shared / "datasets" / "math500" / "test.jsonl")
    own = [(problem["answer"], problem["solution"]) for problem in problems]
    assert [result.status for result in verify_many(own, pool=pool)] == ["correct"] * 500
    following = [*problems[1:], problems[0]]
    crossed = [(one["answer"], two["solution"]) for one, two in zip(problems, following, strict=True)]
    matched = [
        (one["answer"], two["answer"])
        for one, two, result in zip(problems, following, verify_many(crossed, pool=pool), strict=True)
        if result.correct and one["answer"] != two["answer"]
    ]
    assert matched == [("5", "x=5")]


def test_real_completions_agree_with_the_corrected_verdicts(pool: MathPool, shared: Path) -> None:
    """Problem 3 is left out: its eight answers ``4:30 \\text{ p.m.}`` are right, and stored as wrong."""
    problems = rows(shared / "datasets" / "qwen25_math_samples" / "math_cot_100x8.jsonl.gz")
    pairs = [(problem["answer"], text) for problem in problems for text in problem["responses"]]
    stored = [bool(score) for problem in problems for score in problem["score_corrected"]]
    found = [result.correct for result in verify_many(pairs, pool=pool)]
    differing = {problems[index // 8]["idx"] for index in range(800) if found[index] != stored[index]}
    assert differing == {3}
    assert all(found[index] for index in range(800) if problems[index // 8]["idx"] == 3)
