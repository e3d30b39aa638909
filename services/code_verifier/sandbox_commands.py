"""``gristmill sandbox``: the sandbox's image, its self-test, and what it left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer

from gristmill.cli.options import ConfigFile

sandbox = typer.Typer(no_args_is_help=True, help="The code sandbox: its image, its limits, its leftovers.")

Runtime = Literal["runc", "runsc"]
Host = Annotated[str | None, typer.Option("--docker-host", help="Address of the Docker engine; code.docker_host.")]


@contextmanager
def _needs_docker() -> Iterator[None]:
    """Imports of the Docker part: without the extra, an error that names it."""
    from gristmill.errors import MissingExtra

    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra("the code sandbox", "code", error.name or "docker") from error


@sandbox.command()
def build(
    base: Annotated[
        str, typer.Option(help="Image below it: Debian's kind, with Python 3.11 or newer.")
    ] = "python:3.12-slim",
    tag: Annotated[str | None, typer.Option(help="Name of the image; code.image unless given.")] = None,
    docker_host: Host = None,
    config_file: ConfigFile = None,
) -> None:
    """Build the image from the installed package."""
    from rich.console import Console
    from rich.markup import escape

    from code_verifier.config import CodeConfig
    from gristmill.cli.options import settings_from

    with _needs_docker():
        from code_verifier.engine import connect
        from code_verifier.image import build_image

    config = settings_from(config_file).section("code", CodeConfig)
    console = Console(stderr=True, highlight=False)
    tag = tag or config.image
    with connect(docker_host or config.docker_host) as engine:
        image = build_image(
            engine, tag=tag, base=base, log=lambda line: console.print(escape(line), style="dim", soft_wrap=True)
        )
    console.print(f"{tag} is {image}", soft_wrap=True)
    if tag != config.image:
        console.print(f"to use it, set code.image to {tag} (GRISTMILL_CODE__IMAGE={tag})", soft_wrap=True)


@sandbox.command()
def selftest(
    runtime: Annotated[Runtime | None, typer.Option(help="Container runtime; code.runtime.")] = None,
    docker_host: Host = None,
    config_file: ConfigFile = None,
) -> None:
    """Prove every limit from inside a sandbox; exit 1 if one is missing."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from code_verifier.config import CodeConfig
    from gristmill.cli.options import settings_from
    from gristmill.config import merge

    with _needs_docker():
        from code_verifier.selftest import self_test

    config = settings_from(config_file).section("code", CodeConfig)
    flags = {"runtime": runtime, "docker_host": docker_host}
    chosen = {name: value for name, value in flags.items() if value is not None}
    config = CodeConfig.model_validate(merge(config.model_dump(), chosen))
    report = self_test(config)
    table = Table(title=f"sandbox self-test, image {config.image}", title_justify="left")
    for column in ("limit", "holds", "candidate", "judge"):
        table.add_column(column)
    for check in report.checks:
        held = "[green]yes" if check.holds else "[bold red]NO"
        table.add_row(check.name, held, escape(check.found["candidate"]), escape(check.found["judge"]))
    Console().print(table)
    if not report.passed:
        raise typer.Exit(1)


@sandbox.command()
def gc(
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Also remove those whose verifier ran on another machine.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    docker_host: Host = None,
    config_file: ConfigFile = None,
) -> None:
    """Remove the sandboxes of verifiers that are dead."""
    from rich.console import Console

    from code_verifier.config import CodeConfig
    from gristmill.cli.options import settings_from

    with _needs_docker():
        from code_verifier.engine import connect
        from code_verifier.gc import collect

    config = settings_from(config_file).section("code", CodeConfig)
    console = Console(highlight=False)
    with connect(docker_host or config.docker_host) as engine:
        found = collect(engine, unknown=unknown, dry_run=dry_run)
    for entry in found:
        verb = "kept" if not entry.removed else "would remove" if dry_run else "removed"
        console.print(
            f"{verb} {entry.id[:12]} ({entry.role}, {entry.state}): owner {entry.owner or '?'} is {entry.owner_state}",
            soft_wrap=True,
        )
    removed = sum(entry.removed for entry in found)
    console.print(f"{removed} {'would be ' if dry_run else ''}removed, {len(found) - removed} kept")
