"""What comes of an optimizer step. Free of torch, so that records can be made and tested without it."""

from __future__ import annotations

from dataclasses import dataclass, field

from grpo_trainer.assembler import Batch


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of one optimizer step; see ``TrainingStep`` for the units."""

    batch: Batch
    loss: float
    grad_norm: float
    learning_rate: float
    entropy: float
    kl: float | None
    clip_fraction: float
    mismatch_kl: float
    mismatch_max_ratio: float
    importance_ratio_mean: float
    train_s: float
    metrics: dict[str, float] = field(default_factory=dict)
