"""The table of `throughput.sh`."""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from pathlib import Path

HEAD = re.compile(r"(\d+) requests in flight(?: \((found)\))?")
SIDE = re.compile(r"^\s+(bare|service)\s+([\d.,]+) completions/s\s+([\d.,]+) tokens/s\s+([\d.,]+) ms", re.MULTILINE)
RATIO = re.compile(r"^\s+ratio\s+([\d.]+) (\w+)", re.MULTILINE)
BUSY = 5.0
"""A GPU below this many percent is waiting for a round, not serving it."""


def main(out: Path) -> None:
    """Read what the script left in ``out`` and print it."""
    print("| in flight | bare tokens/s | service tokens/s | ratio (completions) | ratio (tokens) | GPU use |")
    print("|---|---|---|---|---|---|")
    rows = []
    for file in sorted(out.glob("rate-*.txt")):
        text = file.read_text()
        head = HEAD.search(text)
        sides = {side: (rate, tokens) for side, rate, tokens, _ in SIDE.findall(text)}
        ratios = {what: value for value, what in RATIO.findall(text)}
        if head is None or len(sides) < 2:
            last = text.strip().splitlines()[-1:] or ["nothing was written"]
            print(f"| {file.stem} | {last[0][:150]} | | | | |")
            continue
        use = utilisation(out / f"{file.stem}.csv")
        row = {
            "in_flight": int(head[1]),
            "found": head[2] is not None,
            "bare_tokens_per_s": sides["bare"][1],
            "service_tokens_per_s": sides["service"][1],
            "ratio_completions": ratios.get("completions"),
            "ratio_tokens": ratios.get("tokens"),
            "gpu_percent": use,
        }
        rows.append(row)
        print(
            f"| {row['in_flight']}{' (found)' if row['found'] else ''} | {row['bare_tokens_per_s']} | "
            f"{row['service_tokens_per_s']} | {row['ratio_completions']} | {row['ratio_tokens']} | "
            f"{'' if use is None else f'{use:.0f} %'} |"
        )
    (out / "throughput.json").write_text(json.dumps(rows, indent=1))
    without = (out / "without_graph.txt").read_text().strip() if (out / "without_graph.txt").is_file() else "?"
    print(f"\nlines of the server's log with 'cuda graph: False': {without}")
    deliveries(out / "delivery.json")


def utilisation(file: Path) -> float | None:
    """Mean percent over the seconds in which the GPU did something."""
    if not file.is_file():
        return None
    with file.open() as lines:
        values = [float(row[2]) for row in csv.reader(lines) if len(row) == 4]
    busy = [value for value in values if value >= BUSY]
    return statistics.fmean(busy) if busy else None


def deliveries(file: Path) -> None:
    """What updates under full load cost."""
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
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
