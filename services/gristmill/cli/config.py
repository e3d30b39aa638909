"""``gristmill config``: what the configuration is, and what it can be."""

from __future__ import annotations

from typing import Any

import typer
import yaml
from pydantic import SecretStr
from rich.console import Console
from rich.syntax import Syntax

from gristmill.cli.options import FLAG_CONTEXT, ConfigFile, settings_from

config = typer.Typer(no_args_is_help=True, help="Inspect the configuration.")


@config.command("show", context_settings=FLAG_CONTEXT)
def show(context: typer.Context, config: ConfigFile = None) -> None:
    """Print the configuration in force as YAML: defaults, environment, file and flags merged. Secrets are masked."""
    settings = settings_from(config, context.args)
    text = yaml.safe_dump(plain(settings.model_dump(mode="python")), sort_keys=False, allow_unicode=True)
    console = Console()
    if console.is_terminal:
        console.print(Syntax(text, "yaml", background_color="default"))
    else:
        typer.echo(text, nl=False)


@config.command("reference")
def reference() -> None:
    """Print the configuration reference (docs/configuration.md) as Markdown."""
    from gristmill.config_reference import render

    typer.echo(render(), nl=False)


def plain(value: Any) -> Any:
    """Values that YAML knows: secrets masked, paths as text, tuples as lists."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, SecretStr):
        return "***" if value.get_secret_value() else ""
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)
