"""The records that announce a training step."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from gristmill import freshness
from gristmill.artifacts import to_uri
from gristmill.messages import PolicyKind, PolicyVersion, TrainingStep, now_ms
from grpo_trainer.assembler import Batch
from grpo_trainer.config import TrainerConfig
from grpo_trainer.groups import TOKEN_BYTES
from grpo_trainer.step import StepResult


def policy_name(run_id: str, version: int) -> str:
    """Name under which engines serve a version: never used for another one."""
    return f"{run_id}-v{version}"


def make_policy(
    run_id: str, version: int, config: TrainerConfig, base_model: str, folder: Path, sha256: str
) -> PolicyVersion:
    """Record of a version whose weights lie in ``folder``; its credit is filled in when it is published."""
    kind: PolicyKind = "lora" if config.weights == "lora" else "full"
    return PolicyVersion(
        run_id=run_id,
        version=version,
        step=version,
        name=policy_name(run_id, version),
        base_model=base_model,
        kind=kind,
        uri=to_uri(folder),
        sha256=sha256,
        admit_until=0,
        settled_groups=0,
        trained=0,
        rejected=0,
        filtered=0,
        failed=0,
        max_staleness=config.max_staleness,
        groups_per_step=config.groups_per_step,
        published_at_ms=now_ms(),
    )


def make_step(run_id: str, result: StepResult, *, wait_s: float, publish_s: float) -> TrainingStep:
    """Record of a finished optimizer step."""
    samples = result.batch.samples
    rewards = np.asarray([sample.reward for sample in samples], dtype=np.float64)
    lengths = [sample.length for sample in samples]
    return TrainingStep(
        run_id=run_id,
        step=result.batch.version + 1,
        version=result.batch.version + 1,
        group_ids=tuple(group.group_id for group in result.batch.groups),
        sample_ids=tuple(sample.verdict.sample_id for sample in samples),
        policy_versions=tuple(sample.verdict.policy_version_oldest for sample in samples),
        loss=result.loss,
        reward_mean=float(rewards.mean()),
        reward_std=float(rewards.std()),
        correct_fraction=sum(sample.verdict.status == "correct" for sample in samples) / len(samples),
        kl=result.kl,
        clip_fraction=result.clip_fraction,
        entropy=result.entropy,
        grad_norm=result.grad_norm,
        learning_rate=result.learning_rate,
        mismatch_kl=result.mismatch_kl,
        mismatch_max_ratio=result.mismatch_max_ratio,
        importance_ratio_mean=result.importance_ratio_mean,
        staleness=staleness(result.batch),
        prompt_tokens=sum(len(sample.verdict.prompt_token_ids) // TOKEN_BYTES for sample in samples),
        completion_tokens=sum(lengths),
        completion_length_mean=float(np.mean(lengths)),
        truncated_fraction=sum(sample.verdict.finish_reason == "length" for sample in samples) / len(samples),
        wait_s=wait_s,
        train_s=result.train_s,
        publish_s=publish_s,
        metrics={name: value for name, value in result.metrics.items() if math.isfinite(value)},
        trained_at_ms=now_ms(),
    )


def staleness(batch: Batch) -> dict[str, int]:
    """Samples by lag at the version that the batch was accepted under."""
    lags = [freshness.lag(batch.version, sample.verdict.policy_version_oldest) for sample in batch.samples]
    return {str(lag): lags.count(lag) for lag in sorted(set(lags))}
