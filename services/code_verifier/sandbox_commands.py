"""``gristmill sandbox``: the sandbox's image, its self-test, and what it left behind."""

from __future__ import annotations

import typer

sandbox = typer.Typer(no_args_is_help=True, help="The code sandbox.")


@sandbox.command()
def build() -> None:
    """Build the image."""
    raise NotImplementedError


@sandbox.command()
def gc() -> None:
    """Remove what was left behind."""
    raise NotImplementedError
