"""Runs the trainer: loads or resumes the policy, then trains, checkpoints and publishes, step by step."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from gristmill.artifacts import from_uri
from gristmill.errors import GristmillError
from gristmill.messages import PolicyVersion, Rejection, TrainingStep, Verdict
from gristmill.publisher import Publisher
from gristmill.reader import TopicReader
from gristmill.service import ServiceContext
from grpo_trainer.assembler import Assembler, Batch
from grpo_trainer.checkpoint import Checkpoints, State, load_state
from grpo_trainer.config import TrainerConfig
from grpo_trainer.intake import Intake
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.model import Policy, load_policy
from grpo_trainer.opening import accept_start, ensure_artifact, policy_folder, prune_policies, restore
from grpo_trainer.outlet import Outlet
from grpo_trainer.phases import Phases
from grpo_trainer.records import make_policy, make_step
from grpo_trainer.recovery import Recovery
from grpo_trainer.resume import Found, find, only_trainer
from grpo_trainer.rng import RngState
from grpo_trainer.seam import Diverged, Drained, StreamTrainer
from grpo_trainer.step import StepResult
from grpo_trainer.trl_arguments import quiet_libraries
from grpo_trainer.weight_source.server import WeightSource, check_artifact

Context = ServiceContext[TrainerConfig]


class TrainingFailed(GristmillError):
    """Training cannot go on; nothing of the failed step was saved."""


def train(ctx: Context) -> None:
    """Train until ``max_versions`` is reached or the service is told to stop.

    Raises:
        ConfigError: the configuration, or what lies on the disk and in the topics, does not allow it.
        InfrastructureError: the cluster failed for longer than its clients retry.
        TrainingFailed: the loss is no number any more.
    """
    run_dir = ctx.common.data_dir.absolute() / "runs" / ctx.common.run_id
    with only_trainer(run_dir):
        TrainerRun.open(ctx, run_dir).work()


@dataclass(slots=True)
class TrainerRun:
    """One process's share of a run."""

    ctx: Context
    run_dir: Path
    policy: Policy
    assembler: Assembler
    checkpoints: Checkpoints
    publisher: Publisher
    outlet: Outlet
    intake: Intake
    metrics: TrainerMetrics
    rng: RngState
    lock: threading.Condition
    announced: PolicyVersion
    moments_of: int
    """Version of the optimizer's moments in the newest checkpoint."""
    source: WeightSource | None = None
    waited_s: float = 0.0
    trainer: StreamTrainer | None = field(default=None)

    @classmethod
    def open(cls, ctx: Context, run_dir: Path) -> TrainerRun:
        """Load the policy, take up where the run stands, and publish its present version."""
        config = ctx.config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        quiet_libraries()
        checkpoints = Checkpoints(run_dir / "checkpoints", config.checkpoints_kept)
        found = find(checkpoints, ctx.common, ctx.codec, ctx.topics)
        policy = load_policy(config)
        rng, moments_of = RngState.now(), 0
        if found.folder is not None and found.state is not None:
            moments_of = policy.load_trained(found.folder)
            rng = RngState.load(found.folder)
            if moments_of != found.state.version:
                ctx.log.warning(
                    "older_moments",
                    version=found.state.version,
                    moments_of=moments_of,
                    hint="the trainer was killed between two whole checkpoints (trainer.checkpoint_every): weights are "
                    "exact, the optimizer's moments are those of an earlier version",
                )
        assembler = restore(ctx, found, policy.vocab_size)
        reader = TopicReader(ctx.common, ctx.codec, ctx.topics.verdicts, Verdict, start=assembler.next_offsets)
        accept_start(ctx, assembler, reader)
        lock = threading.Condition()
        metrics = TrainerMetrics(ctx.metrics)
        publisher = Publisher(ctx.common, ctx.codec)
        outlet = Outlet(
            publisher,
            ctx.topics,
            assembler,
            lock,
            refund_interval_s=config.refund_interval_s,
            admit_floor=found.announced.admit_until if found.announced is not None else 0,
            on_rejection=metrics.count_rejection,
        )
        intake = Intake(reader, assembler, lock, outlet, metrics, ctx.log)
        announced = ensure_artifact(ctx, policy, found, policy_folder(run_dir, assembler.version))
        run = cls(
            ctx=ctx,
            run_dir=run_dir,
            policy=policy,
            assembler=assembler,
            checkpoints=checkpoints,
            publisher=publisher,
            outlet=outlet,
            intake=intake,
            metrics=metrics,
            rng=rng,
            lock=lock,
            announced=announced,
            moments_of=moments_of,
        )
        if config.weight_source.enabled:
            run.source = WeightSource(
                config.weight_source, run_id=ctx.common.run_id, device=policy.device, dtype=policy.dtype, log=ctx.log
            )
        try:
            run.begin(found)
        except BaseException:
            run.close_source()
            raise
        return run

    def begin(self, found: Found) -> None:
        """Publish the present version: for the first time, or again because nobody knows whether it got out."""
        state = found.state
        if self.source is not None:
            held = self.source.hold(self.announced.version, self.announced.name, self.policy.weights())
            check_artifact(held, from_uri(self.announced.uri))
        with self.outlet.exclusive():
            with self.lock:
                policy = self.announced = self.outlet.credit(self.announced)
                rejections = tuple(self.assembler.outbox)
            step = None
            if state is None or found.log_is_new:
                self.checkpoints.complete(self.begin_checkpoint(policy.version), self.state(policy, rejections))
            else:
                step = state.step
            self.outlet.announce(policy, step, rejections)
        self.show(policy)
        self.ctx.log.info(
            "policy_published",
            version=policy.version,
            resumed=state is not None,
            admit_until=policy.admit_until,
            uri=policy.uri,
        )

    def work(self) -> None:
        """Read, train and publish until done."""
        ctx, config = self.ctx, self.ctx.config
        ctx.health.add_check("intake", self.intake.check)
        self.intake.start()
        try:
            left = None if config.max_versions is None else config.max_versions - self.assembler.version
            if left is not None and left <= 0:
                ctx.log.info("target_reached", version=self.assembler.version)
                return
            self.trainer = StreamTrainer(
                model=self.policy.model,
                tokenizer=self.policy.tokenizer,
                optimizer=self.policy.optimizer,
                scheduler=self.policy.scheduler,
                config=config,
                source=self,
                on_step=self.on_step,
                steps=left,
                work_dir=self.run_dir / "trl",
                rng=self.rng,
                reference=self.policy.reference,
                bf16=self.policy.autocast,
                cpu=self.policy.device.type == "cpu",
                on_recovery=self.on_recovery,
                evidence_dir=self.run_dir / "no_number",
            )
            ctx.health.set_ready(True)
            try:
                self.trainer.train()
            except Drained:
                ctx.log.info("drained", version=self.assembler.version)
            self.make_whole()
        except Diverged as error:
            raise TrainingFailed(f"{error}; lower trainer.learning_rate, or look at mismatch_kl") from error
        finally:
            ctx.health.set_ready(False, "stopping")
            self.intake.stop()
            self.outlet.settle_up(wait=True)
            self.publisher.close()
            self.close_source()

    def next_batch(self) -> Batch:
        """The next batch; raises Drained when the service stops."""
        batch, self.waited_s = self.intake.next_batch(self.ctx.stop)
        if batch is None:
            raise Drained
        return batch

    def on_recovery(self, recovery: Recovery) -> None:
        """Say that a gradient was no number and became one: training goes on, but somebody should know."""
        self.metrics.recovered.inc()
        self.ctx.log.warning("gradient_recovered", **asdict(recovery))

    def on_step(self, result: StepResult) -> bool:
        """Make the step durable, then public; says whether to go on."""
        began = time.perf_counter()
        phases = Phases()
        run_id, config, version = self.ctx.common.run_id, self.ctx.config, result.batch.version + 1
        folder = policy_folder(self.run_dir, version)
        last = version == config.max_versions or self.ctx.stop.is_set()
        whole = last or version - self.moments_of >= config.checkpoint_every
        with ThreadPoolExecutor(1, thread_name_prefix="checkpoint") as pool:
            checkpoint = pool.submit(self.begin_checkpoint, version, whole=whole, phases=phases)
            sha256 = self.policy.publish_to(folder, phases, like=from_uri(self.announced.uri))
            temporary = checkpoint.result()
        policy = make_policy(run_id, version, config, self.policy.base_model, folder, sha256)
        with self.outlet.exclusive():
            step = make_step(run_id, result, wait_s=self.waited_s, publish_s=time.perf_counter() - began)
            with self.lock:
                self.assembler.commit(result.batch)
                policy = self.announced = self.outlet.credit(policy)
                rejections = tuple(self.assembler.outbox)
                state = self.state(policy, rejections, result=step)
            self.checkpoints.complete(temporary, state)
            if self.source is not None:
                with phases.measure("hold"):
                    self.source.hold(policy.version, policy.name, self.policy.weights())
            with phases.measure("announce"):
                self.outlet.announce(policy, step, rejections)
        self.metrics.show_step(step)
        self.metrics.show_phases(phases)
        self.show(policy)
        prune_policies(self.run_dir, version, max(config.policies_kept, config.max_staleness + 2))
        self.ctx.log.info(
            "step",
            version=version,
            reward=round(step.reward_mean, 4),
            loss=round(step.loss, 5),
            staleness=step.staleness,
            wait_s=round(step.wait_s, 2),
            train_s=round(step.train_s, 2),
            publish_s=round(time.perf_counter() - began, 3),
            phases={phase: round(seconds, 3) for phase, seconds in phases.seconds.items()},
        )
        return not self.ctx.stop.is_set()

    def begin_checkpoint(self, version: int, *, whole: bool = True, phases: Phases | None = None) -> Path:
        """Write weights, optimizer, schedule and random state durably, for a checkpoint that is yet to be completed.

        Args:
            whole: with the optimizer's moments of now, not those of the checkpoint before.
        """
        older = None if whole else self.checkpoints.newest()

        def write(folder: Path) -> None:
            if self.policy.save_trained(folder, version, moments_from=older):
                self.moments_of = version
            (self.trainer.rng if self.trainer is not None else self.rng).save(folder)

        with (phases or Phases()).measure("checkpoint"):
            return self.checkpoints.write_tensors(write)

    def make_whole(self) -> None:
        """Give the newest checkpoint its own moments: who stops in peace goes on exactly."""
        newest = self.checkpoints.newest()
        if newest is not None and self.moments_of != self.assembler.version:
            temporary = self.begin_checkpoint(self.assembler.version)
            self.checkpoints.complete(temporary, load_state(newest))

    def close_source(self) -> None:
        """Stop serving weights, if they are served."""
        if self.source is not None:
            self.source.close()

    def state(
        self, policy: PolicyVersion, rejections: tuple[Rejection, ...], result: TrainingStep | None = None
    ) -> State:
        """State of a checkpoint, as of now. The caller holds the lock, or no other thread runs."""
        return State(
            account=self.assembler.account.copy(),
            read_from=self.assembler.read_from(),
            seen_until=self.assembler.seen_until(),
            temperature=self.assembler.temperature,
            policy=policy,
            step=result,
            rejections=rejections,
        )

    def show(self, policy: PolicyVersion) -> None:
        """Show a published version."""
        self.metrics.version.set(policy.version)
        self.metrics.admit_until.set(policy.admit_until)
        self.metrics.settled.set(policy.settled_groups)
