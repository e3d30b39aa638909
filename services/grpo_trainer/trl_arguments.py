"""TRL's arguments, and its silence."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

from trl import GRPOConfig

from grpo_trainer.config import TrainerConfig

UNBOUNDED_STEPS = 1_000_000_000


def grpo_config(config: TrainerConfig, work_dir: Path, steps: int | None, *, cpu: bool) -> GRPOConfig:
    """TRL's arguments: one optimizer step per training step, no reports, no bars, no checkpoints of its own.

    Never ``bf16``: accelerate would wrap the model in an autocast that one cannot leave. The seam has its own.
    """
    return GRPOConfig(
        output_dir=str(work_dir),
        max_steps=steps if steps is not None else UNBOUNDED_STEPS,
        per_device_train_batch_size=2,
        num_generations=2,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        beta=0.0,
        loss_type=config.loss_type,
        scale_rewards=config.scale_rewards,
        importance_sampling_level=config.importance_sampling_level,
        epsilon=config.epsilon,
        epsilon_high=config.clip_high,
        delta=config.delta,
        off_policy_mask_threshold=config.off_policy_mask_threshold,
        top_entropy_quantile=config.top_entropy_quantile,
        entropy_coef=config.entropy_coef,
        vllm_importance_sampling_correction=config.correction != "none",
        temperature=1.0,
        max_grad_norm=config.max_grad_norm,
        gradient_checkpointing=config.gradient_checkpointing,
        bf16=False,
        use_cpu=cpu,
        seed=config.seed,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        shuffle_dataset=False,
        disable_dropout=False,
    )


def quiet_libraries() -> None:
    """TRL, transformers and accelerate write warnings and bars for people at a notebook; the service logs its own."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("trl", "accelerate", "peft", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(trl|transformers|accelerate|peft|torch)(\..*)?")
