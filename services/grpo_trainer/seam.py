"""The seam with TRL: a ``GRPOTrainer`` that is handed batches instead of generating them.

TRL 1.16 is relied on for this much, and ``tests/grpo_trainer/test_seam.py`` fails when it changes:

* ``_generate_and_score_completions(inputs)`` gives the batch as a dict; ours takes it from the stream.
* ``compute_loss(model, inputs)`` reads ``prompt_ids``, ``prompt_mask``, ``completion_ids``, ``completion_mask``,
  ``advantages``, ``num_items_in_batch`` and, where given, ``old_per_token_logps``, ``sampling_per_token_logps``,
  ``ref_per_token_logps`` and ``importance_sampling_ratio``, all of these only after its own forward pass,
  which it makes through ``_get_per_token_logps_and_entropies``. That is ours: it reads rows without a gap between
  prompt and completion. So one forward pass serves the loss, the importance weights and the mismatch between the
  engine's logprobs and ours.
* ``use_vllm`` with ``vllm_importance_sampling_correction`` only means: multiply by ``importance_sampling_ratio``.
* Losses are divided by ``current_gradient_accumulation_steps``, and by ``num_items_in_batch`` scaled by it.

Micro-batches are ours: they are made from token counts, so their number changes from step to step. Each one's loss is
weighted so that the sum is exactly what one forward pass over the whole batch would give.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from datasets import Dataset
from peft.helpers import disable_input_dtype_casting
from transformers import PreTrainedTokenizerBase
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from grpo_trainer.assembler import Batch
from grpo_trainer.batch import Lines, MicroBatch, TensorDict, lines_of, micro_batches, to_tensors
from grpo_trainer.config import TrainerConfig
from grpo_trainer.observed import Observed, observe
from grpo_trainer.recovery import Recovery, Trained, describe, in_float32
from grpo_trainer.rng import RngState
from grpo_trainer.step import StepResult
from grpo_trainer.trl_arguments import grpo_config, quiet_libraries

ROW_MEAN_LOSSES = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})
"""Losses that are a mean over rows; ``bnpo`` is one over the micro-batch's tokens, the others over the batch's."""
PLACEHOLDERS = 4096


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


@dataclass(frozen=True, slots=True)
class Work:
    """One step's batch, divided."""

    chunks: tuple[MicroBatch, ...]
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A micro-batch, or a part of one, on the device."""

    rows: int
    tokens: int
    inputs: TensorDict
    lines: Lines


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
        on_recovery: Callable[[Recovery], None] | None = None,
        evidence_dir: Path | None = None,
    ) -> None:
        """
        Args:
            model: the policy, a PEFT model for LoRA.
            on_step: told of each step; says whether to go on.
            steps: optimizer steps to take; None for no end.
            rng: random state to start from; the present one when None.
            reference: frozen base model, for ``beta`` > 0 without LoRA.
            bf16: run forward passes under bfloat16 autocast.
            on_recovery: told of each gradient that was no number and became one.
            evidence_dir: where micro-batches whose gradient was no number are kept; in ``work_dir`` when None.
        """
        quiet_libraries()
        super().__init__(
            model=model,
            reward_funcs=[_no_reward],
            args=grpo_config(config, work_dir, steps, cpu=cpu),
            train_dataset=Dataset.from_dict({"prompt": ["-"] * PLACEHOLDERS}),
            processing_class=tokenizer,
            optimizers=(optimizer, scheduler),
        )
        self._config = config
        self._source = source
        self._on_step = on_step
        self._rng = rng or RngState.now()
        self._reference = reference
        self._bf16 = bf16
        self._on_recovery = on_recovery
        self._evidence_dir = evidence_dir or work_dir / "no_number"
        self._lines: Lines | None = None
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
        config = self._config
        chunks = tuple(micro_batches(tensors, max_rows=config.micro_batch_size, max_tokens=config.micro_batch_tokens))
        self.current_gradient_accumulation_steps = len(chunks)
        work = Work(chunks, tensors["prompt_ids"].size(0), int(tensors["num_items_in_batch"]))
        trained = Trained(model, keep_on_cpu=config.weights == "full")
        # PEFT casts activations to the adapter's float32, and autocast casts them back: the same bits, for nothing.
        # Backward passes belong inside, since checkpointed activations are computed again there.
        with disable_input_dtype_casting(model, active=self._bf16 and config.weights == "lora"):
            total = self._take_all(model, work)
            # Read together: one wait for the GPU, and one pass over the gradients of the whole step.
            loss, norm = torch.stack([total, trained.norm()]).tolist()
            if not math.isfinite(loss) or not math.isfinite(norm):
                total = self._take_apart(model, work, trained)
                loss = total.item()
        self._step += 1
        self._loss = loss
        self._rng = RngState.now()
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

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **_images: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Logprobs and entropies of the completion, through :class:`Lines` of the same rows."""
        del input_ids, batch_size
        mask = attention_mask[:, -logits_to_keep:]
        logps, outputs, lines = self._forward(model, mask, router=compute_aux_loss)
        if not compute_entropy:
            return logps, None, None
        entropies = outputs.entropy.gather(1, lines.columns).masked_fill(mask == 0, 0.0)
        if self._current is not None:
            observe(self._observed, logps.detach(), entropies.detach(), self._current, self._config)
        return logps, entropies, outputs.aux_loss if compute_aux_loss else None

    _current: TensorDict | None = None

    # Inside

    def _forward(
        self, model: Any, completion_mask: torch.Tensor, *, router: bool = False
    ) -> tuple[torch.Tensor, Any, Lines]:
        """Logprobs of the completion, 0 where masked, the model's outputs, and the lines that were read."""
        lines = self._lines
        if lines is None:
            raise RuntimeError("no micro-batch is being taken")
        # Router losses count tokens by the mask; attention goes without, see Lines.
        more = {"attention_mask": lines.mask, "output_router_logits": True} if router else {}
        outputs = model(input_ids=lines.ids, labels=lines.labels, fused_lm_head=True, **more)
        return outputs.log_probs.gather(1, lines.columns).masked_fill(completion_mask == 0, 0.0), outputs, lines

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

    def _begin_pass(self) -> None:
        self._rng.restore()
        self._observed = Observed()
        self._metrics["train"].clear()

    def _take_all(self, model: torch.nn.Module, work: Work) -> torch.Tensor:
        """Forward and backward over the whole step, gradients added up as they come; the loss."""
        self._begin_pass()
        total = torch.zeros((), device=self.accelerator.device)
        # All of it (some megabytes) before the first: a copy to the GPU waits for what the GPU was given before.
        for loaded in [self._load(chunk, work) for chunk in work.chunks]:
            total += self._take(model, loaded, work)
        return total

    def _take(self, model: torch.nn.Module, loaded: Loaded, work: Work, *, plain: bool = False) -> torch.Tensor:
        """Forward and backward; the share of the step's loss.

        Args:
            plain: without autocast.
        """
        with nullcontext() if plain else self._autocast(), self.compute_loss_context_manager():
            self._lines, inputs = loaded.lines, dict(loaded.inputs)
            if self.beta:
                inputs["ref_per_token_logps"] = self._reference_logps(model, inputs)
            loss = self.compute_loss(model, inputs) * self._weight(loaded, work)
        self.accelerator.backward(loss)
        return loss.detach()

    def _take_apart(self, model: torch.nn.Module, work: Work, trained: Trained) -> torch.Tensor:
        """Take a step again whose loss or gradient was no number, each micro-batch's gradient apart from the others.

        What is finite is added up as before. A micro-batch that is not is taken again in float32.

        Raises:
            Diverged: that is no number either. The micro-batch is kept as a file.
        """
        trained.clear()
        self._begin_pass()
        total = torch.zeros((), device=self.accelerator.device)
        recoveries = []
        for number, chunk in enumerate(work.chunks, 1):
            seen, draws = self._observed.copy(), RngState.now()
            metrics = {key: len(values) for key, values in self._metrics["train"].items()}
            share = self._take(model, self._load(chunk, work), work)
            if not _finite(share, trained.norm()):
                found = describe(
                    self._batch_of_step(),
                    chunk,
                    number=number,
                    of=len(work.chunks),
                    broken=trained.broken(),
                    max_log_ratio=math.nan if (far := self._observed.last_largest) is None else far.item(),
                    facts={
                        "base_model": self._config.base_model,
                        "temperature": self._temperature,
                        "loss": share.item(),
                    },
                    folder=self._evidence_dir,
                )
                after = RngState.now()
                # Nothing of the failed pass counts, and later micro-batches draw as if it had been the only one.
                self._observed = seen
                for key, values in self._metrics["train"].items():
                    del values[metrics.get(key, 0) :]
                draws.restore()
                trained.clear()
                share = self._retake(model, chunk, work, trained, found)
                after.restore()
                recoveries.append(found)
            trained.keep()
            total += share
        trained.give_back()
        version = self._batch_of_step().version + 1
        if self._on_recovery is not None:
            for recovery in recoveries or [Recovery(version, "repeated", micro_batches=len(work.chunks))]:
                self._on_recovery(recovery)
        return total

    def _retake(
        self, model: torch.nn.Module, chunk: MicroBatch, work: Work, trained: Trained, found: Recovery
    ) -> torch.Tensor:
        """The gradient of a micro-batch in float32, row by row where the loss allows it, which takes less memory."""
        where = f"micro-batch {found.micro_batch} of {found.micro_batches}, which is kept in {found.file}"
        share = torch.zeros((), device=self.accelerator.device)
        try:
            with in_float32(model):
                for part in self._parts(chunk):
                    share += self._take(model, self._load(part, work), work, plain=True)
        except torch.OutOfMemoryError as error:
            raise Diverged(
                f"the gradient of step {found.version} is no number, and there is no memory to take it again in "
                f"float32 ({error}): {where}"
            ) from error
        norm = trained.norm()
        if not _finite(share, norm):
            what = ("gradient norm", norm) if math.isfinite(share.item()) else ("loss", share)
            raise Diverged(
                f"the {what[0]} of step {found.version} is {what[1].item()}, in float32 too, because of {where}"
            )
        return share

    def _parts(self, chunk: MicroBatch) -> Iterable[MicroBatch]:
        """Parts whose losses add up to that of the micro-batch: terms that are means over it cannot be divided."""
        whole = self._entropy_bonus_enabled or self.top_entropy_quantile < 1.0 or self.aux_loss_enabled
        return (chunk,) if whole else chunk.single_rows()

    def _load(self, chunk: MicroBatch, work: Work) -> Loaded:
        device = self.accelerator.device
        inputs = {key: tensor.to(device) for key, tensor in chunk.tensors.items()}
        inputs["num_items_in_batch"] = torch.tensor(work.tokens / len(work.chunks), device=device)
        return Loaded(chunk.rows, chunk.tokens, inputs, lines_of(chunk.tensors).to(device))

    def _autocast(self) -> Any:
        """bfloat16 over float32 weights, where that is configured."""
        return torch.autocast(self.accelerator.device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def _reference_logps(self, model: torch.nn.Module, inputs: TensorDict) -> torch.Tensor:
        mask = inputs["completion_mask"]
        with torch.no_grad():
            if self._reference is not None:
                return self._forward(self._reference, mask)[0]
            with self.accelerator.unwrap_model(model).disable_adapter():
                return self._forward(model, mask)[0]

    def _weight(self, chunk: Loaded, work: Work) -> float:
        """Turns TRL's mean over a micro-batch into its share of the mean over the batch."""
        if self.loss_type in ROW_MEAN_LOSSES:
            return chunk.rows * len(work.chunks) / work.rows
        if self.loss_type == "bnpo":
            return chunk.tokens * len(work.chunks) / max(1, work.tokens)
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
        seen = self._observed.read()
        tokens = max(1.0, seen.tokens)
        clipped = metrics.get("clip_ratio/region_mean", metrics.get("cispo_clip_ratio", 0.0))
        if self._config.correction != "none":
            clipped = seen.out_of_bounds / max(1.0, seen.weighted)
        if seen.tokens_fresh:
            metrics["mismatch/kl_lag0"] = seen.k3_fresh / seen.tokens_fresh
        return StepResult(
            batch=self._batch_of_step(),
            loss=self._loss,
            grad_norm=float(logs["grad_norm"]),
            learning_rate=float(logs["learning_rate"]),
            entropy=seen.entropy / tokens,
            kl=metrics.get("kl"),
            clip_fraction=clipped,
            mismatch_kl=seen.k3 / tokens,
            mismatch_max_ratio=math.exp(seen.max_log_ratio),  # cut when it was observed
            importance_ratio_mean=seen.weights / max(1.0, seen.weighted),
            train_s=time.perf_counter() - self._started,
            metrics=metrics,
        )


def _finite(*values: torch.Tensor) -> bool:
    return all(math.isfinite(value) for value in torch.stack(values).tolist())


def _no_reward(completions: list[Any], **_columns: Any) -> list[float]:
    """TRL wants a reward function; it is never called, since rewards come with the verdicts."""
    return [0.0] * len(completions)


def _longest_allowed(batch: Batch) -> int:
    return max(
        [sample.verdict.sampling.max_new_tokens for sample in batch.samples if sample.verdict.sampling is not None],
        default=max(sample.length for sample in batch.samples),
    )
