"""The seam with TRL: a ``GRPOTrainer`` that is handed batches instead of generating them.

TRL 1.16 is relied on for this much, and ``tests/grpo_trainer/test_seam.py`` fails when it changes:

* ``_generate_and_score_completions(inputs)`` gives the batch as a dict; ours takes it from the stream.
* ``compute_loss(model, inputs)`` reads ``prompt_ids``, ``prompt_mask``, ``completion_ids``, ``completion_mask``,
  ``advantages``, ``num_items_in_batch`` and, where given, ``old_per_token_logps``, ``sampling_per_token_logps``,
  ``ref_per_token_logps`` and ``importance_sampling_ratio``, the last only after its own forward pass, which it makes
  through ``_get_per_token_logps_and_entropies``. So one forward pass serves the loss, the importance weights and the
  mismatch between the engine's logprobs and ours.
* ``use_vllm`` with ``vllm_importance_sampling_correction`` only means: multiply by ``importance_sampling_ratio``.
* Losses are divided by ``current_gradient_accumulation_steps``, and by ``num_items_in_batch`` scaled by it.

Micro-batches are ours: they are made from token counts, so their number changes from step to step. Each one's loss is
weighted so that the sum is exactly what one forward pass over the whole batch would give.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from grpo_trainer.assembler import Batch
from grpo_trainer.batch import MicroBatch, TensorDict, micro_batches, to_tensors
from grpo_trainer.config import TrainerConfig
from grpo_trainer.rng import RngState
from grpo_trainer.step import StepResult

ROW_MEAN_LOSSES = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})
"""Losses that are a mean over rows; ``bnpo`` is one over the micro-batch's tokens, the others over the batch's."""
PLACEHOLDERS = 4096
UNBOUNDED_STEPS = 1_000_000_000


class BatchSource(Protocol):
    """Where batches come from."""

    def next_batch(self) -> Batch:
        """The next batch, waiting for it.

        Raises:
            Drained: no batch will come, because the service stops.
        """


class Drained(Exception):
    """Raised through ``train()`` when the service stops while it waits for a batch."""


class Diverged(Exception):
    """The loss or the gradient is no number. Nothing was saved: a restart goes on from the last checkpoint."""


@dataclass(slots=True)
class Observed:
    """Sums over the completion tokens of one step."""

    tokens: float = 0.0
    entropy: float = 0.0
    k3: float = 0.0
    k3_fresh: float = 0.0
    tokens_fresh: float = 0.0
    max_log_ratio: float = 0.0
    weights: float = 0.0
    weighted: float = 0.0
    out_of_bounds: float = 0.0


class StreamTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL is untyped
    """TRL's GRPO trainer, fed from a :class:`BatchSource`; calls ``on_step`` after each optimizer step."""

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LambdaLR,
        config: TrainerConfig,
        source: BatchSource,
        on_step: Callable[[StepResult], bool],
        steps: int | None,
        work_dir: Path,
        rng: RngState | None = None,
        reference: torch.nn.Module | None = None,
        bf16: bool = False,
        cpu: bool = True,
    ) -> None:
        """
        Args:
            model: the policy, a PEFT model for LoRA.
            on_step: told of each step; says whether to go on.
            steps: optimizer steps to take; None for no end.
            rng: random state to start from; the present one when None.
            reference: frozen base model, for ``beta`` > 0 without LoRA.
        """
        quiet_libraries()
        super().__init__(
            model=model,
            reward_funcs=[_no_reward],
            args=grpo_config(config, work_dir, steps, bf16=bf16, cpu=cpu),
            train_dataset=Dataset.from_dict({"prompt": ["-"] * PLACEHOLDERS}),
            processing_class=tokenizer,
            optimizers=(optimizer, scheduler),
        )
        self._config = config
        self._source = source
        self._on_step = on_step
        self._rng = rng or RngState.now()
        self._reference = reference
        self._observed = Observed()
        self._batch: Batch | None = None
        self._loss = 0.0
        self._started = 0.0
        self._temperature = 1.0
        self.beta = config.beta  # after construction, so that TRL makes no reference of its own
        self.use_vllm = config.correction != "none"
        if reference is not None:
            add_fused_lm_head(reference, temperature=1.0)

    @property
    def rng(self) -> RngState:
        """Random state after the last step."""
        return self._rng

    # What TRL calls

    def _generate_and_score_completions(self, inputs: Any) -> TensorDict:
        """A batch from the stream, in CPU memory; ``inputs`` are placeholder rows that only pace the loop."""
        del inputs
        self._batch = batch = self._source.next_batch()
        self._started = time.perf_counter()
        self._set_temperature(batch)
        self.max_completion_length = self._config.max_completion_tokens or _longest_allowed(batch)
        return to_tensors(
            batch,
            scale=self._config.scale_rewards,
            pad_id=self._tokenizer.pad_token_id,
            mask_truncated=self._config.mask_truncated_completions,
        )

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward over one whole batch, in micro-batches."""
        del num_items_in_batch
        tensors = self._generate_and_score_completions(inputs)
        model.train()
        self._rng.restore()
        self._observed = Observed()
        config = self._config
        chunks = list(micro_batches(tensors, max_rows=config.micro_batch_size, max_tokens=config.micro_batch_tokens))
        self.current_gradient_accumulation_steps = len(chunks)
        rows, tokens = tensors["prompt_ids"].size(0), max(1, int(tensors["num_items_in_batch"]))
        total = torch.zeros((), device=self.accelerator.device)
        for chunk in chunks:
            row = self._row_inputs(model, chunk, tensors["num_items_in_batch"] / len(chunks))
            with self.compute_loss_context_manager(), self._autocast():
                loss = self.compute_loss(model, row) * self._weight(chunk, len(chunks), rows, tokens)
            self.accelerator.backward(loss)
            total += loss.detach()
        self._step += 1
        self._loss = total.item()
        self._rng = RngState.now()
        if not math.isfinite(self._loss):
            raise Diverged(f"the loss of step {self._batch_of_step().version + 1} is {self._loss}")
        return total

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Called by the training loop after each optimizer step, with loss, gradient norm and learning rate."""
        del start_time
        if "grad_norm" not in logs:
            return  # the summary at the end of train()
        metrics = {key: [v for v in values if not math.isnan(v)] for key, values in self._metrics["train"].items()}
        self._metrics["train"].clear()
        result = self._result(logs, {key: sum(values) / len(values) for key, values in metrics.items() if values})
        if not math.isfinite(result.grad_norm):
            raise Diverged(f"the gradient norm of step {result.batch.version + 1} is {result.grad_norm}")
        if not self._on_step(result):
            self.control.should_training_stop = True

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if self._current is not None and kwargs.get("compute_entropy"):
            self._observe(result[0].detach(), result[1].detach(), self._current)
        return result

    _current: TensorDict | None = None

    # Inside

    def compute_loss(
        self, model: torch.nn.Module, inputs: TensorDict, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """TRL's loss of one micro-batch, with its forward pass observed on the way."""
        del return_outputs, num_items_in_batch
        self._current = inputs
        try:
            return super().compute_loss(model, inputs)
        finally:
            self._current = None

    def _row_inputs(self, model: torch.nn.Module, chunk: MicroBatch, num_items: torch.Tensor) -> TensorDict:
        device = self.accelerator.device
        inputs = {key: tensor.to(device) for key, tensor in chunk.tensors.items()}
        inputs["num_items_in_batch"] = num_items.to(device)
        if self._config.correction == "none":
            inputs["old_per_token_logps"] = inputs["sampling_per_token_logps"]
        if self.beta:
            inputs["ref_per_token_logps"] = self._reference_logps(model, inputs)
        return inputs

    def _autocast(self) -> Any:
        """bfloat16 over float32 weights; accelerate's own wrapper is lost when the head is made anew."""
        device = self.accelerator.device.type
        return torch.autocast(device, torch.bfloat16) if self.args.bf16 else nullcontext()

    def _reference_logps(self, model: torch.nn.Module, inputs: TensorDict) -> torch.Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].size(1)
        with torch.no_grad(), self._autocast():
            if self._reference is not None:
                return self._get_per_token_logps_and_entropies(self._reference, ids, mask, width)[0]
            with self.accelerator.unwrap_model(model).disable_adapter():
                return self._get_per_token_logps_and_entropies(model, ids, mask, width)[0]

    def _observe(self, logps: torch.Tensor, entropy: torch.Tensor, inputs: TensorDict) -> None:
        """Compare our logprobs with the engine's, and put the importance weights where the loss will look."""
        mask = inputs["completion_mask"]
        log_ratio = (logps.float() - inputs["sampling_per_token_logps"]) * mask
        k3 = (torch.expm1(log_ratio) - log_ratio) * mask
        fresh = mask * (inputs["lag"] == 0).unsqueeze(1)
        seen = self._observed
        count = float(mask.sum())
        seen.tokens += count
        seen.entropy += float((entropy.float() * mask).sum())
        seen.k3 += float(k3.sum())
        seen.k3_fresh += float((k3 * fresh).sum())
        seen.tokens_fresh += float(fresh.sum())
        seen.max_log_ratio = max(seen.max_log_ratio, float(log_ratio.abs().max()))
        if self._config.correction == "none":
            seen.weights += float((torch.exp(log_ratio) * mask).sum())
            seen.weighted += count
            return
        weights, outside = importance_weights(log_ratio, self._config)
        inputs["importance_sampling_ratio"] = weights
        real = mask if weights.size(1) > 1 or mask.size(1) == 1 else mask.amax(1, keepdim=True)
        seen.weights += float((weights * real).sum())
        seen.weighted += float(real.sum())
        seen.out_of_bounds += float((outside * real).sum())

    def _weight(self, chunk: MicroBatch, chunks: int, rows: int, tokens: int) -> float:
        """Turns TRL's mean over a micro-batch into its share of the mean over the batch."""
        if self.loss_type in ROW_MEAN_LOSSES:
            return chunk.rows * chunks / rows
        if self.loss_type == "bnpo":
            return chunk.tokens * chunks / tokens
        return 1.0

    def _set_temperature(self, batch: Batch) -> None:
        """The fused head divides logits by the temperature it was made with: make it anew when that changes."""
        sampling = batch.samples[0].verdict.sampling
        temperature = sampling.temperature if sampling and sampling.temperature > 0 else 1.0
        if temperature == self._temperature:
            return
        self._temperature = self.temperature = temperature
        policy = self.accelerator.unwrap_model(self.model)
        outputs = ("log_probs", "entropy")
        base = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
        add_fused_lm_head(base, temperature=temperature, outputs=outputs)
        if self._reference is not None:
            add_fused_lm_head(self._reference, temperature=temperature)

    def _batch_of_step(self) -> Batch:
        if self._batch is None:
            raise RuntimeError("no step has begun")
        return self._batch

    def _result(self, logs: dict[str, float], metrics: dict[str, float]) -> StepResult:
        seen = self._observed
        tokens = max(1.0, seen.tokens)
        clipped = metrics.get("clip_ratio/region_mean", metrics.get("cispo_clip_ratio", 0.0))
        if self._config.correction != "none":
            clipped = seen.out_of_bounds / max(1.0, seen.weighted)
        metrics["mismatch/kl_lag0"] = seen.k3_fresh / max(1.0, seen.tokens_fresh)
        return StepResult(
            batch=self._batch_of_step(),
            loss=self._loss,
            grad_norm=float(logs["grad_norm"]),
            learning_rate=float(logs["learning_rate"]),
            entropy=seen.entropy / tokens,
            kl=metrics.get("kl"),
            clip_fraction=clipped,
            mismatch_kl=seen.k3 / tokens,
            mismatch_max_ratio=math.exp(min(seen.max_log_ratio, 80.0)),
            importance_ratio_mean=seen.weights / max(1.0, seen.weighted),
            train_s=time.perf_counter() - self._started,
            metrics=metrics,
        )


