"""Show a running line until it is done, it dies, or the user stops it."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from gristmill.local.helpers import Interrupt
from gristmill.local.line import LocalLine
from gristmill.local.view import render, sparkline

FRAMES_PER_SECOND = 4


def watch(line: LocalLine, console: Console, done: Callable[[], bool], interrupt: Interrupt) -> None:
    """Show the line until ``done`` or an interrupt.

    Raises:
        PartDied: a part ended that should run.
    """
    started, target = time.monotonic(), line.resolved.options.versions
    stats = line.watcher.stats if line.watcher else None
    if stats is None:
        raise RuntimeError("the services were not started")

    def step() -> bool:
        line.check()
        time.sleep(1 / FRAMES_PER_SECOND)
        return not (done() or interrupt.requested)

    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while step():
                live.update(render(stats, list(line.parts.values()), started, target), refresh=True)
            live.update(render(stats, list(line.parts.values()), started, target), refresh=True)
        return
    last, said_at = -1, 0.0
    while step():
        version = stats.last_step.step if stats.last_step else 0
        if version != last or time.monotonic() - said_at > line.local.status_interval_s:
            last, said_at = version, time.monotonic()
            console.print(status_line(line, time.monotonic() - started), highlight=False, soft_wrap=True)


def status_line(line: LocalLine, seconds: float) -> str:
    """One line for logs: where the run is."""
    stats = line.watcher.stats if line.watcher else None
    if stats is None:
        return "starting"
    with stats.lock:
        curve = list(stats.reward_curve.values())
        reward = f"{curve[-1]:.3f} {sparkline(curve, 20)}" if curve else "-"
        version = stats.policy.version if stats.policy else "-"
        dead = stats.topics[line.topics.dead_letters.name].records
        return (
            f"{seconds:6.1f} s  version {version}  reward {reward}  in flight {stats.groups_in_flight} groups  "
            f"verdicts {sum(stats.statuses.values()):,}  {stats.tokens.per_second():,.0f} tokens/s  dead letters {dead}"
        )
