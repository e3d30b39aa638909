"""Verdicts per second of the math verifier's pools: worker processes and Ray actors, one and two of each.

Every pool checks the same rows in the same run, several rounds of each in turn, of which the median counts: the machine
changes its pace. "mixed" are whole completions, of which many are decided without a worker; "checks" are the pairs
among them that need one, repeated; "hung" are these with checks between them that never end.

python benchmarks/math_pool.py [--shared ../shared] [--rounds N] [--workers 1,2] [--pools processes,ray]
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

# Beside this script lies one that has the name of the package: their folder must not be searched first.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

from math_verifier.api import Pending, begin, verify_many  # noqa: E402
from math_verifier.check import Kind  # noqa: E402
from math_verifier.config import MathConfig, MathPolicy  # noqa: E402
from math_verifier.pool import Pool, open_pool  # noqa: E402

Case = tuple[str, str, Kind]
HANG: Case = ("\\pi", "\\int_0^1 \\frac{\\sin(x^{7}+\\tan x)}{\\sqrt{1+x^{11}\\cos^3 x}} dx", "answer")
HUNG = 4
"""Checks of the set "hung" that never end."""
TAGS = {"blow-up", "deep-nesting", "long", "whitespace"}
"""Handed rows of these kinds are left out: they measure limits, not rates."""


def rows(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return [json.loads(line) for line in text.split("\n") if line]


def mixed(shared: Path) -> list[Case]:
    """800 real completions, MATH-500 solutions against the next problem's answer, the handed rows, in turn."""
    samples = rows(shared / "datasets" / "qwen25_math_samples" / "math_cot_100x8.jsonl.gz")
    problems = rows(shared / "datasets" / "math500" / "test.jsonl")
    handed = [row for row in rows(shared / "cases" / "math_handed.jsonl") if not TAGS & set(row["tags"])]
    found: list[tuple[float, Case]] = []
    for cases in (
        [(row["answer"], text, "completion") for row in samples for text in row["responses"]],
        [(one["answer"], two["solution"], "completion") for one, two in itertools.pairwise(problems)],
        [(row["gold"], row["pred"], row["kind"]) for row in handed],
    ):
        found += [(number / len(cases), case) for number, case in enumerate(cases)]  # type: ignore[misc]
    return [case for _, case in sorted(found, key=lambda item: item[0])]


def pairs(cases: list[Case]) -> list[Case]:
    """What a worker gets of ``cases``."""
    decided = [begin(gold, text, kind, MathPolicy()) for gold, text, kind in cases]
    return [(item.gold, item.answer, "answer") for item in decided if isinstance(item, Pending)]


def measure(pool: Pool, cases: list[Case]) -> tuple[float, Counter[str]]:
    start = time.perf_counter()
    statuses = Counter(result.status for result in verify_many(cases, pool=pool))
    return len(cases) / (time.perf_counter() - start), statuses


def straight(pool: Pool, cases: list[Case]) -> tuple[float, Counter[str]]:
    """Every case to a worker, also one that needs none."""
    policy = MathPolicy()
    start = time.perf_counter()
    futures = [pool.submit(gold, answer, policy) for gold, answer, _ in cases]
    statuses = Counter(future.result().status for future in futures)
    return len(cases) / (time.perf_counter() - start), statuses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--pools", default="processes,ray")
    options = parser.parse_args()
    whole = mixed(options.shared)
    costly = pairs(whole)
    hung = list(costly)
    for number in range(HUNG):
        hung.insert(number * len(costly) // HUNG, HANG)
    sets: dict[str, tuple[list[Case], Callable[[Pool, list[Case]], tuple[float, Counter[str]]], int]] = {
        "mixed": (whole, measure, options.rounds),
        "checks": (costly * 4, straight, options.rounds),
        "hung": (hung, straight, 1),
    }
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    statuses: dict[str, Counter[str]] = {}
    names: dict[str, Pool] = {}
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        for kind in options.pools.split(","):
            for workers in options.workers.split(","):
                config = MathConfig(pool=_kind(kind), workers=int(workers))
                pool = stack.enter_context(open_pool(config))
                straight(pool, costly)
                names[f"{kind} x{workers}"] = pool
        for set_name, (cases, way, rounds) in sets.items():
            for _ in range(rounds):
                for name, pool in names.items():
                    rate, found = way(pool, cases)
                    rates[set_name, name].append(rate)
                    agreed = statuses.setdefault(set_name, found)
                    if found != agreed:
                        raise SystemExit(f"{name} finds {found} in {set_name!r}, another pool {agreed}")
    table = Table(title=f"verdicts per second; {os.cpu_count()} CPUs, load {load:.1f} before the run")
    for column in ("pool", *(f"{name} ({len(cases)})" for name, (cases, _, _) in sets.items())):
        table.add_column(column)
    first = next(iter(names))
    for name in names:
        cells = []
        for set_name in sets:
            rate, base = (statistics.median(rates[set_name, key]) for key in (name, first))
            cells.append(f"{rate:,.0f}  ({rate / base:.2f}x)")
        table.add_row(name, *cells)
    Console(width=160).print(table)


def _kind(name: str) -> Literal["processes", "ray"]:
    return "ray" if name == "ray" else "processes"


if __name__ == "__main__":
    main()
