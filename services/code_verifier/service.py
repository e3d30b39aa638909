"""The service: ``completions.code`` in, ``verdicts`` out.

A verdict carries the completion's whole training payload, so the trainer reads nothing else. Programs run in the pool
of sandboxes and nowhere else: without a Docker engine, an image or one of the sandbox's limits it does not start. While
the engine is away later on, completions wait. Tests that cannot be used, and sandboxes that break whatever runs in
them, make verdicts of status ``error``, which are not scored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from code_verifier.api import CodeResult, result_of
from code_verifier.config import CodeConfig
from code_verifier.mapping import reward_of, stage_of, verdict_status
from code_verifier.pool import SandboxPool
from code_verifier.selftest import require
from code_verifier.task import BadTests, make_task
from gristmill.messages import Completion, Verdict
from gristmill.service import ServiceContext, ServiceSpec
from gristmill.verdicts import lost_verdict, make_verdict
from gristmill.worker import Incoming, Outgoing, RawRecord, RetryPolicy, Worker

NAME = "code_verifier"
GROUP = "code-verifier"
PATIENCE = RetryPolicy(attempts=1000, elapsed_s=1800.0, max_delay_s=5.0)
"""How long completions wait for a Docker engine that is away."""
LONG_TEXT = 20_000
"""Characters of a completion beyond which other completions do not wait for the search of its program."""
SELF_TEST_S = 30.0
"""Time limit of the programs of the self-test."""


class Verifier:
    """Checks one completion at a time per call; many calls may be under way."""

    def __init__(self, ctx: ServiceContext[CodeConfig], pool: SandboxPool) -> None:
        self._ctx = ctx
        self._pool = pool
        metrics = ctx.metrics
        self._verdicts = metrics.counter("code_verdicts", "Verdicts by status of the program.", ("status",))
        self._seconds = metrics.histogram("code_check_seconds", "Wall time of a check, without the wait for a sandbox.")
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("waiting", "Programs that wait for a sandbox.", lambda: float(pool.waiting)),
            ("containers", "Containers of sandboxes.", lambda: float(len(pool.containers))),
            ("started", "Sandboxes started.", lambda: float(pool.started)),
            *(
                (name, doc, partial(_count, pool, name))
                for name, doc in (
                    ("runs", "Programs run to a verdict."),
                    ("retired", "Sandboxes replaced after their share of programs."),
                    ("suspected", "Sandboxes replaced because something was odd after a program."),
                    ("broken", "Sandboxes that broke under a program."),
                    ("engine_errors", "Programs given back because the Docker engine was in trouble."),
                )
            ),
        )
        for name, doc, read in gauges:
            metrics.gauge(f"code_sandbox_{name}", doc).set_function(read)

    async def handle(self, incoming: Incoming[Completion]) -> Iterable[Outgoing]:
        """The verdict of a completion.

        Raises:
            InfrastructureError: the Docker engine is away; worth another try.
        """
        completion = incoming.message
        try:
            result = await self.verify(completion)
        except BadTests as error:
            self._verdicts.labels("sandbox_error").inc()
            self._ctx.log.warning("tests_unusable", problem=completion.problem_id, reason=str(error))
            verdict = make_verdict(
                completion, verifier=NAME, status="error", reward=None, reason=f"the tests: {error}", stage="tests"
            )
            return self._outputs(verdict)
        self._verdicts.labels(result.status).inc()
        self._seconds.observe(result.seconds)
        if result.status == "sandbox_error":
            self._ctx.log.warning("check_failed", sample=completion.sample_id, reason=result.reason)
        status = verdict_status(result.status)
        verdict = make_verdict(
            completion,
            verifier=NAME,
            status=status,
            reward=reward_of(status, self._ctx.config),
            reason=result.reason,
            extracted=result.program,
            stage=stage_of(result.status),
            detail=result.status,
            seconds=result.seconds,
        )
        return self._outputs(verdict)

    async def verify(self, completion: Completion) -> CodeResult:
        """Run a completion's program against its tests.

        Raises:
            BadTests: the tests cannot be used.
            InfrastructureError: the Docker engine is away.
        """
        if completion.tests is None:
            raise BadTests("the completion has none")
        prepare = partial(make_task, stop_at_first_failure=self._ctx.config.stop_at_first_failure)
        if len(completion.text) > LONG_TEXT:
            task = await asyncio.to_thread(prepare, completion.tests, completion.text)
        else:
            task = prepare(completion.tests, completion.text)
        outcome = None if task.job is None else await self._pool.check(task.job)
        return result_of(task, outcome)

    def on_dead_letter(self, record: RawRecord, error: Exception) -> Iterable[Outgoing]:
        """What else to write for a completion that is given up."""
        verdict = lost_verdict(record, error, verifier=NAME, kind="code")
        self._ctx.log.error("completion_given_up", offset=record.offset, partition=record.partition, error=str(error))
        if verdict is None:
            return ()
        self._verdicts.labels("sandbox_error").inc()
        return self._outputs(verdict)

    def _outputs(self, verdict: Verdict) -> tuple[Outgoing]:
        return (Outgoing(self._ctx.topics.verdicts, verdict, headers={"sample_id": verdict.sample_id}),)


def _count(pool: SandboxPool, name: str) -> float:
    return float(getattr(pool.counts, name))


async def run(ctx: ServiceContext[CodeConfig]) -> None:
    """Verify until told to stop.

    Raises:
        ConfigError: no Docker engine, no image, or a limit of the sandbox that does not hold.
    """
    config = ctx.config
    # The test's own programs get the time they need, whatever the limit of the line's programs is.
    patient = config.model_copy(update={"time_limit_s": max(config.time_limit_s, SELF_TEST_S), "job_limit_s": 3600.0})
    report = await asyncio.to_thread(require, patient)
    ctx.log.info("sandbox_holds", checks=len(report.checks), runtime=config.runtime or "default")
    pool = SandboxPool(config)
    try:
        await asyncio.to_thread(pool.start)
        ctx.health.add_check("code_sandboxes", pool.broken)
        verifier = Verifier(ctx, pool)
        worker = Worker(
            ctx,
            group=GROUP,
            inputs=[ctx.topics.completions_code],
            handler=verifier.handle,
            concurrency=config.concurrency,
            on_dead_letter=verifier.on_dead_letter,
            retry=PATIENCE,
        )
        await worker.run()
    finally:
        await asyncio.to_thread(pool.close)


SERVICE = ServiceSpec(
    name=NAME,
    section="code",
    config=CodeConfig,
    run=run,
    summary="Runs programs against their tests in a Docker sandbox.",
)
