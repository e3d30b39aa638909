"""``gristmill up`` and ``gristmill demo``: the whole line on this machine."""

from __future__ import annotations

from dataclasses import replace
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
    list[str] | None,
    typer.Option(
        "--engine",
        help="'sglang' starts SGLang, one server per GPU (local.sglang); a URL names a running server, repeatable; "
        "none starts the embedded engine.",
    ),
]
Gpus = Annotated[
    list[str] | None,
    typer.Option(
        "--gpus",
        metavar="ROLE=LIST",
        help="GPUs of a role by index or UUID: --gpus trainer=0 --gpus engine=1,2. By default the trainer gets the "
        "first and the engines the others.",
    ),
]
ShareGpu = Annotated[
    bool, typer.Option("--share-gpu", help="Let trainer and engine share a GPU, each with a share of its memory.")
]
RunId = Annotated[str | None, typer.Option("--run-id", help="Name of the run; made from the time by default.")]


def up(
    context: typer.Context,
    policy: Policy = "tiny",
    source: Source = None,
    engine: Engines = None,
    gpus: Gpus = None,
    share_gpu: ShareGpu = False,
    bootstrap: Bootstrap = None,
    versions: Annotated[int | None, typer.Option(min=1, help="Stop after this many policy versions.")] = None,
    run_id: RunId = None,
    config: ConfigFile = None,
) -> None:
    """Start broker, topics, engine and services, and show the line live. Ctrl-C drains and stops it."""
    console = Console()
    chosen = LineOptions(policy=policy, sources=tuple(source or ()), engines=tuple(engine or ()))
    chosen = replace(chosen, gpus=tuple(gpus or ()), share_gpu=share_gpu, bootstrap=bootstrap, versions=versions)
    resolved = _resolve(context, "up", chosen, run_id, config)
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
    gpus: Gpus = None,
    share_gpu: ShareGpu = False,
    bootstrap: Bootstrap = None,
    versions: Annotated[int, typer.Option(min=1, help="Policy versions to train.")] = 15,
    run_id: RunId = None,
    config: ConfigFile = None,
) -> None:
    """Train a number of policy versions, then sum up: rewards, held-out pass@1, accounting, where everything lies."""
    chosen = LineOptions(policy=policy, sources=tuple(source or ()), engines=tuple(engine or ()), hold_out=True)
    chosen = replace(chosen, gpus=tuple(gpus or ()), share_gpu=share_gpu, bootstrap=bootstrap, versions=versions)
    resolved = _resolve(context, "demo", chosen, run_id, config)
    console = Console()
    try:
        if run_demo(resolved, console) is not None:
            return
    except StoppedByUser as stopped:
        console.print(f"{stopped}; nothing is left running")
    raise typer.Exit(INTERRUPTED)


def _resolve(
    context: typer.Context, prefix: str, chosen: LineOptions, run_id: str | None, config: Path | None
) -> ResolvedLine:
    flags = parse_overrides(context.args)
    if run_id is not None:
        flags["run_id"] = run_id
    return resolve(replace(chosen, config_file=config, flags=flags), make_run_id(prefix))
