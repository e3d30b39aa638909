"""The order of problems: shares of the mix, permutations, epochs, and ordinals that mean the same for ever."""

import json
from collections import Counter
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import ConfigError
from gristmill.messages import Problem
from problem_producer.config import ProblemsConfig
from problem_producer.mixing import Turn, turns
from problem_producer.sequence import DIGEST_KEY, ProblemSequence
from problem_producer.shuffle import Permutation

WEIGHTS = st.lists(
    st.one_of(st.integers(1, 9).map(float), st.sampled_from([0.1, 0.25, 0.333, 2.5, 17.0, 100.0])),
    min_size=1,
    max_size=6,
)


@given(size=st.integers(1, 3000), key=st.text(max_size=10))
@settings(max_examples=40, deadline=None)
def test_a_permutation_visits_every_index_once(size: int, key: str) -> None:
    order = Permutation(size, key)
    assert sorted(order[position] for position in range(size)) == list(range(size))


def test_permutations_differ_by_key_and_mix_well() -> None:
    first, second = Permutation(1000, "0/a/0"), Permutation(1000, "0/a/1")
    assert [first[n] for n in range(20)] != [second[n] for n in range(20)]
    # Of a random permutation, neighbours are a third of the range apart on average and half of all pairs rise.
    values = [first[n] for n in range(1000)]
    steps = [abs(a - b) for a, b in pairwise(values)]
    assert 300 < sum(steps) / len(steps) < 367
    rises = sum(a < b for a, b in pairwise(values))
    assert 450 < rises < 550
    with pytest.raises(IndexError):
        first[1000]
    with pytest.raises(ValueError, match="0 elements"):
        Permutation(0, "")


def test_a_huge_permutation_costs_nothing() -> None:
    order = Permutation(10**12, "key")
    assert len({order[n] for n in range(1000)}) == 1000


@given(weights=WEIGHTS, steps=st.integers(1, 400))
@settings(deadline=None)
def test_every_source_has_its_share_to_within_one_problem_at_every_moment(weights: list[float], steps: int) -> None:
    total = sum(Fraction(repr(weight)) for weight in weights)
    had = Counter[int]()
    for step, turn in enumerate(islice(turns(weights, [None] * len(weights)), steps), start=1):
        assert turn.number == had[turn.source]
        had[turn.source] += 1
        for source, weight in enumerate(weights):
            assert abs(had[source] - step * Fraction(repr(weight)) / total) < 1


@given(
    sources=st.lists(st.tuples(st.sampled_from([1.0, 2.0, 0.5, 3.0, 0.7]), st.integers(0, 40)), min_size=1, max_size=5),
    start=st.integers(0, 120),
)
@settings(deadline=None, max_examples=300)
def test_the_mix_resumes_anywhere_and_gives_each_problem_once(sources: list[tuple[float, int]], start: int) -> None:
    weights, totals = [weight for weight, _ in sources], [total for _, total in sources]
    whole = list(turns(weights, totals))
    assert sorted(whole) == [Turn(s, n) for s, total in enumerate(totals) for n in range(total)]
    assert list(turns(weights, totals, start)) == whole[start:]


