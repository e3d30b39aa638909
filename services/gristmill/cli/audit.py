"""``gristmill audit``: prove the accounting identity by replaying the topics."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gristmill.audit import Report
from gristmill.cli.options import Bootstrap, ConfigFile, settings_from
from gristmill.errors import GristmillError
from gristmill.replay import audit_run


def audit(
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Run to audit; the configured one by default.")] = None,
    topic_prefix: Annotated[str | None, typer.Option("--topic-prefix", help="Prefix of the topics.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Replay completions, verdicts, rejections, training and policies; exit 1 unless every sample is accounted for."""
    common = settings_from(config, bootstrap=bootstrap, run_id=run_id, topic_prefix=topic_prefix).common
    report = audit_run(common)
    if as_json:
        typer.echo(json.dumps({**asdict(report), "in_flight": report.in_flight, "balanced": report.balanced}))
    else:
        Console().print(accounting_table(report))
    if not report.balanced:
        shown = "\n".join(f"  {breach}" for breach in report.breaches[:20])
        raise GristmillError(f"run {report.run_id}: the accounts do not balance:\n{shown}")


def accounting_table(report: Report) -> Table:
    """The identity as a table."""
    table = Table(title=f"accounting of run {report.run_id}", title_justify="left")
    for column in ("admitted", "trained", "rejected", "filtered", "failed", "in flight", "balanced"):
        table.add_column(column, justify="right")
    numbers = (report.admitted, report.trained, report.rejected, report.filtered, report.failed, report.in_flight)
    table.add_row(*(f"{number:,}" for number in numbers), "yes" if report.balanced else "NO")
    details = [f"{why} {count:,}" for why, count in report.by_why.items()]
    details += [f"lag {lag}: {count:,}" for lag, count in report.lags.items()]
    table.caption = (
        f"{report.groups:,} groups, {report.versions} training steps, {report.duplicates:,} duplicates dropped"
        + (f"; {', '.join(details)}" if details else "")
    )
    return table
