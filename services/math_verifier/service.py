"""The service: ``completions.math`` in, ``verdicts`` out.

A verdict carries the completion's whole training payload, so the trainer reads nothing else. What costs nothing to
decide is decided here; every other check runs in the pool. A completion that cannot be decoded becomes a dead letter
and, where its headers still say whose it was, a verdict of status ``error``: the trainer then need not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gristmill import __version__
from gristmill.errors import BadInput
from gristmill.messages import Completion, Verdict, VerdictStatus, now_ms, parse_group_id, parse_sample_id
from gristmill.service import ServiceContext, ServiceSpec
from gristmill.worker import Incoming, Outgoing, RawRecord, Worker
from math_verifier.api import MathResult, Pending, begin, finish
from math_verifier.check import Outcome
from math_verifier.config import MathConfig
from math_verifier.pool import MathPool

NAME = "math_verifier"
GROUP = "math-verifier"
EXTRACTED_LIMIT = 2000
"""Longest extracted answer that a verdict quotes, in characters."""


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


def make_verdict(completion: Completion, result: MathResult, config: MathConfig) -> Verdict:
    """The completion's payload with what the check found."""
    return Verdict(
        run_id=completion.run_id,
        sample_id=completion.sample_id,
        group_id=completion.group_id,
        index=completion.index,
        ordinal=completion.ordinal,
        group_size=completion.group_size,
        problem_id=completion.problem_id,
        kind=completion.kind,
        source=completion.source,
        difficulty=completion.difficulty,
        prompt_token_ids=completion.prompt_token_ids,
        completion_token_ids=completion.completion_token_ids,
        logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        policy_run_id=completion.policy_run_id,
        policy_version_oldest=completion.policy_version_oldest,
        policy_version_newest=completion.policy_version_newest,
        policy_spans=completion.policy_spans,
        sampling=completion.sampling,
        status=result.status,
        reward=reward_of(result.status, config),
        reason=result.reason,
        extracted=None if result.extracted is None else result.extracted[:EXTRACTED_LIMIT],
        gold=completion.reference,
        stage=result.stage,
        verifier=NAME,
        verifier_version=__version__,
        engine=completion.engine,
        generation_s=completion.generation_s,
        verify_s=result.seconds,
        problem_created_at_ms=completion.problem_created_at_ms,
        completed_at_ms=completion.completed_at_ms,
        verified_at_ms=now_ms(),
    )


def lost_verdict(record: RawRecord, error: Exception) -> Verdict | None:
    """An error verdict for a completion that cannot be decoded, from its key and headers.

    None where they do not name a sample of a group of a known size, without which no trainer could place it: then
    the dead letter is all there is, and the group's deadline settles it.
    """
    try:
        group_id, index = parse_sample_id(record.header("sample_id") or "")
        run_id, ordinal = parse_group_id(group_id)
        group_size = int(record.header("group_size") or 0)
    except (BadInput, ValueError):
        return None
    if record.key_text not in {None, group_id} or not 0 <= index < group_size:
        return None
    return Verdict(
        run_id=run_id,
        sample_id=f"{group_id}/{index}",
        group_id=group_id,
        index=index,
        ordinal=ordinal,
        group_size=group_size,
        problem_id="",
        kind="math",
        prompt_token_ids=b"",
        completion_token_ids=b"",
        logprobs=b"",
        status="error",
        reason=f"the completion cannot be used: {error}"[:EXTRACTED_LIMIT],
        verifier=NAME,
        verifier_version=__version__,
        verified_at_ms=now_ms(),
    )


def _count(pool: MathPool, name: str) -> float:
    return float(getattr(pool.counts, name))


class Verifier:
    """Checks one completion at a time per call; many calls may be under way."""

    def __init__(self, ctx: ServiceContext[MathConfig], pool: MathPool) -> None:
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
        verdict = make_verdict(completion, result, self._ctx.config)
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
        verdict = lost_verdict(record, error)
        self._ctx.log.error("completion_given_up", offset=record.offset, partition=record.partition, error=str(error))
        if verdict is None:
            return ()
        self._verdicts.labels("error", "").inc()
        return (Outgoing(self._ctx.topics.verdicts, verdict, headers={"sample_id": verdict.sample_id}),)


async def run(ctx: ServiceContext[MathConfig]) -> None:
    """Verify until told to stop."""
    config = ctx.config
    pool = MathPool(
        config.workers,
        time_limit_s=config.time_limit_s,
        memory_limit_mb=config.memory_limit_mb,
        queue_size=config.queue_size,
        tasks_per_worker=config.tasks_per_worker,
    )
    with pool:
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
