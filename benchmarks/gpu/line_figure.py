"""Figure of runs of `line.sh`: reward by policy version, and how far the engine's logprobs are from the trainer's.

    pip install matplotlib
    python benchmarks/gpu/line_figure.py --out line.svg "0.5B, one H200=out/line05" "1.5B, two H200s=out/line15"

Each argument is a label and the OUT folder of a run. The upper panel is the mean reward of all completions by version;
a dot at the left is held-out pass@1 before training, one at the right after. The lower one is ``mismatch_kl`` of each
step: of all tokens, and (dashed) of those that the same version sampled.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt


def main() -> None:
    """Draw the runs that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of the figure; its ending says the format")
    parser.add_argument("runs", nargs="+", metavar="LABEL=FOLDER")
    arguments = parser.parse_args()
    # Text as text, and the same bytes for the same runs.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gristmill", "font.size": 9})
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(7, 5.5), height_ratios=(3, 2))
    for run in arguments.runs:
        label, _, folder = run.partition("=")
        draw(upper, lower, label, Path(folder))
    upper.set_ylabel("mean reward; dots: held-out pass@1")
    upper.set_ylim(0, 1)
    upper.legend(loc="upper left", ncols=2, frameon=False)
    lower.set_ylabel("mismatch KL per token")
    lower.set_yscale("log")
    lower.set_xlabel("policy version")
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(arguments.out, metadata={"Date": None} if arguments.out.suffix == ".svg" else None)


def draw(upper: plt.Axes, lower: plt.Axes, label: str, folder: Path) -> None:
    """One run, in one colour."""
    summary = json.loads((folder / "summary.json").read_text())
    steps = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
    versions = [int(version) for version in summary["rewards"]]
    (line,) = upper.plot(versions, list(summary["rewards"].values()), marker=".", label=label)
    ends = {"before": versions[0], "after": versions[-1]}
    for found in summary["evaluations"]:
        upper.plot(ends[found["policy"]], found["pass_at_1"], "o", color=line.get_color(), markerfacecolor="none")
    numbers = [step["version"] for step in steps]
    lower.plot(numbers, [step["mismatch_kl"] for step in steps], color=line.get_color())
    # A step without samples of its own version has none: a gap in the line.
    fresh = [step["metrics"].get("mismatch/kl_lag0") or float("nan") for step in steps]
    lower.plot(numbers, fresh, color=line.get_color(), linestyle="--")


if __name__ == "__main__":
    main()
