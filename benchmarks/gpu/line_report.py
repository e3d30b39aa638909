"""The table of `line.sh`: one row per policy version, then what the run came to."""

from __future__ import annotations

import csv
import json
import statistics
import sys
from pathlib import Path
from typing import Any


def main(out: Path) -> None:
    """Read what the run left in ``out`` and print it."""
    file = out / "training.jsonl"
    if not file.is_file():
        sys.exit(f"line_report: no {file}: the run did not get to its end; see {out / 'line.txt'}")
    steps = [json.loads(row) for row in file.read_text().splitlines()]
    print("| version | reward | staleness | mismatch KL | largest ratio | length | cut off | wait | train | publish |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for step in steps:
        lags = ", ".join(f"{lag}: {count}" for lag, count in sorted(step["staleness"].items(), key=lambda i: int(i[0])))
        print(
            f"| {step['version']} | {step['reward_mean']:.3f} | {lags} | {step['mismatch_kl']:.5f} | "
            f"{step['mismatch_max_ratio']:.2f} | {step['completion_length_mean']:.0f} | "
            f"{step['truncated_fraction']:.3f} | {step['wait_s']:.1f} | {step['train_s']:.1f} | "
            f"{step['publish_s']:.2f} |"
        )
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    print("\nreward of all completions by version:")
    print(" ".join(f"{version}:{reward:.3f}" for version, reward in summary["rewards"].items()))
    for found in summary["evaluations"]:
        print(f"held-out pass@1 {found['policy']}: {found['pass_at_1']:.4f} ({found['correct']} of {found['samples']})")
    print(f"accounts balanced: {summary['accounting']['balanced']}; seconds: {summary['seconds']}")
    print(f"figures: {json.dumps(summary['figures'])}")
    show_gpus(out / "gpu.csv")


def show_gpus(file: Path) -> None:
    """Mean utilisation and largest memory of each GPU."""
    if not file.is_file():
        return
    rows: dict[str, list[tuple[float, float]]] = {}
    with file.open() as lines:
        for row in csv.reader(lines):
            if len(row) == 4:
                rows.setdefault(row[1].strip(), []).append((float(row[2]), float(row[3])))
    for gpu, values in sorted(rows.items()):
        busy = statistics.fmean(use for use, _ in values)
        print(f"GPU {gpu}: utilisation {busy:.0f} % on average, at most {max(m for _, m in values):,.0f} MiB in use")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
