"""``gristmill run``: one service in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.cli.options import Bootstrap, ConfigFile, settings_from
from gristmill.service import find_service, run_service


def run(
    context: typer.Context,
    service: Annotated[str, typer.Argument(help="Name of the service, for example math_verifier.")],
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", help="Port of /metrics, /healthz and /readyz; 0 picks a free one.")
    ] = None,
) -> None:
    """Run one service. Any setting can be given as --section.key=value."""
    settings = settings_from(config, context.args, bootstrap=bootstrap, metrics_port=metrics_port)
    run_service(find_service(service), settings)
