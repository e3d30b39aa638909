"""Accuracy and rate of the math verifier on the shared cases and data sets.

python benchmarks/math_verifier.py [--shared ../shared] [--workers N]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# This script has the name of the package that it measures: its own folder must not be searched first.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

from math_verifier.api import verify_many  # noqa: E402
from math_verifier.check import Kind  # noqa: E402
from math_verifier.pool import MathPool  # noqa: E402

Case = tuple[str, str, Kind]


def rows(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return [json.loads(line) for line in text.split("\n") if line]


def sets(shared: Path) -> dict[str, tuple[list[Case], list[bool]]]:
    """Cases and what must be said of each, by name."""
    data = shared / "datasets"
    handed = [row for row in rows(shared / "cases" / "math_handed.jsonl") if not row["contested"]]
    tame = [row for row in handed if not {"blow-up", "deep-nesting", "long", "whitespace"} & set(row["tags"])]
    found: dict[str, tuple[list[Case], list[bool]]] = {}
    for name, chosen in (("handed", handed), ("handed, no blow-ups", tame)):
        found[name] = [(row["gold"], row["pred"], row["kind"]) for row in chosen], [row["expected"] for row in chosen]
    for split in ("train", "test"):
        texts = [row["answer"] for row in rows(data / "gsm8k" / f"{split}.jsonl")]
        cases: list[Case] = [(text.rpartition("####")[2].strip(), text, "completion") for text in texts]
        found[f"GSM8K {split}, own answer"] = cases, [True] * len(cases)
    problems = rows(data / "math500" / "test.jsonl")
    following = [*problems[1:], problems[0]]
    own: list[Case] = [(row["answer"], row["solution"], "completion") for row in problems]
    found["MATH-500, own answer"] = own, [True] * len(own)
    crossed: list[Case] = [
        (one["answer"], two["solution"], "completion") for one, two in zip(problems, following, strict=True)
    ]
    found["MATH-500, next answer"] = (
        crossed,
        [one["answer"] == two["answer"] for one, two in zip(problems, following, strict=True)],
    )
    samples = rows(data / "qwen25_math_samples" / "math_cot_100x8.jsonl.gz")
    real: list[Case] = [(row["answer"], text, "completion") for row in samples for text in row["responses"]]
    found["Qwen2.5-Math completions"] = real, [bool(score) for row in samples for score in row["score_corrected"]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    table = Table(title=f"math_verifier, {options.workers} worker(s)")
    for column in ("set", "rows", "as expected", "false accept", "false reject", "rows/s", "slowest s", "stages"):
        table.add_column(column)
    with MathPool(options.workers) as pool:
        list(verify_many([("x+1", "1+x")] * 4 * options.workers, kind="answer", pool=pool))
        for name, (cases, expected) in sets(options.shared).items():
            start = time.perf_counter()
            results = list(verify_many(cases, pool=pool))
            seconds = time.perf_counter() - start
            pairs = [(result.correct, wanted) for result, wanted in zip(results, expected, strict=True)]
            stages = Counter(result.stage for result in results)
            table.add_row(
                name,
                str(len(cases)),
                str(sum(got == wanted for got, wanted in pairs)),
                str(sum(got and not wanted for got, wanted in pairs)),
                str(sum(wanted and not got for got, wanted in pairs)),
                f"{len(cases) / seconds:,.0f}",
                f"{max(result.seconds for result in results):.3f}",
                ", ".join(f"{stage} {count}" for stage, count in stages.most_common()),
            )
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
