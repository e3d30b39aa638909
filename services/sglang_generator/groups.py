"""One group of samples: G single-sample requests by one policy version, on one engine, retried one by one.

The requests are handed to the engine's desk when the group is placed, in that very call; the group's own task then
reads the answers.

A sample's infrastructure failure moves that sample alone to another engine that serves the same version; its
partial output is discarded. When its attempts are used up the sample becomes an error verdict: never silently gone.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from gristmill.errors import BadInput
from gristmill.messages import (
    Completion,
    PolicySpan,
    Problem,
    Verdict,
    make_sample_id,
    now_ms,
    parse_group_id,
)
from sglang_generator.config import GeneratorConfig
from sglang_generator.desk import Ask
from sglang_generator.engine import Engine
from sglang_generator.errors import EngineError, PolicyGone, RequestRefused
from sglang_generator.fleet import Fleet
from sglang_generator.instruments import Instruments
from sglang_generator.placement import Placement
from sglang_generator.policy import Policy
from sglang_generator.wire import Generated, Prompt

SERVICE_NAME = "sglang_generator"
_BACKOFF_MAX_S = 10.0

try:
    _VERSION = version("gristmill")
except PackageNotFoundError:
    _VERSION = "0.0.0+source"


class Group:
    """The samples of one problem, and where each of them is. The fleet starts it."""

    def __init__(self, problem: Problem, ids: list[int]) -> None:
        self.problem = problem
        self.prompt = Prompt(ids)
        self.engines: dict[int, Engine] = {}
        """Where each unfinished sample counts."""
        self.samples: dict[int, Completion | Verdict] = {}
        self._asks: dict[int, Ask] = {}
        self._ready: deque[int] = deque()
        self._wake: asyncio.Future[None] | None = None

    def start(self, placement: Placement) -> None:
        """Ask for every sample once."""
        problem, engine = self.problem, placement.engine
        self.engines = dict.fromkeys(range(problem.group_size), engine)
        for index in range(problem.group_size):
            ready = partial(self._note, index)
            self._asks[index] = engine.submit(placement.policy, self.prompt, problem.sampling, index, ready)

    def withdraw(self) -> None:
        """Give up every sample whose first answer was not read."""
        while self._asks:
            index, ask = self._asks.popitem()
            self.engines[index].withdraw(ask)

    @property
    def open(self) -> bool:
        """Whether a first answer is still to be read."""
        return bool(self._asks)

    async def next_answer(self) -> tuple[int, Ask]:
        """The next of the first answers, and whose it is; no longer withdrawn with the others."""
        if not self._ready:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        index = self._ready.popleft()
        return index, self._asks.pop(index)

    def _note(self, index: int) -> None:
        self._ready.append(index)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class GroupSampler:
    """Samples groups on a fleet."""

    def __init__(self, fleet: Fleet, config: GeneratorConfig, instruments: Instruments) -> None:
        self._fleet = fleet
        self._config = config
        self._instruments = instruments

    async def sample(self, group: Group, placement: Placement, admission_wait_s: float) -> list[Completion | Verdict]:
        """All samples of a group that was started, by index. Uses up its placement, come what may.

        The group's own task reads the answers; only a sample that failed gets one to itself, until it succeeds.

        Raises:
            RequestRefused: an engine says that the request is wrong; the other samples are given up.
        """
        policy = placement.policy
        try:
            async with asyncio.TaskGroup() as retries:
                while group.open:
                    index, ask = await group.next_answer()
                    error = None
                    try:
                        result = group.engines[index].take(ask)
                    except EngineError as failure:
                        result, error = None, failure
                    if result is None:
                        retries.create_task(self._retry(group, index, policy, error, admission_wait_s))
                    else:
                        self._finish(group, index, policy, ask, result, 1, admission_wait_s)
                    del ask, result, error  # what an answer holds is not kept until the next one comes
        except BaseExceptionGroup as errors:
            refused = errors.subgroup(RequestRefused)
            if refused is None or errors.split(RequestRefused)[1] is not None:
                raise
            raise RequestRefused(f"problem {group.problem.group_id}: {_first(refused)}") from None
        finally:
            group.withdraw()
            for engine in group.engines.values():
                self._fleet.finish(engine)
        return [group.samples[index] for index in range(group.problem.group_size)]

    async def _retry(
        self, group: Group, index: int, policy: Policy, error: EngineError | None, admission_wait_s: float
    ) -> None:
        """Finish a sample whose first request failed with ``error``, or was not sent."""
        problem = group.problem
        failed: set[Engine] = set()
        attempts = 0 if error is None else 1
        while True:
            if error is not None:
                failed.add(group.engines[index])
                if attempts >= self._config.attempts:
                    reason = f"{attempts} attempts failed, the last one: {error}"
                    group.samples[index] = self._failure(problem, index, reason)
                    return
                self._instruments.retries.labels(error.kind).inc()
                error = None
            self._fleet.finish(group.engines.pop(index))
            try:
                engine = group.engines[index] = await self._fleet.move(policy, failed)
            except PolicyGone as gone:
                group.samples[index] = self._failure(problem, index, str(gone))
                return
            if engine in failed:
                await asyncio.sleep(self._backoff(attempts))
            try:
                ask, result = await engine.ask(policy, group.prompt, problem.sampling, index)
            except EngineError as failure:
                error = failure
                attempts += 1
                continue
            if result is not None:
                self._finish(group, index, policy, ask, result, attempts + 1, admission_wait_s)
                return

    def _backoff(self, attempts: int) -> float:
        return random.uniform(0.5, 1.0) * min(
            _BACKOFF_MAX_S, self._config.retry_backoff_s * 2.0 ** max(0, attempts - 1)
        )

    def _finish(
        self,
        group: Group,
        index: int,
        policy: Policy,
        ask: Ask,
        result: Generated,
        attempts: int,
        admission_wait_s: float,
    ) -> None:
        """A sample is done with its engine, and a completion."""
        problem, engine = group.problem, group.engines.pop(index)
        self._fleet.finish(engine)
        count = len(result.ids) // 4
        self._instruments.count(result.finish_reason, group.prompt.count, count, result.cached_tokens, ask.seconds)
        group.samples[index] = Completion(
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
            prompt_token_ids=group.prompt.packed,
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
            generation_s=ask.seconds,
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
