r"""Accuracy and rate of the math verifier beside Math-Verify, on the shared cases and data sets.

    python benchmarks/math_verifier.py [--rounds 5] [--workers N] [--sets handed,qwen] [--shared ../shared]

Both graders run in this process' turn of the same run: for each set they take turns for some rounds, and the table has
the median rate with the lowest and the highest. What a row measures:

``math-verify``         ``verify(parse(gold), parse(text))`` in this process, with its own default limits of 5 s; bare
                        answers and references are put in ``\boxed{}``, which is how it does best.
``math-verify, golds once``  the same, with each distinct reference parsed once a round.
``ours, no worker``     the same functions as below called here, in one process, with nothing that could stop a check
                        (so not on blow-ups).
``ours, verify_pair``   one call after the other; caller and one worker process, limits as in production.
``ours, verify_many``   the same rows streamed through the same pool of one worker; ``--workers N`` adds a pool of N.

CPU is that of the caller and of all workers together, so a second process hides nothing. Neither grader knows the rows
of an earlier round: SymPy's cache and the verifier's own are emptied before each, and each pool is fresh. Both are
warm: Math-Verify and ``no worker`` from an uncounted pass over the measured rows, a worker from other rows only.

Math-Verify comes with the extra ``bench``; without it only our rows are printed.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import logging
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

# This script has the name of the package that it measures: its own folder must not be searched first.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

from sympy.core.cache import clear_cache  # noqa: E402

from math_verifier.api import DEFAULT_POLICY, Pending, begin, verify_many, verify_pair  # noqa: E402
from math_verifier.check import Kind, check  # noqa: E402
from math_verifier.pool import MathPool  # noqa: E402
from math_verifier.worker_main import RECURSION  # noqa: E402

Case = tuple[str, str, Kind]
REFERENCE: Final = "math-verify"
GOLDS_ONCE: Final = "math-verify, golds once"
ALONE, PAIR, MANY = "ours, no worker", "ours, verify_pair", "ours, verify_many"
CASES: Final = Path(__file__).resolve().parents[1] / "tests" / "math_verifier" / "cases.jsonl"
BLOW_UPS: Final = frozenset(("blow-up", "deep-nesting", "long", "whitespace"))
AUTHORED_BLOW_UPS: Final = (
    ("2", "9**9**9"), ("1", "9^{9^{9^{9}}}"), ("5", "((((9!)!)!)!)!"), ("5", r"\binom{10^{9}}{5\cdot 10^{8}}"),
    ("7", "1" * 100_000), ("x", "(" * 10_000 + "x" + ")" * 10_000), ("3", r"\sum_{k=1}^{10^{12}} \sin(k^k)"),
    ("10^{100000000}", "10^{100000001}"), (r"\int_0^1 x^{x^x} dx", r"\int_0^1 \sin(x^{x}) e^{x^2} dx"),
    ("1", r"\frac{(10^{6})!}{(10^{6}-1)!}"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Set:
    """Cases and what must be said of each. ``aim`` is the least ratio that the project promises."""

    cases: list[Case]
    expected: list[bool]
    aim: float | None = None
    bounded: bool = True
    """Whether every case ends by itself."""


@dataclass(slots=True)
class Turn:
    """One pass over a set: a verdict, a stage and the seconds of each case, wall and CPU seconds of all."""

    accepted: list[bool] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0


def rows(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return [json.loads(line) for line in text.split("\n") if line]


def sets(shared: Path) -> dict[str, Set]:
    data = shared / "datasets"
    handed = [row for row in rows(shared / "cases" / "math_handed.jsonl") if not row["contested"]]
    tame = [row for row in handed if not BLOW_UPS & set(row["tags"])]
    rationales = [row["answer"] for split in ("train", "test") for row in rows(data / "gsm8k" / f"{split}.jsonl")]
    problems = rows(data / "math500" / "test.jsonl")
    crossed = list(zip(problems, [*problems[1:], problems[0]], strict=True))
    samples = rows(data / "qwen25_math_samples" / "math_cot_100x8.jsonl.gz")

    def of(chosen: list[dict[str, Any]]) -> tuple[list[Case], list[bool]]:
        return [(row["gold"], row["pred"], row["kind"]) for row in chosen], [row["expected"] for row in chosen]

    return {
        "handed, no blow-ups": Set(*of(tame), aim=5.0),
        "handed, with blow-ups": Set(*of(handed), bounded=False),
        "authored blow-ups": Set(
            [(gold, text, "answer") for gold, text in AUTHORED_BLOW_UPS],
            [False] * len(AUTHORED_BLOW_UPS),
            bounded=False,
        ),
        "qwen, 800 completions": Set(
            [(row["answer"], text, "completion") for row in samples for text in row["responses"]],
            [bool(score) for row in samples for score in row["score_corrected"]],
            aim=4.0,
        ),
        "MATH-500, own answer": Set(
            [(row["answer"], row["solution"], "completion") for row in problems], [True] * len(problems)
        ),
        # Two neighbours have the same answer, once written as 5 and once as x=5.
        "MATH-500, next solution": Set(
            [(one["answer"], two["solution"], "completion") for one, two in crossed],
            [one["answer"].removeprefix("x=") == two["answer"].removeprefix("x=") for one, two in crossed],
        ),
        "GSM8K, rationales": Set(
            [(text.rpartition("####")[2].strip(), text, "completion") for text in rationales], [True] * len(rationales)
        ),
    }


# -- the graders


def boxed(text: str) -> str:
    return text if "\\boxed" in text else f"\\boxed{{{text}}}"


def math_verify(golds_once: bool) -> Callable[[Set], Turn]:
    from math_verify import parse, verify
    from math_verify.errors import TimeoutException

    def turn(data: Set) -> Turn:
        golds: dict[str, Any] = {}

        def grade(gold: str, text: str, kind: Kind) -> tuple[bool, str]:
            try:
                if not golds_once or gold not in golds:
                    golds[gold] = parse(boxed(gold))
                return verify(golds[gold], parse(text if kind == "completion" else boxed(text))), ""
            except TimeoutException:
                return False, ""

        return _in_turn(data.cases, grade)

    return turn


def alone(data: Set) -> Turn:
    def grade(gold: str, text: str, kind: Kind) -> tuple[bool, str]:
        decided = begin(gold, text, kind, DEFAULT_POLICY)
        if isinstance(decided, Pending):
            decided = check(decided.gold, decided.answer, DEFAULT_POLICY)
        return decided.status == "correct", decided.stage

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION)
    try:
        return _in_turn(data.cases, grade)
    finally:
        sys.setrecursionlimit(limit)


def _in_turn(cases: list[Case], grade: Callable[[str, str, Kind], tuple[bool, str]]) -> Turn:
    turn = Turn()
    forget()
    with measured(turn):
        for case in cases:
            start = time.perf_counter()
            accepted, stage = grade(*case)
            turn.seconds.append(time.perf_counter() - start)
            turn.accepted.append(accepted)
            turn.stages.append(stage)
    return turn


def pair(data: Set) -> Turn:
    turn = Turn()
    with warm_pool(1) as pool, measured(turn, pool):
        for gold, text, kind in data.cases:
            start = time.perf_counter()
            result = verify_pair(gold, text, kind=kind, pool=pool)
            turn.seconds.append(time.perf_counter() - start)
            turn.accepted.append(result.correct)
            turn.stages.append(result.stage)
    return turn


def many(workers: int) -> Callable[[Set], Turn]:
    def run(data: Set) -> Turn:
        turn = Turn()
        with warm_pool(workers) as pool, measured(turn, pool):
            for result in verify_many(data.cases, pool=pool):
                turn.accepted.append(result.correct)
                turn.stages.append(result.stage)
                turn.seconds.append(result.seconds)
        return turn

    return run


def forget() -> None:
    """Empty every cache that remembers values of rows."""
    clear_cache()
    for module in [module for name, module in sys.modules.items() if name.startswith("math_verifier.")]:
        for cached in vars(module).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()


@contextmanager
def warm_pool(workers: int) -> Iterator[MathPool]:
    forget()
    with MathPool(workers) as pool:
        fill = [(row["gold"], row["pred"]) for row in rows(CASES)[::4] if "pred" in row]
        list(verify_many(fill * workers, kind="answer", pool=pool))
        yield pool


@contextmanager
def measured(turn: Turn, pool: MathPool | None = None) -> Iterator[None]:
    """Wall seconds, and CPU seconds of this process and of the pool's processes, the killed ones included."""
    before = _children_cpu(pool)
    cpu, wall = time.process_time(), time.perf_counter()
    yield
    turn.wall = time.perf_counter() - wall
    turn.cpu = time.process_time() - cpu
    if pool is not None:
        time.sleep(0.5)  # Killed workers are reaped, and counted, a moment later.
        turn.cpu += _children_cpu(pool) - before


