"""One group of samples: G single-sample requests by one policy version, on one engine, retried one by one.

A sample's infrastructure failure moves that sample alone to another engine that serves the same version; its
partial output is discarded. When its attempts are used up the sample becomes an error verdict: never silently gone.
"""

from __future__ import annotations

import asyncio
import random
import time
from importlib.metadata import PackageNotFoundError, version

from gristmill.errors import BadInput
from gristmill.messages import (
    Completion,
    PolicySpan,
    Problem,
    Verdict,
    make_sample_id,
    now_ms,
    pack_ids,
    parse_group_id,
)
from sglang_generator.config import GeneratorConfig
from sglang_generator.engine import Engine
from sglang_generator.errors import EngineError, PolicyGone, RequestRefused
from sglang_generator.fleet import Fleet, Placement
from sglang_generator.instruments import Instruments
from sglang_generator.policy import Policy
from sglang_generator.wire import Generated

SERVICE_NAME = "sglang_generator"
_BACKOFF_MAX_S = 10.0

try:
    _VERSION = version("gristmill")
except PackageNotFoundError:
    _VERSION = "0.0.0+source"


class GroupSampler:
    """Samples groups on a fleet."""

    def __init__(self, fleet: Fleet, config: GeneratorConfig, instruments: Instruments) -> None:
        self._fleet = fleet
        self._config = config
        self._instruments = instruments

    async def sample(
        self, problem: Problem, ids: list[int], placement: Placement, admission_wait_s: float
    ) -> list[Completion | Verdict]:
        """All samples of a group, by index. Uses up a placement of ``group_size`` samples, come what may.

        Raises:
            RequestRefused: an engine says that the request is wrong; the other samples are given up.
        """
        prompt = pack_ids(ids)
        # Where each unfinished sample counts; kept here, for a task that is cancelled before it starts frees nothing.
        engines = dict.fromkeys(range(problem.group_size), placement.engine)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self._one(problem, index, ids, prompt, placement.policy, engines, admission_wait_s)
                    )
                    for index in range(problem.group_size)
                ]
        except BaseExceptionGroup as errors:
            refused = errors.subgroup(RequestRefused)
            if refused is None or errors.split(RequestRefused)[1] is not None:
                raise
            raise RequestRefused(f"problem {problem.group_id}: {_first(refused)}") from None
        finally:
            for engine in engines.values():
                self._fleet.finish(engine)
        return [task.result() for task in tasks]

    async def _one(
        self,
        problem: Problem,
        index: int,
        ids: list[int],
        prompt: bytes,
        policy: Policy,
        engines: dict[int, Engine],
        admission_wait_s: float,
    ) -> Completion | Verdict:
        failed: set[Engine] = set()
        attempts = 0
        while True:
            engine = engines[index]
            try:
                async with engine.slots:
                    # It may have left service while the sample waited for a slot.
                    if engine.usable_for(policy):
                        attempts += 1
                        started = time.monotonic()
                        result = await engine.generate(policy, ids, problem.sampling, index)
                        seconds = time.monotonic() - started
                        self._fleet.finish(engines.pop(index))
                        return self._completion(
                            problem, index, prompt, policy, engine, result, attempts, seconds, admission_wait_s
                        )
            except EngineError as error:
                failed.add(engine)
                if attempts >= self._config.attempts:
                    return self._failure(problem, index, f"{attempts} attempts failed, the last one: {error}")
                self._instruments.retries.labels(error.kind).inc()
            self._fleet.finish(engines.pop(index))
            try:
                engine = engines[index] = await self._fleet.move(policy, failed)
            except PolicyGone as error:
                return self._failure(problem, index, str(error))
            if engine in failed:
                await asyncio.sleep(self._backoff(attempts))

    def _backoff(self, attempts: int) -> float:
        return random.uniform(0.5, 1.0) * min(
            _BACKOFF_MAX_S, self._config.retry_backoff_s * 2.0 ** max(0, attempts - 1)
        )

    def _completion(
        self,
        problem: Problem,
        index: int,
        prompt: bytes,
        policy: Policy,
        engine: Engine,
        result: Generated,
        attempts: int,
        seconds: float,
        admission_wait_s: float,
    ) -> Completion:
        count = len(result.ids) // 4
        instruments = self._instruments
        instruments.samples.labels(result.finish_reason).inc()
        instruments.tokens.labels("prompt").inc(len(prompt) // 4)
        instruments.tokens.labels("completion").inc(count)
        instruments.cached_tokens.inc(result.cached_tokens)
        instruments.seconds.observe(seconds)
        return Completion(
            run_id=problem.run_id,
            sample_id=make_sample_id(problem.group_id, index),
            group_id=problem.group_id,
            index=index,
            ordinal=problem.ordinal,
            group_size=problem.group_size,
            problem_id=problem.problem_id,
            kind=problem.kind,
            source=problem.source,
            difficulty=problem.difficulty,
            reference=problem.reference,
            tests=problem.tests,
            prompt_token_ids=prompt,
            completion_token_ids=result.ids,
            logprobs=result.logprobs,
            text=result.text,
            finish_reason=result.finish_reason,
            policy_run_id=policy.run_id,
            policy_version_oldest=policy.version,
            policy_version_newest=policy.version,
            policy_spans=(PolicySpan(version=policy.version, start=0, length=count),),
            sampling=problem.sampling,
            engine=engine.url,
            engine_weight_version=policy.adapter or result.weight_version,
            cached_tokens=result.cached_tokens,
            attempts=attempts,
            admission_wait_s=admission_wait_s,
            generation_s=seconds,
            problem_created_at_ms=problem.created_at_ms,
            completed_at_ms=now_ms(),
        )

    def _failure(self, problem: Problem, index: int, reason: str) -> Verdict:
        self._instruments.samples.labels("failed").inc()
        return failed_sample(problem, index, reason)


def failed_sample(problem: Problem, index: int, reason: str) -> Verdict:
    """The verdict on a sample that could not be generated: no reward, and the group goes on without it."""
    return Verdict(
        run_id=problem.run_id,
        sample_id=make_sample_id(problem.group_id, index),
        group_id=problem.group_id,
        index=index,
        ordinal=problem.ordinal,
        group_size=problem.group_size,
        problem_id=problem.problem_id,
        kind=problem.kind,
        source=problem.source,
        difficulty=problem.difficulty,
        prompt_token_ids=b"",
        completion_token_ids=b"",
        logprobs=b"",
        sampling=problem.sampling,
        status="error",
        reason=f"not generated: {reason}",
        verifier=SERVICE_NAME,
        verifier_version=_VERSION,
        problem_created_at_ms=problem.created_at_ms,
        verified_at_ms=now_ms(),
    )


def failed_group(group_id: str, reason: str) -> Verdict:
    """The verdict on a whole group of which no more than its id is known.

    Raises:
        BadInput: the text is not a group id.
    """
    run_id, ordinal = parse_group_id(group_id)
    return Verdict(
        run_id=run_id,
        sample_id=make_sample_id(group_id, -1),
        group_id=group_id,
        index=-1,
        ordinal=ordinal,
        group_size=0,
        problem_id="",
        prompt_token_ids=b"",
        completion_token_ids=b"",
        logprobs=b"",
        status="error",
        reason=f"not generated: {reason}",
        verifier=SERVICE_NAME,
        verifier_version=_VERSION,
        verified_at_ms=now_ms(),
    )


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in errors.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise BadInput("an exception group is never empty")
