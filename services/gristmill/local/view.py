"""The live table of the local runner, as a Rich renderable of one moment's statistics."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gristmill.local.process import Part
from gristmill.local.stats import LineStats

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The last ``width`` values as blocks, scaled from 0 to the largest (at least 1)."""
    shown = list(values)[-width:]
    top = max([1.0, *shown])
    return "".join(BLOCKS[min(7, int(8 * max(0.0, value) / top))] for value in shown)


def render(stats: LineStats, parts: Sequence[Part], started: float, target: int | None) -> RenderableType:
    """The table: topics with rates and lag on top, the run below, the parts last."""
    with stats.lock:
        return Panel(
            Group(_topics(stats), _run(stats, target), _parts(parts)),
            title=f"gristmill · run {stats.run_id} · {_elapsed(time.monotonic() - started)}",
            title_align="left",
        )


def _topics(stats: LineStats) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("topic")
    for column in ("records", "per second", "lag"):
        table.add_column(column, justify="right")
    for name, topic in stats.topics.items():
        lag = "" if topic.lag is None else f"{topic.lag:,}"
        style = "red" if name.endswith("dead-letters") and topic.records else ""
        table.add_row(name, f"{topic.records:,}", f"{topic.rate.per_second():.1f}", lag, style=style)
    return table


def _run(stats: LineStats, target: int | None) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    policy, curve = stats.policy, list(stats.reward_curve.values())
    version = "waiting" if policy is None else f"{policy.version}" + (f" of {target}" if target else "")
    table.add_row("policy version", version)
    table.add_row("groups in flight", f"{stats.groups_in_flight}")
    if policy is not None:
        table.add_row(
            "samples",
            f"trained {policy.trained:,}, filtered {policy.filtered:,}, rejected {policy.rejected:,}, "
            f"failed {policy.failed:,}",
        )
    last = stats.last_step
    if last is not None:
        lags = ", ".join(f"{lag}: {count}" for lag, count in sorted(last.staleness.items(), key=lambda i: int(i[0])))
        table.add_row("staleness", f"{lags} (bound {policy.max_staleness})" if policy else lags)
        table.add_row("mismatch KL", f"{last.mismatch_kl:.2e}")
    if curve:
        table.add_row("reward mean", Text(f"{curve[-1]:.3f}  {sparkline(curve)}", style="green"))
    table.add_row("verdicts", ", ".join(f"{status} {count:,}" for status, count in stats.statuses.most_common()))
    table.add_row("tokens per second", f"{stats.tokens.per_second():,.0f}")
    if stats.last_dead_letter:
        table.add_row("last dead letter", Text(stats.last_dead_letter, style="red"))
    return table


def _parts(parts: Sequence[Part]) -> Text:
    text = Text()
    for part in parts:
        if not part.started:
            style, mark = "dim", "·"
        elif part.status is None:
            style, mark = "green", "●"
        elif part.finished:
            style, mark = "blue", "✓"
        else:
            style, mark = "bold red", "✗"
        text.append(f"{mark} {part.name}  ", style=style)
    return text


def _elapsed(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