def _children_cpu(pool: MathPool | None) -> float:
    """CPU seconds of the pool's processes: of live workers to the nanosecond, of dead ones in ticks of 10 ms."""
    if pool is None:
        return 0.0
    live = sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9 for pid in pool.pids)
    dead = Path(f"/proc/{pool.template_pid}/stat").read_text().rpartition(") ")[2].split()
    return live + (int(dead[13]) + int(dead[14])) / 100


# -- the tables


def measure(data: Set, graders: dict[str, Callable[[Set], Turn]], rounds: int) -> dict[str, list[Turn]]:
    """Turns of each grader; the order of the graders turns with the rounds."""
    for name in (REFERENCE, ALONE):
        if name in graders and data.bounded:
            graders[name](data)
    found: dict[str, list[Turn]] = {name: [] for name in graders}
    names = list(graders)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(graders[name](data))
    return found


def rate_rows(data: Set, turns: dict[str, list[Turn]]) -> Iterator[list[str]]:
    base = turns.get(REFERENCE)
    for name, own in turns.items():
        pairs = list(zip(own[0].accepted, data.expected, strict=True))
        rates = [len(data.cases) / turn.wall for turn in own]
        cpu = statistics.median(turn.cpu for turn in own)
        ratio = ""
        if base:
            ratios = [theirs.wall / turn.wall for turn, theirs in zip(own, base, strict=True)]
            ratio = f"{statistics.median(ratios):.1f}"
            if data.aim and name in {ALONE, PAIR, MANY}:
                ratio += f" (aim {data.aim:g}: {'met' if statistics.median(ratios) >= data.aim else 'MISSED'})"
        yield [
            name,
            f"{sum(got == wanted for got, wanted in pairs)} of {len(pairs)}",
            str(sum(got and not wanted for got, wanted in pairs)),
            str(sum(wanted and not got for got, wanted in pairs)),
            f"{statistics.median(rates):,.1f}"
            if statistics.median(rates) < 100
            else f"{statistics.median(rates):,.0f}",
            f"{min(rates):,.0f} to {max(rates):,.0f}",
            ratio,
            f"{cpu / len(data.cases) * 1000:.3f}",
            f"{statistics.median(turn.cpu for turn in base) / cpu:.1f}" if base else "",
            f"{max(max(turn.seconds) for turn in own):.3f}",
        ]


