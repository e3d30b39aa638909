"""Runs the trainer: loads or resumes the policy, then trains, checkpoints and publishes, step by step."""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch

from gristmill.artifacts import verify_dir
from gristmill.errors import ArtifactError, GristmillError
from gristmill.messages import PolicyVersion, Rejection, TrainingStep, Verdict
from gristmill.publisher import Publisher
from gristmill.reader import TopicReader
from gristmill.service import ServiceContext
from grpo_trainer.assembler import Assembler, Batch, Rules
from grpo_trainer.checkpoint import Checkpoints, State
from grpo_trainer.config import TrainerConfig
from grpo_trainer.intake import Intake
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.model import Policy, load_policy
from grpo_trainer.outlet import Outlet
from grpo_trainer.records import make_policy, make_step
from grpo_trainer.resume import Found, find, only_trainer, published_rejections
from grpo_trainer.rng import RngState
from grpo_trainer.seam import Diverged, Drained, StreamTrainer, quiet_libraries
from grpo_trainer.step import StepResult

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
        rng = RngState.now()
        if found.folder is not None:
            policy.load_trained(found.folder)
            rng = RngState.load(found.folder)
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
            ctx, run_dir, policy, assembler, checkpoints, publisher, outlet, intake, metrics, rng, lock, announced
        )
        run.begin(found)
        return run

    def begin(self, found: Found) -> None:
        """Publish the present version: for the first time, or again because nobody knows whether it got out."""
        state = found.state
        with self.outlet.exclusive():
            with self.lock:
                policy = self.announced = self.outlet.credit(self.announced)
                rejections = tuple(self.assembler.outbox)
            step = None
            if state is None or found.log_is_new:
                temporary = self.checkpoints.write_tensors(self.write_tensors)
                self.checkpoints.complete(temporary, self.state(policy, rejections))
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
            )
            ctx.health.set_ready(True)
            self.trainer.train()
        except Drained:
            ctx.log.info("drained", version=self.assembler.version)
        except Diverged as error:
            raise TrainingFailed(f"{error}; lower trainer.learning_rate, or look at mismatch_kl") from error
        finally:
            ctx.health.set_ready(False, "stopping")
            self.intake.stop()
            self.outlet.settle_up(wait=True)
            self.publisher.close()

    def next_batch(self) -> Batch:
        """The next batch; raises Drained when the service stops."""
        batch, self.waited_s = self.intake.next_batch(self.ctx.stop)
        if batch is None:
            raise Drained
        return batch

    def on_step(self, result: StepResult) -> bool:
        """Make the step durable, then public; says whether to go on."""
        began = time.perf_counter()
        config, version = self.ctx.config, result.batch.version + 1
        folder = policy_folder(self.run_dir, version)
        self.policy.publish_to(folder)
        policy = make_policy(self.ctx.common.run_id, version, config, self.policy.base_model, folder)
        temporary = self.checkpoints.write_tensors(self.write_tensors)
        with self.outlet.exclusive():
            step = make_step(
                self.ctx.common.run_id, result, wait_s=self.waited_s, publish_s=time.perf_counter() - began
            )
            with self.lock:
                self.assembler.commit(result.batch)
                policy = self.announced = self.outlet.credit(policy)
                rejections = tuple(self.assembler.outbox)
                state = self.state(policy, rejections, result=step)
            self.checkpoints.complete(temporary, state)
            self.outlet.announce(policy, step, rejections)
        self.metrics.show_step(step)
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
        )
        return not self.ctx.stop.is_set()

    def write_tensors(self, folder: Path) -> None:
        """Put weights, optimizer, scheduler and random state into a checkpoint folder."""
        self.policy.save_trained(folder)
        (self.trainer.rng if self.trainer is not None else self.rng).save(folder)

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


def rules_of(config: TrainerConfig, run_id: str, vocab_size: int) -> Rules:
    """The assembler's share of the configuration."""
    return Rules(
        run_id=run_id,
        groups_per_step=config.groups_per_step,
        max_staleness=config.max_staleness,
        min_group_size=config.min_group_size,
        filter_zero_variance=config.filter_zero_variance,
        unparsable_reward=config.unparsable_reward,
        incomplete_timeout_s=config.incomplete_timeout_s,
        lost_timeout_s=config.lost_timeout_s,
        vocab_size=vocab_size,
    )


def restore(ctx: Context, found: Found, vocab_size: int) -> Assembler:
    """The assembler as the checkpoint and the log leave it."""
    rules, state = rules_of(ctx.config, ctx.common.run_id, vocab_size), found.state
    if state is None:
        return Assembler(rules, temperature=ctx.config.temperature)
    temperature = ctx.config.temperature or state.temperature
    if found.log_is_new:
        ctx.log.warning(
            "log_is_new",
            version=state.version,
            settled_groups=len(state.account.settled),
            hint="the topics hold nothing of this run: weights and version are kept, accounts and credit start anew",
        )
        return Assembler(rules, version=state.version, temperature=temperature)
    assembler = Assembler(
        rules,
        version=state.version,
        account=state.account,
        temperature=temperature,
        next_offsets=dict(state.read_from),
        reread_below=dict(state.seen_until),
    )
    assembler.outbox.extend(state.rejections)
    for rejection in published_rejections(ctx.common, ctx.codec, ctx.topics):
        assembler.replay(rejection)
    return assembler


def accept_start(ctx: Context, assembler: Assembler, reader: TopicReader[Verdict]) -> None:
    """Take over where the reader really starts, when the broker no longer has what the checkpoint asks for."""
    for gone in reader.gone:
        ctx.log.warning(
            "offsets_gone",
            topic=reader.topic.name,
            partition=gone.partition,
            wanted=gone.wanted,
            first=gone.first,
            end=gone.end,
            hint="weights and accounts are kept; reading starts at what is left, and groups lost with the log are "
            "given up after trainer.lost_timeout_s",
        )
        assembler.reread_below.pop(gone.partition, None)
    assembler.next_offsets = reader.positions()


def ensure_artifact(ctx: Context, policy: Policy, found: Found, folder: Path) -> PolicyVersion:
    """The record of the present version, its weights saved (again) unless they are there as announced."""
    if found.state is not None:
        try:
            verify_dir(found.state.policy.uri, found.state.policy.sha256)
        except ArtifactError as error:
            ctx.log.warning("policy_saved_again", version=found.state.version, reason=str(error))
        else:
            # The configuration may have changed since; readers judge by what the newest record says.
            return msgspec.structs.replace(
                found.state.policy,
                max_staleness=ctx.config.max_staleness,
                groups_per_step=ctx.config.groups_per_step,
            )
    policy.publish_to(folder)
    version = 0 if found.state is None else found.state.version
    return make_policy(ctx.common.run_id, version, ctx.config, policy.base_model, folder)


def policy_folder(run_dir: Path, version: int) -> Path:
    """Where the weights of a version lie."""
    return run_dir / "policies" / f"v{version:06d}"


def prune_policies(run_dir: Path, newest: int, kept: int) -> None:
    """Delete old policy folders; version 0 stays, as the one that every other is compared with."""
    for folder in (run_dir / "policies").glob("v*"):
        number = folder.name.removeprefix("v")
        if number.isdigit() and 0 < int(number) <= newest - kept:
            shutil.rmtree(folder)
