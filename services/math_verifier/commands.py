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
    from functools import partial

    from gristmill.cli.options import settings_from
    from gristmill.cli.verify import verify_file
    from gristmill.errors import MissingExtra
    from math_verifier.config import MathConfig

    try:
        from math_verifier.offline import verify_lines
        from math_verifier.pool import open_pool
    except ModuleNotFoundError as error:
        raise MissingExtra("checking mathematics", "math", error.name or "sympy") from error

    config = settings_from(config_file).section("math", MathConfig)
    if pool is not None:
        config = config.model_copy(update={"pool": pool.value})
    checkers = open_pool(config, workers=workers, time_limit_s=time_limit)
    verify_file(source, target, checkers, partial(verify_lines, policy=config.policy, pool=checkers))
