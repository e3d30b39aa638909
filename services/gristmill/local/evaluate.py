"""pass@1 on held-out problems, sampled by the line's own engine and scored by its own verifier."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.local.line import LocalLine


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Outcome of sampling ``problems`` held-out problems ``samples`` times in all."""

    policy: str
    problems: int
    samples: int
    correct: int

    @property
    def pass_at_1(self) -> float:
        """Share of samples that were correct; 0 when nothing was sampled."""
        return self.correct / self.samples if self.samples else 0.0


def evaluate(line: LocalLine, problems: Path, label: str, adapter: Path | None) -> Evaluation:
    """Sample every problem of the file and verify the completions.

    Args:
        problems: JSONL file of ``gristmill problems export``.
        label: names the policy in files and tables.
        adapter: folder of the LoRA adapter, None for the base policy.

    Raises:
        GristmillError: sampling or verification failed.
    """
    folder = line.resolved.run_dir / "evaluation"
    folder.mkdir(exist_ok=True)
    completions = folder / f"{label}.completions.jsonl"
    samples = line.local.eval_samples
    sample = ["sample", "--config", str(line.config_path), "--in", str(problems), "--out", str(completions)]
    sample += ["--engine", line.engine_urls[0], "--samples", str(samples)]
    if adapter is not None:
        sample += ["--adapter", str(adapter)]
    line.helpers.run(sample, f"sampling held-out problems ({label})")
    rows: list[dict[str, Any]] = []
    for kind, part in _by_kind(completions).items():
        verdicts = part.with_suffix(".verdicts.jsonl")
        verify = ["verify", kind, "--config", str(line.config_path), "--in", str(part), "--out", str(verdicts)]
        line.helpers.run(verify, f"verifying them ({label})")
        rows += [json.loads(row) for row in verdicts.read_text(encoding="utf-8").split("\n") if row]
    return Evaluation(label, len(rows) // samples, len(rows), sum(bool(row["correct"]) for row in rows))


def _by_kind(completions: Path) -> dict[str, Path]:
    """The completions in a file for each verifier; those with tests are code."""
    parts: dict[str, list[str]] = {}
    for row in completions.read_text(encoding="utf-8").split("\n"):
        if row:
            parts.setdefault("code" if "tests" in json.loads(row) else "math", []).append(row)
    label = completions.name.removesuffix(".completions.jsonl")
    files = {kind: completions.with_name(f"{label}.{kind}.jsonl") for kind in parts}
    for kind, path in files.items():
        path.write_text("".join(f"{row}\n" for row in parts[kind]), encoding="utf-8")
    return files
