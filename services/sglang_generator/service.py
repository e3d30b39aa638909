"""The generator: problems in, completions out, each sample stamped with the one policy version that made it.

Order of a group: check and render the problem, wait for credit, wait for an engine with room that has confirmed
the current version, sample, publish. While a group only waits it can be given back; once it samples it is
finished, or aborted at the engine and delivered again, but never half committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from gristmill.errors import BadInput, ConfigError, DecodeError
from gristmill.messages import Completion, Problem, Verdict
from gristmill.service import ServiceContext, ServiceSpec
from gristmill.worker import Incoming, Outgoing, RawRecord, Worker, only_while_owned
from sglang_generator.admission import Admission
from sglang_generator.config import GeneratorConfig
from sglang_generator.errors import RequestRefused
from sglang_generator.fleet import Fleet
from sglang_generator.groups import SERVICE_NAME, Group, GroupSampler, failed_group, failed_sample
from sglang_generator.instruments import Instruments
from sglang_generator.policies import PolicyFollower
from sglang_generator.policy import Policy, static_policy
from sglang_generator.prompts import Prompts
from sglang_generator.validation import check_length, check_problem


class Generator:
    """Everything between the worker loop and the engines; one event loop."""

    def __init__(self, ctx: ServiceContext[GeneratorConfig]) -> None:
        config = ctx.config
        self._ctx = ctx
        self._run_id = ctx.common.run_id
        self._instruments = Instruments(ctx.metrics)
        self.admission = Admission(enabled=config.admission == "credit")
        self.fleet = Fleet(config, self._run_id, self._instruments, ctx.log, self._on_current, self._show_readiness)
        self.prompts = Prompts()
        self._sampler = GroupSampler(self.fleet, config, self._instruments)
        self.follower: PolicyFollower | None = None
        if config.admission == "credit" or config.follow_policies:
            self.follower = PolicyFollower(
                ctx, self._instruments, self.admission, self.fleet.set_target, self._on_policy_trouble
            )
        self._policy_trouble: str | None = None
        self._refusals = 0
        self.worker = Worker(
            ctx,
            # Of this run alone: a group that runs shared would commit one's problems in the other's name.
            group=f"{SERVICE_NAME}-{self._run_id}",
            inputs=[ctx.topics.problems],
            handler=self.handle,
            concurrency=config.problems_per_partition,
            on_dead_letter=self.on_dead_letter,
            manage_ready=False,
        )
        self._instruments.waiting.set_function(lambda: self.admission.waiting)

    async def run(self) -> None:
        """Work until told to stop.

        Raises:
            ConfigError: the trainer's policies do not fit this generator, or engines refuse everything.
        """
        if self.follower is None:
            self.fleet.set_target(static_policy(self._ctx.config.static_policy, self._run_id))
        background = [asyncio.create_task(self.fleet.run(), name="fleet")]
        if self.follower is not None:
            background.append(asyncio.create_task(self.follower.run(), name="policies"))
        worker = asyncio.create_task(self.worker.run(), name="worker")
        helpers = [
            asyncio.create_task(self._watch_readiness(), name="readiness"),
            asyncio.create_task(self._load_tokenizer(), name="tokenizer"),
        ]
        try:
            await asyncio.wait([*background, worker], return_when=asyncio.FIRST_COMPLETED)
            failed = [task for task in background if task.done()]
            if failed:
                # A dead background task never ends well: stop the worker, then say what happened.
                self._ctx.stop.set()
            await worker
            for task in failed:
                task.result()
        except BaseExceptionGroup as errors:
            raise _innermost(errors) from errors
        finally:
            for task in (*background, *helpers):
                task.cancel()
            await asyncio.gather(*background, *helpers, return_exceptions=True)
            await self.fleet.close()

    async def handle(self, incoming: Incoming[Problem]) -> Iterable[Outgoing]:
        """Sample the group that a problem asks for.

        Raises:
            BadInput: no engine could ever serve the problem.
        """
        problem = incoming.message
        if problem.run_id != self._run_id:
            self._instruments.problems_ignored.inc()
            return ()
        async with only_while_owned():
            # Before the credit comes, if it can be done: then many groups begin at once.
            group = self._prepare(problem) if self.prompts.loaded else None
            waited = await self.admission.wait(problem.ordinal)
            self._instruments.admission_wait.observe(waited)
            if group is None:
                await self._load_tokenizer()
                group = self._prepare(problem)
            if isinstance(group, BadInput):
                self._count_refusal(group)
                raise group
            started = time.monotonic()
            placement = await self.fleet.place(problem.group_size, group)
        self._instruments.placement_wait.observe(time.monotonic() - started)
        try:
            with self._instruments.groups.track_inprogress():
                samples = await self._sampler.sample(group, placement, waited)
        except RequestRefused as error:
            self._count_refusal(error)
            raise
        finally:
            self.fleet.release(placement)
        self._refusals = 0
        return [self._outgoing(sample) for sample in samples]

    def on_dead_letter(self, record: RawRecord, error: Exception) -> Iterable[Outgoing]:
        """Error verdicts for a problem that is given up, so that the trainer does not wait for its group."""
        verdicts = self._ctx.topics.verdicts
        try:
            problem = self._ctx.codec.decode(record.value, Problem)
        except DecodeError:
            problem = None
        key = record.key_text or ""
        if problem is not None and problem.group_id == key:
            size = problem.group_size
            if 1 <= size <= self._ctx.config.max_group_size:
                self._instruments.samples.labels("invalid").inc(size)
                return [Outgoing(verdicts, failed_sample(problem, index, str(error))) for index in range(size)]
        if not key.startswith(f"{self._run_id}:"):
            return []
        try:
            return [Outgoing(verdicts, failed_group(key, str(error)))]
        except BadInput:
            return []

    async def _load_tokenizer(self) -> None:
        """Load what the first engine named. Begun at the start, for it takes seconds that the trainer needs as well;
        a failure then comes again where a problem needs the tokenizer, and counts there."""
        await self.fleet.model_known.wait()
        assert self.fleet.tokenizer_path is not None
        await self.prompts.load(self.fleet.tokenizer_path)

    def _prepare(self, problem: Problem) -> Group | BadInput:
        """The group that a problem asks for, or why there can be none."""
        try:
            check_problem(problem, self._ctx.config.max_group_size)
            ids = self.prompts.render(problem)
            check_length(problem, len(ids), self.fleet.context_length)
        except BadInput as error:
            return error
        return Group(problem, ids)

    def _outgoing(self, sample: Completion | Verdict) -> Outgoing:
        topics = self._ctx.topics
        topic = topics.completions(sample.kind) if isinstance(sample, Completion) else topics.verdicts
        headers = {"sample_id": sample.sample_id, "group_size": str(sample.group_size)}
        return Outgoing(topic, sample, headers=headers)

    def _count_refusal(self, error: BadInput) -> None:
        self._refusals += 1
        if self._refusals >= self._ctx.config.max_refusals:
            raise ConfigError(
                f"{self._refusals} problems in a row were refused, so it is not the problems but the set-up; the last "
                f"refusal: {error}"
            ) from error

    def _on_current(self, policy: Policy) -> None:
        self.admission.delivered(policy.version)
        self._instruments.admit_until.set(self.admission.admit_until)
        if self.follower is not None:
            self.follower.delivered(policy.version)

    def _on_policy_trouble(self, trouble: str | None) -> None:
        self._policy_trouble = trouble
        self._show_readiness()

    def _show_readiness(self) -> None:
        if self._ctx.stop.is_set():
            self._ctx.health.set_ready(False, "draining")
            return
        reason = self._policy_trouble or self.worker.ready_reason
        if self.fleet.current is None:
            reason = self._policy_trouble or "no policy is delivered yet"
        elif not self.fleet.serving():
            reason = "no engine serves the current policy"
        self._ctx.health.set_ready(reason is None, reason or "")

    async def _watch_readiness(self) -> None:
        """The worker's part of readiness changes without a word to us."""
        while True:
            self._show_readiness()
            await asyncio.sleep(0.5)


def _innermost(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in errors.exceptions:
        return _innermost(error) if isinstance(error, BaseExceptionGroup) else error
    return errors


async def run(ctx: ServiceContext[GeneratorConfig]) -> None:
    """Run the generator until told to stop."""
    await Generator(ctx).run()


SERVICE: ServiceSpec[GeneratorConfig] = ServiceSpec(
    name=SERVICE_NAME,
    section="generator",
    config=GeneratorConfig,
    run=run,
    summary="Samples groups of completions from SGLang engines.",
)