def test_a_far_position_is_found_without_walking() -> None:
    far = 10**15
    (turn,) = islice(turns([3, 1], [None, None], far), 1)
    assert turn in (Turn(0, far * 3 // 4), Turn(1, far // 4))


def write_rows(path: Path, count: int, name: str = "q") -> str:
    path.write_text("".join(json.dumps({"problem": f"{name}{n}", "answer": n}) + "\n" for n in range(count)))
    return f"jsonl:{path}"


def sequence(sources: list[Any], **section: Any) -> ProblemSequence:
    return ProblemSequence(ProblemsConfig.model_validate({"sources": sources, **section}), "run")


def plain(problem: Problem) -> tuple[Any, ...]:
    return (problem.ordinal, problem.problem_id, problem.source, problem.epoch, problem.reference, problem.messages)


def test_epochs_are_different_orders_of_the_same_problems(tmp_path: Path) -> None:
    spec = write_rows(tmp_path / "rows.jsonl", 40)
    found = list(sequence([spec], epochs=3).starting_at(1))
    assert [problem.ordinal for problem in found] == list(range(1, 121))
    assert [problem.epoch for problem in found] == [0] * 40 + [1] * 40 + [2] * 40
    orders = [[int(problem.reference or -1) for problem in found[e * 40 : e * 40 + 40]] for e in range(3)]
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    straight = sequence([spec], epochs=1, shuffle=False).starting_at(1)
    assert [int(problem.reference or -1) for problem in straight] == list(range(40))


def test_seeds_reorder_and_digests_tell(tmp_path: Path) -> None:
    spec = write_rows(tmp_path / "rows.jsonl", 40)
    first, again, other = sequence([spec]), sequence([spec]), sequence([spec], seed=1)
    assert [plain(p) for p in islice(first.starting_at(1), 99)] == [plain(p) for p in islice(again.starting_at(1), 99)]
    assert first.digest == again.digest
    assert [p.problem_id for p in islice(first.starting_at(1), 40)] != [
        p.problem_id for p in islice(other.starting_at(1), 40)
    ]
    changed = [
        other,
        sequence([spec], group_size=3),
        sequence([spec], prompt="plain"),
        sequence([spec], sampling={"temperature": 0.5}),
        sequence([spec, "arithmetic"]),
        sequence([f"{spec},limit=39"]),
        sequence([spec], epochs=2),
    ]
    assert len({first.digest, *(each.digest for each in changed)}) == len(changed) + 1
    # What only paces or bounds the run does not change its problems.
    assert sequence([spec], max_ahead=None, max_problems=7).digest == first.digest
    write_rows(tmp_path / "rows.jsonl", 41)
    assert sequence([spec]).digest != first.digest


def test_an_ordinal_always_means_the_same_problem(tmp_path: Path) -> None:
    folder = tmp_path
    sources = [
        {"spec": write_rows(folder / "a.jsonl", 17, "a"), "weight": 2, "epochs": 3},
        {"spec": write_rows(folder / "b.jsonl", 5, "b")},
        {"spec": "arithmetic:levels=1-2,limit=20", "weight": 0.5},
    ]
    mixed = sequence(sources, epochs=2)
    whole = [plain(problem) for problem in mixed.starting_at(1)]
    assert len(whole) == mixed.size == 17 * 3 + 5 * 2 + 20 * 2
    resumed = sequence(sources, epochs=2)
    assert resumed.digest == mixed.digest
    for start in (1, 2, 17, 36, 37, 60, 99, 100, 101, 102, 150):
        assert [plain(problem) for problem in resumed.starting_at(start)] == whole[start - 1 :]
    with pytest.raises(IndexError, match="ends at 101"):
        mixed.at(102)


def test_messages_are_complete() -> None:
    config = {
        "sources": ["arithmetic:levels=3,name=sums"],
        "group_size": 6,
        "sampling": {"temperature": 0.7, "max_new_tokens": 33, "stop": ["\n\n"], "seed": 100},
    }
    made = ProblemSequence(ProblemsConfig.model_validate(config), "run-7")
    problem = made.at(3)
    assert (problem.run_id, problem.ordinal, problem.group_id, problem.key) == ("run-7", 3, *["run-7:00000003"] * 2)
    assert (problem.source, problem.kind, problem.difficulty, problem.group_size) == ("sums", "math", 3.0, 6)
    assert (problem.sampling.temperature, problem.sampling.max_new_tokens) == (0.7, 33)
    assert (problem.sampling.stop, problem.sampling.seed) == (("\n\n",), 112)
    assert problem.metadata[DIGEST_KEY] == made.digest
    assert problem.metadata["gold"] == problem.reference
    assert made.size is None


def test_bounds_and_endless_sources(tmp_path: Path) -> None:
    assert [p.ordinal for p in sequence(["arithmetic:levels=1"], max_problems=5).starting_at(1)] == [1, 2, 3, 4, 5]
    assert list(sequence(["arithmetic:levels=1"], max_problems=5).starting_at(6)) == []
    spec = write_rows(tmp_path / "rows.jsonl", 4)
    assert sequence([spec], epochs=2, max_problems=100).size == 8
    with pytest.raises(ConfigError, match="arithmetic has no end"):
        sequence(["arithmetic"], epochs=1)
    names = [source.name for source in sequence(["arithmetic", "arithmetic:levels=1", spec, spec]).sources]
    assert names == ["arithmetic", "arithmetic-2", "rows", "rows-2"]


def test_both_splits_share_nothing_for_files_and_for_arithmetic(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    spec = write_rows(rows, 400)
    # The same problem in another spelling falls on the same side.
    respelt = tmp_path / "respelt.jsonl"
    respelt.write_text(rows.read_text().replace('"q', '"  Q'))
    for first, second in ((spec, f"jsonl:{respelt}"), ("arithmetic:levels=1-3", "arithmetic:levels=1-3,seed=5")):
        texts = []
        for source, split in ((first, "train"), (second, "heldout")):
            made = sequence([source], split=split)
            found = islice(made.starting_at(1), made.sources[0].size or 400)
            texts.append({p.messages[0].content.replace("  Q", "q") for p in found})
        assert len(texts[0]) > 150
        assert len(texts[1]) > 20
        assert not texts[0] & texts[1]
