"""A verifier for tests of the line: verdicts by ordinal and index, so that every kind of group comes up.

Run as ``python coin_verifier.py CONFIG``. Group ``n``: failed whole when ``n % 5 == 0``, zero variance when
``n % 2 == 0``, one failed sample when ``n % 7 == 0``, and else every other sample is correct.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gristmill.config import Section, load_settings
from gristmill.messages import Completion, Verdict, VerdictStatus, now_ms
from gristmill.service import ServiceContext, ServiceSpec, run_service
from gristmill.worker import Incoming, Outgoing, Worker
from math_verifier.config import MathConfig


def decide(ordinal: int, index: int) -> VerdictStatus:
    """Status of one sample."""
    if ordinal % 5 == 0 or (ordinal % 7 == 0 and index == 0):
        return "error"
    if ordinal % 2 == 0:
        return "correct"
    return "correct" if index % 2 else "wrong"


def verdict_on(completion: Completion) -> Verdict:
    """Verdict with the completion's identity and payload."""
    status = decide(completion.ordinal, completion.index)
    shared = {
        name: getattr(completion, name) for name in Verdict.__struct_fields__ if name in Completion.__struct_fields__
    }
    return Verdict(
        **shared,
        status=status,
        reward={"correct": 1.0, "wrong": 0.0}.get(status),
        reason="by ordinal and index",
        verifier="coin_verifier",
        verifier_version="1",
        verified_at_ms=now_ms(),
    )


async def serve(ctx: ServiceContext[Section]) -> None:
    async def handle(incoming: Incoming[Completion]) -> list[Outgoing]:
        return [Outgoing(ctx.topics.verdicts, verdict_on(incoming.message))]

    await Worker(ctx, group="coin_verifier", inputs=[ctx.topics.completions_math], handler=handle, concurrency=64).run()


if __name__ == "__main__":
    spec = ServiceSpec("coin_verifier", "math", MathConfig, serve, "verdicts by ordinal and index")
    run_service(spec, load_settings(Path(sys.argv[1])))
