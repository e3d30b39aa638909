"""``gristmill verify math``: the verifier without the line."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli.options import ConfigFile


class PoolKind(StrEnum):
    """``math.pool`` as a flag."""

    PROCESSES = "processes"
    RAY = "ray"


def verify_math(
    source: Annotated[
        Path,
        typer.Option("--in", help='JSONL rows {"id", "gold", "pred" or "completion"}.', exists=True, dir_okay=False),
    ],
    target: Annotated[Path, typer.Option("--out", help="Where the verdict rows go, in the order of the input.")],
    pool: Annotated[PoolKind | None, typer.Option(help="Where checks run; as configured unless set.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes or Ray actors; as many as CPUs unless set.", min=1)
    ] = None,
    time_limit: Annotated[float | None, typer.Option("--time-limit", help="Seconds of one check.", min=0.01)] = None,
    config_file: ConfigFile = None,
) -> None:
    """Check math answers in a file against their references; the policy comes from the ``math`` section."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from gristmill.cli.options import settings_from
    from gristmill.cli.output import complete_file
    from gristmill.errors import MissingExtra
    from math_verifier.config import MathConfig

    try:
        from math_verifier.offline import Report, verify_lines
        from math_verifier.pool import open_pool
    except ModuleNotFoundError as error:
        raise MissingExtra("checking mathematics", "math", error.name or "sympy") from error

    config = settings_from(config_file).section("math", MathConfig)
    console = Console(stderr=True, highlight=False)
    report = Report()
    if pool is not None:
        config = config.model_copy(update={"pool": pool.value})
    checkers = open_pool(config, workers=workers, time_limit_s=time_limit)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        complete_file(target) as out,
        source.open(encoding="utf-8", errors="replace") as lines,
        checkers,
        Progress(*columns, console=console) as progress,
    ):
        bar = progress.add_task("characters", total=source.stat().st_size)
        verify_lines(lines, out, config.policy, checkers, report, lambda size: progress.advance(bar, size))
        progress.update(bar, completed=source.stat().st_size)
    counts = ", ".join(f"{count} {status}" for status, count in report.statuses.most_common())
    console.print(f"{report.statuses.total()} rows verified: {counts or 'none'}")
    for problem in report.bad:
        console.print(f"{source}: {problem}", style="red", markup=False, soft_wrap=True)
    if report.bad:
        raise typer.Exit(1)
