"""``gristmill demo``: a run with an end, and what came of it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gristmill.artifacts import from_uri
from gristmill.audit import Report
from gristmill.cli.audit import accounting_table
from gristmill.errors import GristmillError
from gristmill.local.delivery import setting
from gristmill.local.evaluate import Evaluation, evaluate, heldout_split
from gristmill.local.figures import Figures, figures
from gristmill.local.helpers import catch_interrupt
from gristmill.local.line import LocalLine, open_line
from gristmill.local.options import ResolvedLine
from gristmill.local.view import sparkline
from gristmill.local.watch import watch
from gristmill.messages import PolicyVersion, TrainingStep
from gristmill.reader import read_all
from gristmill.registry import open_codec
from gristmill.replay import audit_run


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a demo run came to."""

    run_id: str
    seconds: float
    rewards: dict[int, float]
    """Mean reward of all completions that each policy version sampled."""
    evaluations: tuple[Evaluation, ...]
    accounting: Report
    figures: Figures
    policy: PolicyVersion
    run_dir: Path
    config: Path


def run_demo(resolved: ResolvedLine, console: Console) -> Outcome | None:
    """Run the line to its target and sum up; None when the user stopped it before.

    Raises:
        StoppedByUser: the user stopped it while something was prepared or evaluated.
        GristmillError: a part died, the target was missed, or the accounts do not balance.
    """
    started = time.monotonic()
    with (
        catch_interrupt() as interrupt,
        open_line(resolved, lambda text: console.print(f"· {text}"), interrupt) as line,
    ):
        heldout = _heldout(line)
        evaluations = [_evaluate(line, heldout, "before", None, console)] if heldout else []
        line.start_services()
        watch(line, console, lambda: line.finished("grpo_trainer"), interrupt)
        if interrupt.requested:
            console.print("stopped before the target: draining")
            return None
        if line.watcher is not None:
            line.watcher.scrape()
        bad = line.stop_services(keep_engines=True)
        if bad:
            raise GristmillError(f"these parts did not stop cleanly: {bad}; see {resolved.run_dir / 'logs'}")
        report = audit_run(line.common)
        steps, rewards, policy, found = _records(line)
        if heldout:
            evaluations.append(_evaluate(line, heldout, "after", policy, console))
        outcome = Outcome(
            run_id=line.common.run_id,
            seconds=time.monotonic() - started,
            rewards=rewards,
            evaluations=tuple(evaluations),
            accounting=report,
            figures=found,
            policy=policy,
            run_dir=resolved.run_dir,
            config=line.config_path,
        )
    _save(outcome, steps)
    summarise(outcome, console)
    target = resolved.options.versions
    if target is not None and policy.version < target:
        raise GristmillError(f"the run ended at policy version {policy.version}, the target was {target}")
    if not report.balanced:
        raise GristmillError("the accounts do not balance:\n" + "\n".join(f"  {b}" for b in report.breaches[:20]))
    return outcome


def _heldout(line: LocalLine) -> Path | None:
    """File of held-out problems, None when evaluation is off."""
    count = line.local.eval_problems
    if count == 0:
        return None
    path = line.resolved.run_dir / "heldout.jsonl"
    source = line.local.eval_source
    split = heldout_split(source, setting(line.resolved.settings, "problems.sources", ()))
    line.helpers.export_problems(line.config_path, path, count=count, split=split, source=source)
    return path


def _evaluate(
    line: LocalLine, problems: Path, label: str, policy: PolicyVersion | None, console: Console
) -> Evaluation:
    with console.status(f"sampling held-out problems ({label})"):
        found = evaluate(line, problems, label, policy)
    console.print(f"· held-out pass@1 {label} training: {found.pass_at_1:.3f} ({found.correct} of {found.samples})")
    return found


def _records(line: LocalLine) -> tuple[dict[int, TrainingStep], dict[int, float], PolicyVersion, Figures]:
    """Training steps of the run, mean reward by policy version, the newest version, and figures."""
    stats = line.watcher.stats if line.watcher else None
    if stats is None or stats.policy is None:
        raise GristmillError("the trainer published no policy version")
    steps = {
        record.message.step: record.message
        for record in read_all(line.common, open_codec(line.common), line.topics.training, TrainingStep)
        if record.message is not None and record.message.run_id == line.common.run_id
    }
    found = figures(stats, steps.values())
    with stats.lock:
        return steps, stats.reward_curve, stats.policy, found


def _save(outcome: Outcome, steps: dict[int, TrainingStep]) -> None:
    """Write ``summary.json`` and ``training.jsonl`` into the run's folder: the embedded broker forgets."""
    summary: dict[str, Any] = {
        "run_id": outcome.run_id,
        "seconds": round(outcome.seconds, 1),
        "rewards": outcome.rewards,
        "evaluations": [{**asdict(found), "pass_at_1": found.pass_at_1} for found in outcome.evaluations],
        "accounting": {**asdict(outcome.accounting), "balanced": outcome.accounting.balanced},
        "figures": asdict(outcome.figures),
        "policy": {"version": outcome.policy.version, "uri": outcome.policy.uri, "sha256": outcome.policy.sha256},
    }
    (outcome.run_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    with (outcome.run_dir / "training.jsonl").open("w", encoding="utf-8") as file:
        for number in sorted(steps):
            step = steps[number]
            file.write(json.dumps({name: getattr(step, name) for name in step.__struct_fields__}) + "\n")


def summarise(outcome: Outcome, console: Console) -> None:
    """The closing summary."""
    title = f"mean reward of the completions of each policy version, run {outcome.run_id}"
    table = Table(title=title, title_justify="left")
    for column in ("version", "reward", ""):
        table.add_column(column, justify="right" if column else "left")
    for version, reward in outcome.rewards.items():
        table.add_row(str(version), f"{reward:.3f}", "█" * round(30 * max(0.0, min(1.0, reward))))
    console.print(table)
    curve = list(outcome.rewards.values())
    if curve:
        edge = max(1, len(curve) // 5)
        first, last = sum(curve[:edge]) / edge, sum(curve[-edge:]) / edge
        console.print(f"mean reward: {first:.3f} (first {edge}) → {last:.3f} (last {edge})   {sparkline(curve)}")
    for found in outcome.evaluations:
        console.print(
            f"held-out pass@1 {found.policy:>6}: {found.pass_at_1:.3f} "
            f"({found.correct} of {found.samples} samples of {found.problems} problems)"
        )
    for text in outcome.figures.lines():
        console.print(text, highlight=False)
    console.print(accounting_table(outcome.accounting))
    console.print(f"policy version {outcome.policy.version}: {from_uri(outcome.policy.uri)}", soft_wrap=True)
    console.print(f"run folder (config, logs, evaluation, summary.json): {outcome.run_dir}", soft_wrap=True)
    console.print(f"took {outcome.seconds:.0f} s")
