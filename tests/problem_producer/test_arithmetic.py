"""The built-in problem source: gold answers checked by SymPy, determinism, random access, disjoint splits."""

import itertools
import re
import subprocess
import sys

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy.parsing.sympy_parser import (
    convert_xor,
    implicit_multiplication_application,
    parse_expr,
    standard_transformations,
)

from problem_producer.arithmetic import KINDS, LEVELS, MAKERS, ArithmeticSource

TRANSFORMATIONS = (*standard_transformations, convert_xor, implicit_multiplication_application)
X, Y = sympy.symbols("x y")


def parse(text: str) -> sympy.Expr:
    return parse_expr(text, {"x": X, "y": Y}, TRANSFORMATIONS)


def equation(text: str) -> sympy.Eq:
    left, right = text.split("=")
    return sympy.Eq(parse(left), parse(right))


def boxed(answer: str) -> sympy.Expr:
    """Reads the LaTeX that answers use: fractions, surds, polynomials."""
    plain = re.sub(r"\\frac\{(.+?)\}\{(.+?)\}", r"((\1)/(\2))", answer)
    return parse(re.sub(r"\\sqrt\{(.+?)\}", r"sqrt(\1)", plain))


def gold(text: str) -> sympy.Expr:
    """Solves a problem from its wording alone."""
    if match := re.fullmatch(r"Compute (.+)\.", text):
        return parse(match[1])
    if match := re.fullmatch(r"Solve (.+) for x\.", text):
        (root,) = sympy.solve(equation(match[1]), X)
        return root
    if match := re.fullmatch(r"If (.+) and (.+), what is (.+)\?", text):
        (point,) = sympy.solve([equation(match[1]), equation(match[2])], [X, Y], dict=True)
        return parse(match[3]).subs(point)
    if match := re.fullmatch(r"What is (\d+)% of (\d+)\?", text):
        return sympy.Rational(int(match[1]), 100) * int(match[2])
    if match := re.fullmatch(r"What is the remainder when (\d+) is divided by (\d+)\?", text):
        return sympy.Mod(int(match[1]), int(match[2]))
    if match := re.fullmatch(r"What is the (greatest|least) common \w+ of (\d+) and (\d+)\?", text):
        return (sympy.gcd if match[1] == "greatest" else sympy.lcm)(int(match[2]), int(match[3]))
    if match := re.fullmatch(r"Expand (.+)\.", text):
        return sympy.expand(parse(match[1]))
    if match := re.fullmatch(r"What is (.+) at x = (-?\d+)\?", text):
        return parse(match[1]).subs(X, int(match[2]))
    match = re.fullmatch(r"What is the (.+) of (.+) = 0\?", text)
    assert match, f"unknown wording: {text}"
    roots = sorted(sympy.solve(parse(match[2]), X))
    wanted = {"larger root": roots[1], "smaller root": roots[0]}
    return wanted.get(match[1], sympy.expand(roots[0] ** 2 + roots[1] ** 2))


@pytest.mark.parametrize(("level", "kind"), sorted(MAKERS))
def test_every_gold_answer_agrees_with_sympy(level: int, kind: str) -> None:
    for split in ("train", "heldout"):
        source = ArithmeticSource(7, levels=[level], kinds=[kind], split=split)
        for problem in itertools.islice(source, 25):
            assert (problem.level, problem.kind) == (level, kind)
            assert problem.solution.endswith(f"\\boxed{{{problem.answer}}}")
            assert problem.solution.count("\\boxed") == 1
            assert sympy.simplify(boxed(problem.answer) - gold(problem.text)) == 0, problem
            if kind == "expansion":
                assert "(" not in problem.answer


