"""The table of `throughput.sh`."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

_PREFILL = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^]]*\] Prefill batch, #new-seq: (\d+)")
BUSY = 5.0
"""A GPU below this many percent is waiting for a round, not serving it."""


def main(out: Path) -> None:
    """Read what the script left in ``out`` and print it."""
    print(
        "| in flight | bare tokens/s | service tokens/s | ratio (tokens) | by round | ratio in the middle | "
        "prompts a prefill, bare / service | GPU use |"
    )
    print("|---|---|---|---|---|---|---|---|")
    prefills = read_prefills(out / "throughput.log")
    rows = []
    for text in sorted(out.glob("rate-*.txt")):
        file = text.with_suffix(".json")
        if not file.is_file():
            last = text.read_text().strip().splitlines()[-1:] or ["nothing was written"]
            print(f"| {text.stem} | {last[0][:150]} | | | | | | |")
            continue
        found = json.loads(file.read_text())
        row = {
            "in_flight": found["in_flight"],
            "found": found["found"],
            "bare_tokens_per_s": median(found["bare"], "token_rate"),
            "service_tokens_per_s": median(found["service"], "token_rate"),
            "ratios_tokens": ratios(found, "token_rate"),
            "ratios_middle": ratios(found, "middle_rate"),
            "prefill_sizes": [prefill_size(found[side], prefills) for side in ("bare", "service")],
            "gpu_percent": utilisation(out / f"{text.stem}.csv"),
        }
        rows.append(row)
        use = row["gpu_percent"]
        sizes = " / ".join("" if size is None else f"{size:.1f}" for size in row["prefill_sizes"])
        print(
            f"| {row['in_flight']}{' (found)' if row['found'] else ''} | {row['bare_tokens_per_s']:,.0f} | "
            f"{row['service_tokens_per_s']:,.0f} | {statistics.median(row['ratios_tokens']):.3f} | "
            f"{', '.join(f'{one:.3f}' for one in row['ratios_tokens'])} | "
            f"{statistics.median(row['ratios_middle']):.3f} | "
            f"{sizes} | {'' if use is None else f'{use:.0f} %'} |"
        )
    (out / "throughput.json").write_text(json.dumps(rows, indent=1))
    without = (out / "without_graph.txt").read_text().strip() if (out / "without_graph.txt").is_file() else "?"
    print(f"\ndecode batches without a CUDA graph in the server's log: {without}")
    deliveries(out / "delivery.json", utilisation(out / "deliver.csv"))


def median(rounds: list[dict[str, Any]], what: str) -> float:
    """Median of a figure over the rounds of one side."""
    return statistics.median(one[what] for one in rounds)


def ratios(found: dict[str, Any], what: str) -> list[float]:
    """Service against bare client, round by round; no number where a round has no such figure."""
    pairs = zip(found["service"], found["bare"], strict=True)
    return [service[what] / (bare[what] or math.nan) for service, bare in pairs]


def read_prefills(log: Path) -> list[tuple[float, int]]:
    """Of each prefill in SGLang's log: when (seconds since the epoch, whole ones), of how many sequences."""
    if not log.is_file():
        return []
    found = []
    with log.open(errors="replace") as lines:
        for line in lines:
            if match := _PREFILL.match(line):
                found.append((datetime.fromisoformat(match[1]).timestamp(), int(match[2])))
    return found


def prefill_size(rounds: list[dict[str, Any]], prefills: list[tuple[float, int]]) -> float | None:
    """Sequences per prefill in the rounds of one side, by the server's own log; None where that tells nothing.

    The first and last second of a round are left out: the log's times are whole seconds, and the first burst is no
    refill.
    """
    sizes = [
        size
        for at, size in prefills
        if any(one["began"] + 1 <= at < one["began"] + one["seconds"] - 1 for one in rounds)
    ]
    return statistics.fmean(sizes) if sizes else None


def utilisation(file: Path) -> float | None:
    """Mean percent over the seconds in which the GPU did something."""
    if not file.is_file():
        return None
    with file.open() as lines:
        values = [float(row[2]) for row in csv.reader(lines) if len(row) == 4]
    busy = [value for value in values if value >= BUSY]
    return statistics.fmean(busy) if busy else None


def deliveries(file: Path, use: float | None) -> None:
    """What updates under full load cost; ``use`` is the GPU's meanwhile, in percent."""
    if not file.is_file():
        return
    for name, result in json.loads(file.read_text()).items():
        rate = result.get("throughput")
        if rate is None:
            print(f"updates by {name}: {result.get('error', 'not measured')[:200]}")
            continue
        print(
            f"updates by {name}: {rate['calm_tokens_per_s']:,.0f} tokens/s without, {rate['tokens_per_s']:,.0f} with "
            f"one every {rate['period_s']:.1f} s: {rate['lost_s_per_version']:.2f} s lost per version"
            + ("" if use is None else f"; GPU use {use:.0f} %")
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