def importance_weights(log_ratio: torch.Tensor, config: TrainerConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Importance weights against the behaviour policy.

    Args:
        log_ratio: log of recomputed over behaviour probability, float32[B, C], 0 where masked.

    Returns:
        Weights, and 1 where the ratio was out of bounds: [B, C] for the token modes, [B, 1] for the sequence modes.
    """
    sequence = config.correction.startswith("sequence")
    ratio = torch.exp((log_ratio.sum(1, keepdim=True) if sequence else log_ratio).clamp(-80.0, 80.0))
    low = config.correction_min if config.correction_min is not None else 0.0
    high = config.correction_max if config.correction_max is not None else math.inf
    outside = (ratio < low) | (ratio > high)
    weights = ratio.masked_fill(outside, 0.0) if config.correction.endswith("mask") else ratio.clamp(low, high)
    return weights, outside.to(ratio.dtype)


def grpo_config(config: TrainerConfig, work_dir: Path, steps: int | None, *, bf16: bool, cpu: bool) -> GRPOConfig:
    """TRL's arguments: one optimizer step per training step, no reports, no bars, no checkpoints of its own."""
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
        bf16=bf16,
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


def _no_reward(completions: list[Any], **_columns: Any) -> list[float]:
    """TRL wants a reward function; it is never called, since rewards come with the verdicts."""
    return [0.0] * len(completions)


def _longest_allowed(batch: Batch) -> int:
    return max(
        [sample.verdict.sampling.max_new_tokens for sample in batch.samples if sample.verdict.sampling is not None],
        default=max(sample.length for sample in batch.samples),
    )
