"""The ``gristmill`` command.

Kernel commands are here; services add theirs by the entry-point group ``gristmill.commands`` (a dot in the name
nests). Errors that Gristmill raises on purpose are printed without a traceback and end with status 2 for a bad
configuration and 1 otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.markup import escape

from gristmill import __version__
from gristmill.cli.audit import audit
from gristmill.cli.config import config
from gristmill.cli.line import demo, up
from gristmill.cli.options import FLAG_CONTEXT
from gristmill.cli.run import run
from gristmill.cli.schemas import schemas
from gristmill.cli.tap import tap
from gristmill.cli.topics import topics
from gristmill.errors import ConfigError, GristmillError, MissingExtra
from gristmill.startup import heavy_imports

errors = Console(stderr=True)


def build() -> typer.Typer:
    """The command tree with the commands of the installed services."""
    app = typer.Typer(
        name="gristmill",
        help="A Kafka-native data factory for reinforcement learning from verifiable rewards.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    app.add_typer(config, name="config")
    app.add_typer(schemas, name="schemas")
    app.add_typer(topics, name="topics")
    app.command(context_settings=FLAG_CONTEXT)(run)
    app.command(context_settings=FLAG_CONTEXT)(up)
    app.command(context_settings=FLAG_CONTEXT)(demo)
    app.command()(tap)
    app.command()(audit)
    groups: dict[str, typer.Typer] = {}
    for point in sorted(entry_points(group="gristmill.commands"), key=lambda point: point.name):
        try:
            command: Any = point.load()
        except ModuleNotFoundError as error:
            command = _missing(point.name, error)
        parent, _, name = point.name.rpartition(".")
        target = app
        if parent:
            if parent not in groups:
                groups[parent] = typer.Typer(no_args_is_help=True, help=GROUP_HELP.get(parent))
                app.add_typer(groups[parent], name=parent)
            target = groups[parent]
        if isinstance(command, typer.Typer):
            target.add_typer(command, name=name)
        else:
            target.command(name)(command)
    return app


GROUP_HELP = {"verify": "Score completions offline, without the line."}


def _missing(name: str, error: ModuleNotFoundError) -> Any:
    """A command that says which dependency it lacks."""

    def unavailable() -> None:
        raise MissingExtra(f"gristmill {name.replace('.', ' ')}", "local", error.name or str(error))

    unavailable.__doc__ = f"(needs {error.name}: pip install 'gristmill[local]')"
    return unavailable


def _version(show: bool) -> None:
    if show:
        Console().print(f"gristmill {__version__}", highlight=False)
        raise typer.Exit


def _root(
    _version_flag: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Gristmill: problems go in; verified, policy-stamped rollouts and new policies come out."""


def main() -> None:
    """Entry point of the console script."""
    report_errors(_run)


def _run() -> None:
    with heavy_imports():
        app = build()
    app()


def report_errors(command: Callable[[], object]) -> None:
    """Run ``command``; print an error that Gristmill raised on purpose and exit with its status."""
    try:
        command()
    except ConfigError as error:
        errors.print(f"[bold red]configuration error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except GristmillError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)