def stage_rows(own: Iterable[Turn]) -> Iterator[list[str]]:
    costs: dict[str, list[float]] = defaultdict(list)
    for turn in own:
        for stage, seconds in zip(turn.stages, turn.seconds, strict=True):
            costs[stage].append(seconds)
    count, total = sum(map(len, costs.values())), sum(map(sum, costs.values()))
    for stage, seconds in sorted(costs.items(), key=lambda item: -len(item[1])):
        yield [
            stage,
            f"{len(seconds) / count:.1%}",
            f"{statistics.median(seconds) * 1e6:,.0f}",
            f"{max(seconds) * 1e6:,.0f}",
            f"{sum(seconds) / total:.1%}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="adds a pool of so many workers")
    parser.add_argument("--sets", default="", help="starts of the names of the sets to run, with commas")
    options = parser.parse_args()
    console = Console(width=max(170, Console().width))
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    installed = importlib.util.find_spec("math_verify") is not None
    if not installed:
        console.print(
            "Math-Verify is not installed, so there is nothing to compare with: "
            'pip install -c constraints.txt -e ".[math,bench]"',
            style="bold",
            markup=False,
        )
    stages = Table(title=f"Stages: {ALONE}, or {MANY} where it did not run")
    for column in ("set", "decided by", "share", "median us", "slowest us", "share of time"):
        stages.add_column(column, justify="left" if column in {"set", "decided by"} else "right")
    chosen = tuple(options.sets.split(","))
    for name, data in sets(options.shared).items():
        if not name.startswith(chosen):
            continue
        graders: dict[str, Callable[[Set], Turn]] = {}
        if installed:
            graders[REFERENCE] = math_verify(golds_once=False)
            if data.aim:
                graders[GOLDS_ONCE] = math_verify(golds_once=True)
        if data.bounded:
            graders[ALONE] = alone
        graders |= {PAIR: pair, MANY: many(1)}
        if options.workers > 1:
            graders[f"{MANY}, {options.workers} workers"] = many(options.workers)
        rounds = options.rounds if data.bounded else 1
        turns = measure(data, graders, rounds)
        rates = Table(title=f"{name}: {len(data.cases):,} cases, {rounds} round(s)", title_justify="left")
        for column in ("grader", "right", "false accept", "false reject", "cases/s", "low to high"):
            rates.add_column(column, justify="left" if column == "grader" else "right", no_wrap=True)
        for column in ("/ math-verify", "CPU ms/case", "CPU ratio", "slowest s"):
            rates.add_column(column, justify="right", no_wrap=True)
        for row in rate_rows(data, turns):
            rates.add_row(*row)
        console.print(rates)
        for number, row in enumerate(stage_rows(turns[ALONE if data.bounded else MANY])):
            stages.add_row("" if number else name, *row)
        stages.add_section()
    console.print(stages)


if __name__ == "__main__":
    main()
