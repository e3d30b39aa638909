"""What the ``verify`` commands have in common: a file in, a file out, a progress bar, a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO, TypeAlias

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gristmill.cli.output import complete_file
from gristmill.offline import Report

VerifyLines: TypeAlias = Callable[[Iterable[str], TextIO, Report, Callable[[int], None]], None]


def verify_file(source: Path, target: Path, pool: AbstractContextManager[object], verify: VerifyLines) -> None:
    """Verify ``source`` into ``target`` and say what came of it; exit 1 if there were bad rows.

    Args:
        source: JSONL rows.
        target: where the verdict rows go.
        pool: what ``verify`` runs on; started when both files are open, closed at the end.
        verify: see :func:`gristmill.offline.verify_lines`.

    Raises:
        BadInput: a file cannot be read or written.
    """
    console = Console(stderr=True, highlight=False)
    report = Report()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        complete_file(target) as out,
        source.open(encoding="utf-8", errors="replace") as lines,
        pool,
        Progress(*columns, console=console) as progress,
    ):
        bar = progress.add_task("characters", total=source.stat().st_size)
        verify(lines, out, report, lambda size: progress.advance(bar, size))
        progress.update(bar, completed=source.stat().st_size)
    counts = ", ".join(f"{count} {status}" for status, count in report.statuses.most_common())
    console.print(f"{report.statuses.total()} rows verified: {counts or 'none'}")
    for problem in report.bad:
        console.print(f"{source}: {problem}", style="red", markup=False, soft_wrap=True)
    if report.bad:
        raise typer.Exit(1)
