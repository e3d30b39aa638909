"""The service: ``completions.math`` in, ``verdicts`` out.

A verdict carries the completion's whole training payload, so the trainer reads nothing else. What costs nothing to
decide is decided here; every other check runs in the pool. A completion that cannot be decoded becomes a dead letter
and, where its headers still say whose it was, a verdict of status ``error``: the trainer then need not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gristmill.messages import Completion, VerdictStatus
from gristmill.service import ServiceContext, ServiceSpec
from gristmill.verdicts import lost_verdict, make_verdict
from gristmill.worker import Incoming, Outgoing, RawRecord, Worker
from math_verifier.api import MathResult, Pending, begin, finish
from math_verifier.check import Outcome
from math_verifier.config import MathConfig
from math_verifier.pool import Pool, open_pool

NAME = "math_verifier"
GROUP = "math-verifier"


def reward_of(status: VerdictStatus, config: MathConfig) -> float | None:
    """Reward of a status: only a decided one has any."""
    match status:
        case "correct":
            return config.reward_correct
        case "wrong":
            return config.reward_wrong
        case "unparsable":
            return config.unparsable_reward
    return None


def _count(pool: Pool, name: str) -> float:
    return float(getattr(pool.counts, name))


class Verifier:
    """Checks one completion at a time per call; many calls may be under way."""

    def __init__(self, ctx: ServiceContext[MathConfig], pool: Pool) -> None:
        self._ctx = ctx
        self._pool = pool
        metrics = ctx.metrics
        self._verdicts = metrics.counter("math_verdicts", "Verdicts by status and deciding stage.", ("status", "stage"))
        self._seconds = metrics.histogram("math_check_seconds", "Wall time of a check, without the wait for a worker.")
        metrics.gauge("math_pool_waiting", "Checks that wait for a worker.").set_function(lambda: float(pool.waiting))
        for name, doc in (
            ("started", "Workers started."),
            ("killed", "Workers killed at the time limit."),
            ("crashed", "Workers that crashed."),
            ("out_of_memory", "Workers ended at the memory limit."),
        ):
            gauge = metrics.gauge(f"math_workers_{name}", doc)
            gauge.set_function(partial(_count, pool, name))

    async def handle(self, incoming: Incoming[Completion]) -> Iterable[Outgoing]:
        """The verdict of a completion."""
        completion = incoming.message
        result = await self.verify(completion)
        self._verdicts.labels(result.status, result.stage).inc()
        self._seconds.observe(result.seconds)
        if result.status == "error":
            self._ctx.log.warning("check_failed", sample=completion.sample_id, reason=result.reason)
        verdict = make_verdict(
            completion,
            verifier=NAME,
            status=result.status,
            reward=reward_of(result.status, self._ctx.config),
            reason=result.reason,
            extracted=result.extracted,
            stage=result.stage,
            seconds=result.seconds,
        )
        return (Outgoing(self._ctx.topics.verdicts, verdict, headers={"sample_id": completion.sample_id}),)

    async def verify(self, completion: Completion) -> MathResult:
        """Check a completion against its reference."""
        policy = self._ctx.config.policy
        if completion.reference is None:
            return finish(Outcome("error", None, "extract", "the completion has no reference answer"))
        decided = begin(completion.reference, completion.text, "completion", policy)
        if isinstance(decided, Pending):
            return finish(await self._pool.check(decided.gold, decided.answer, policy), decided.seconds)
        return finish(decided)

    def on_dead_letter(self, record: RawRecord, error: Exception) -> Iterable[Outgoing]:
        """What else to write for a completion that is given up."""
        verdict = lost_verdict(record, error, verifier=NAME, kind="math")
        self._ctx.log.error("completion_given_up", offset=record.offset, partition=record.partition, error=str(error))
        if verdict is None:
            return ()
        self._verdicts.labels("error", "").inc()
        return (Outgoing(self._ctx.topics.verdicts, verdict, headers={"sample_id": verdict.sample_id}),)


async def run(ctx: ServiceContext[MathConfig]) -> None:
    """Verify until told to stop."""
    config = ctx.config
    with open_pool(config) as pool:
        ctx.health.add_check("math_pool", pool.broken)
        verifier = Verifier(ctx, pool)
        worker = Worker(
            ctx,
            group=GROUP,
            inputs=[ctx.topics.completions_math],
            handler=verifier.handle,
            concurrency=config.concurrency,
            on_dead_letter=verifier.on_dead_letter,
        )
        await worker.run()


SERVICE = ServiceSpec(
    name=NAME,
    section="math",
    config=MathConfig,
    run=run,
    summary="Scores math completions against their reference answers.",
)
