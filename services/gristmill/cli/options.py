"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gristmill.config import Settings, load_settings, merge, parse_overrides

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="YAML file of settings; GRISTMILL_CONFIG names one too.", dir_okay=False),
]
Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", help="Kafka bootstrap servers, host:port separated by commas.")
]

FLAG_CONTEXT: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context of commands that take any setting as ``--section.key=value``."""


def settings_from(config_file: Path | None, arguments: Sequence[str] = (), **named: Any) -> Settings:
    """Settings from the file, ``--section.key=value`` arguments and named top-level flags (None means absent)."""
    flags = {name: value for name, value in named.items() if value is not None}
    return load_settings(config_file, merge(parse_overrides(arguments), flags))
