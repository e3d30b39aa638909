"""What a starting trainer makes of what it found: its accounts, its place in the log, the artifact of its version."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from gristmill.artifacts import verify_dir
from gristmill.errors import ArtifactError
from gristmill.messages import PolicyVersion, Verdict
from gristmill.reader import TopicReader
from gristmill.service import ServiceContext
from grpo_trainer.assembler import Assembler, Rules
from grpo_trainer.config import TrainerConfig
from grpo_trainer.model import Policy
from grpo_trainer.records import make_policy
from grpo_trainer.resume import Found, published_rejections

Context = ServiceContext[TrainerConfig]


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
    version = 0 if found.state is None else found.state.version
    sha256 = policy.publish_to(folder)
    return make_policy(ctx.common.run_id, version, ctx.config, policy.base_model, folder, sha256)


def policy_folder(run_dir: Path, version: int) -> Path:
    """Where the weights of a version lie."""
    return run_dir / "policies" / f"v{version:06d}"


def prune_policies(run_dir: Path, newest: int, kept: int) -> None:
    """Delete old policy folders; version 0 stays, as the one that every other is compared with."""
    for folder in (run_dir / "policies").glob("v*"):
        number = folder.name.removeprefix("v")
        if number.isdigit() and 0 < int(number) <= newest - kept:
            shutil.rmtree(folder)