def test_arithmetic_in_the_rationales_is_right() -> None:
    for level in (1, 2, 3):
        for problem in itertools.islice(ArithmeticSource(3, levels=[level]), 100):
            for chain in re.findall(r"[\d ()+*/-]+(?:=[\d ()+*/-]+)+", problem.solution):
                values = {parse(side) for side in chain.split("=")}
                assert len(values) == 1, problem


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**40), index=st.integers(0, 10**12), level=st.sampled_from(LEVELS[:5]))
def test_random_access_is_the_stream(seed: int, index: int, level: int) -> None:
    source = ArithmeticSource(seed, levels=[level])
    again = ArithmeticSource(seed, levels=[level])
    assert source.at(index) == again.at(index)
    stream = source.starting_at(index)
    assert [next(stream) for _ in range(3)] == [again.at(index + offset) for offset in range(3)]


def test_another_process_makes_the_same_problems() -> None:
    source = ArithmeticSource(5, levels=[1, 3, 5])
    script = (
        "from problem_producer.arithmetic import ArithmeticSource as S\n"
        "s = S(5, levels=[1, 3, 5])\n"
        "for i in range(40): print(s.at(i).problem_id)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [source.at(index).problem_id for index in range(40)]


def test_the_stream_is_pinned() -> None:
    """A changed stream would move every stored position: change this only with a note in the docs."""
    source = ArithmeticSource(0, levels=[1, 2, 3])
    assert [source.at(index).text for index in (0, 1, 2, 1000)] == [
        "Compute 15 - 6.",
        "Compute 3 - 1.",
        "Compute 9 + (4 + 3).",
        "Compute 7 - 2.",
    ]


def test_splits_share_no_problem_whatever_the_seed() -> None:
    train = {p.text for seed in range(4) for p in itertools.islice(ArithmeticSource(seed, levels=LEVELS[:5]), 800)}
    heldout = {
        p.text
        for seed in range(4)
        for p in itertools.islice(ArithmeticSource(seed, levels=LEVELS[:5], split="heldout"), 400)
    }
    assert len(heldout) > 300
    assert not train & heldout

    def mirrored(text: str) -> str:
        return re.sub(r"Compute (\d+) ([+*]) (\d+)\.", r"Compute \3 \2 \1.", text)

    assert not train & {mirrored(text) for text in heldout}


def test_seeds_levels_and_kinds_select() -> None:
    first = [p.text for p in itertools.islice(ArithmeticSource(1, levels=[2]), 50)]
    second = [p.text for p in itertools.islice(ArithmeticSource(2, levels=[2]), 50)]
    assert first != second
    mixed = list(itertools.islice(ArithmeticSource(1, levels=[1, 3], kinds=["addition"]), 100))
    assert {p.level for p in mixed} == {1, 3}
    assert {p.kind for p in mixed} == {"addition"}


def test_equal_problems_have_equal_ids() -> None:
    by_id: dict[str, str] = {}
    for problem in itertools.islice(ArithmeticSource(1, levels=[1]), 500):
        assert by_id.setdefault(problem.problem_id, problem.text) == problem.text
    assert len(by_id) == len(set(by_id.values()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"levels": [9]}, "no level 9"),
        ({"kinds": ["poetry"]}, "no kind 'poetry'"),
        ({"levels": [1], "kinds": ["quadratic"]}, "level 1 has none"),
        ({"split": "test"}, "split must be"),
        ({"levels": []}, "must not be empty"),
    ],
)
def test_bad_settings_are_refused_by_name(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArithmeticSource(0, **arguments)  # type: ignore[arg-type]


def test_easy_levels_do_not_load_sympy() -> None:
    script = (
        "import sys\nfrom problem_producer.arithmetic import ArithmeticSource as S\n"
        "s = S(0, levels=[1, 2, 3, 4, 5])\nfor i in range(200): s.at(i)\n"
        "assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_level_has_a_kind() -> None:
    assert LEVELS == (1, 2, 3, 4, 5, 6)
    assert {kind for _, kind in MAKERS} == set(KINDS)
    with pytest.raises(IndexError):
        ArithmeticSource().at(-1)
