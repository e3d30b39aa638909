"""The problem producer as a service."""

from __future__ import annotations

from gristmill.service import ServiceContext, ServiceSpec
from problem_producer.config import ProblemsConfig


def _run(context: ServiceContext[ProblemsConfig]) -> None:
    from problem_producer.producer import run_producer

    run_producer(context)


SERVICE = ServiceSpec(
    name="problem_producer",
    section="problems",
    config=ProblemsConfig,
    run=_run,
    summary="Sends problems from files, the hub or the built-in generator, in a repeatable order.",
)
