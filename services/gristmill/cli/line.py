"""``gristmill up`` and ``gristmill demo``: the whole line on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gristmill.cli.options import Bootstrap, ConfigFile
from gristmill.config import parse_overrides
from gristmill.errors import GristmillError
from gristmill.local.demo import run_demo
from gristmill.local.helpers import StoppedByUser, catch_interrupt
from gristmill.local.line import make_run_id, open_line
from gristmill.local.options import LineOptions, ResolvedLine, resolve
from gristmill.local.watch import watch

INTERRUPTED = 130

Policy = Annotated[str, typer.Option("--policy", help="tiny, smollm2, a local model folder, or a hub id.")]
Source = Annotated[
    list[str] | None,
    typer.Option("--source", help="Problem source, for example gsm8k:train.jsonl; arithmetic by default. Repeatable."),
]
Engines = Annotated[
    list[str] | None, typer.Option("--engine", help="URL of a running SGLang server; none starts the embedded engine.")
]
RunId = Annotated[str | None, typer.Option("--run-id", help="Name of the run; made from the time by default.")]


def up(
    context: typer.Context,
    policy: Policy = "tiny",
    source: Source = None,
    engine: Engines = None,
    bootstrap: Bootstrap = None,
    versions: Annotated[int | None, typer.Option(min=1, help="Stop after this many policy versions.")] = None,
    run_id: RunId = None,
    config: ConfigFile = None,
) -> None:
    """Start broker, topics, engine and services, and show the line live. Ctrl-C drains and stops it."""
    console = Console()
    resolved = _resolve(context, "up", policy, source, engine, bootstrap, versions, run_id, config)
    try:
        with (
            catch_interrupt() as interrupt,
            open_line(resolved, lambda text: console.print(f"· {text}"), interrupt) as line,
        ):
            line.start_services()
            watch(line, console, lambda: line.finished("grpo_trainer"), interrupt)
            console.print("draining: upstream first, what was begun is finished and committed")
            bad = line.stop_services()
    except StoppedByUser as stopped:
        console.print(f"{stopped}; nothing is left running")
        raise typer.Exit(INTERRUPTED) from None
    if bad:
        raise GristmillError(f"these parts did not stop cleanly: {bad}; see {resolved.run_dir / 'logs'}")
    console.print(f"stopped. Run folder: {resolved.run_dir}", soft_wrap=True)


def demo(
    context: typer.Context,
    policy: Policy = "tiny",
    source: Source = None,
    engine: Engines = None,
    bootstrap: Bootstrap = None,
    versions: Annotated[int, typer.Option(min=1, help="Policy versions to train.")] = 15,
    run_id: RunId = None,
    config: ConfigFile = None,
) -> None:
    """Train a number of policy versions, then sum up: rewards, held-out pass@1, accounting, where everything lies."""
    resolved = _resolve(context, "demo", policy, source, engine, bootstrap, versions, run_id, config)
    console = Console()
    try:
        if run_demo(resolved, console) is not None:
            return
    except StoppedByUser as stopped:
        console.print(f"{stopped}; nothing is left running")
    raise typer.Exit(INTERRUPTED)


def _resolve(
    context: typer.Context,
    prefix: str,
    policy: str,
    source: list[str] | None,
    engine: list[str] | None,
    bootstrap: str | None,
    versions: int | None,
    run_id: str | None,
    config: Path | None,
) -> ResolvedLine:
    flags = parse_overrides(context.args)
    if run_id is not None:
        flags["run_id"] = run_id
    options = LineOptions(
        policy=policy,
        sources=tuple(source or ()),
        engines=tuple(engine or ()),
        bootstrap=bootstrap,
        versions=versions,
        hold_out=prefix == "demo",
        config_file=config,
        flags=flags,
    )
    return resolve(options, make_run_id(prefix))
