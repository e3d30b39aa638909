"""``gristmill verify code``: the verifier without the line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli.options import ConfigFile


def verify_code(
    source: Annotated[
        Path,
        typer.Option(
            "--in", help='JSONL rows {"id", "completion", "test_type", "tests"}.', exists=True, dir_okay=False
        ),
    ],
    target: Annotated[Path, typer.Option("--out", help="Where the verdict rows go, in the order of the input.")],
    workers: Annotated[int | None, typer.Option(help="Sandboxes; as many as CPUs unless set.", min=1)] = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", help="Seconds of one test, where the row does not say.", min=0.01)
    ] = None,
    config_file: ConfigFile = None,
) -> None:
    """Run programs in a file against their tests, in Docker sandboxes; limits come from the ``code`` section."""
    from functools import partial

    from code_verifier.config import CodeConfig
    from code_verifier.offline import verify_lines
    from gristmill.cli.options import settings_from
    from gristmill.cli.verify import verify_file
    from gristmill.errors import MissingExtra

    try:
        from code_verifier.pool import SandboxPool
    except ModuleNotFoundError as error:
        raise MissingExtra("running programs in a sandbox", "code", error.name or "docker") from error

    config = settings_from(config_file).section("code", CodeConfig)
    over = {"workers": workers, "time_limit_s": time_limit}
    config = CodeConfig.model_validate(
        config.model_dump() | {name: value for name, value in over.items() if value is not None}
    )
    pool = SandboxPool(config)
    verify = partial(verify_lines, pool=pool, stop_at_first_failure=config.stop_at_first_failure)
    verify_file(source, target, pool, verify)
