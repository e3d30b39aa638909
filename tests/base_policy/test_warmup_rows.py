"""Warm-up rows: reading, spoiling, balancing."""

import json
import random
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from base_policy.warmup_rows import Row, read_rows, solutions, spoil
from gristmill.errors import ConfigError

SOLUTION = "7 + 8 = 15. 3 + 4 + 1 = 8. \\boxed{85}"


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def test_reads_messages_and_prompts(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Compute 37 + 48."}]
    rows = read_rows(
        write(
            tmp_path / "rows.jsonl",
            {"messages": messages, "prompt": None, "solution": SOLUTION, "level": 2.0, "topic": "addition"},
            "",
            {"prompt": "Compute 1 + 1.", "solution": " 2 \\boxed{2} ", "answer": "2"},
        )
    )
    assert rows[0] == Row(tuple(messages), SOLUTION, "2.0/addition")
    assert rows[1].messages == ({"role": "user", "content": "Compute 1 + 1."},)
    assert rows[1].solution == "2 \\boxed{2}"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{broken", "not JSON"),
        ({"messages": [{"role": "user", "content": "x"}]}, "needs 'solution'"),
        ({"messages": [{"role": "user", "content": "x"}], "solution": "  "}, "needs 'solution'"),
        ({"solution": "x"}, "needs 'messages'"),
        ({"messages": [{"role": "user"}], "solution": "x"}, "needs 'messages'"),
        ({"messages": [], "solution": "x"}, "is empty"),
        ([1], "needs 'solution'"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: object, complaint: str) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": "p", "solution": "s"}, row)
    with pytest.raises(ConfigError, match=f"rows.jsonl:2: .*{complaint}"):
        read_rows(path)


def test_no_rows_and_no_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no rows"):
        read_rows(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(ConfigError, match="cannot read"):
        read_rows(tmp_path / "absent.jsonl")


def test_every_way_of_spoiling() -> None:
    draw = random.Random(1)
    assert spoil(SOLUTION, "clean", draw) == SOLUTION
    assert spoil(SOLUTION, "unboxed", draw) == "7 + 8 = 15. 3 + 4 + 1 = 8."
    for _ in range(200):
        cut = spoil(SOLUTION, "unfinished", draw)
        assert cut
        assert "boxed" not in cut
        assert SOLUTION.startswith(cut)
        slip = re.fullmatch(r"7 \+ 8 = 15\. 3 \+ 4 \+ 1 = 8\. \\boxed\{([1-9]\d)\}", spoil(SOLUTION, "slip", draw))
        assert slip
        assert slip[1] != "85"
        fraction = spoil("So 5/4. \\boxed{\\frac{5}{4}}", "slip", draw)
        assert re.fullmatch(r"So 5/4\. \\boxed\{\\frac\{\d\}\{\d\}\}", fraction)
        assert "\\frac{5}{4}" not in fraction


def test_what_cannot_be_spoiled_stays() -> None:
    draw = random.Random(1)
    assert spoil("no box here", "slip", draw) == "no box here"
    assert spoil("\\boxed{x}", "slip", draw) == "\\boxed{x}"


def row(group: str, number: int) -> Row:
    return Row(({"role": "user", "content": f"{group} {number}"},), f"{number}. \\boxed{{{number}}}", group)


def test_groups_are_balanced_and_rounds_complete() -> None:
    rows = [row("small", number) for number in range(10)] + [row("large", number) for number in range(500)]
    seen = [given for given, _ in islice(solutions(rows, {}, 0, seed=1), 1000)]
    groups = Counter(given.group for given in seen)
    assert 400 < groups["small"] < 600
    small = [given.messages for given in seen if given.group == "small"]
    assert all(len(set(map(str, small[at : at + 10]))) == 10 for at in range(0, 300, 10))
    large = [str(given.messages) for given in seen if given.group == "large"][:400]
    assert len(set(large)) == 400


def test_spoiled_shares_begin_after_the_clean_rows() -> None:
    rows = [row("a", number) for number in range(100, 300)]
    shares = {"unboxed": 0.4, "slip": 0.2, "unfinished": 0.1}
    given = list(islice(solutions(rows, shares, 500, seed=3), 2500))
    assert all(text == source.solution for source, text in given[:500])
    boxed = [text == source.solution for source, text in given[500:]]
    assert 0.25 < sum(boxed) / len(boxed) < 0.35
    unboxed = sum("boxed" not in text for _, text in given[500:]) / 2000
    assert 0.45 < unboxed < 0.55


def test_the_same_seed_gives_the_same_data() -> None:
    rows = [row("a", number) for number in range(50)]

    def first(seed: int) -> list[str]:
        return [text for _, text in islice(solutions(rows, {"slip": 0.5}, 10, seed), 100)]

    assert first(1) == first(1)
    assert first(1) != first(2)
