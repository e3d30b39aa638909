"""What a step's forward passes show: sums for the record, and importance weights against the behaviour policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from grpo_trainer.config import TrainerConfig

FURTHEST = 80.0
"""Log ratios are cut to this before ``exp``, whose float32 overflows at 88.7."""
FURTHEST_IN_LOSS = 20.0
"""Log ratios beyond this are cut where the loss takes ``exp`` of them, as TRL does for VESPO. Every clip is far below
e^20; without the cut, ``exp`` gives infinity, the clip's gradient of 0 is multiplied by it, and that is no number."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the completion tokens of one step."""

    tokens: float = 0.0
    entropy: float = 0.0
    k3: float = 0.0
    k3_fresh: float = 0.0
    tokens_fresh: float = 0.0
    weights: float = 0.0
    weighted: float = 0.0
    out_of_bounds: float = 0.0
    max_log_ratio: float = 0.0


class Observed:
    """Sums of one step, kept on the device: reading them would have the CPU wait for the GPU at every micro-batch."""

    def __init__(self) -> None:
        self._sums: torch.Tensor | None = None
        self._largest: torch.Tensor | None = None
        self.last_largest: torch.Tensor | None = None
        """Largest log ratio of the newest micro-batch."""

    def copy(self) -> Observed:
        """The sums so far."""
        other = Observed()
        other._sums, other._largest, other.last_largest = self._sums, self._largest, self.last_largest
        return other

    def add(self, sums: list[torch.Tensor], largest: torch.Tensor) -> None:
        """Add a micro-batch: the fields of :class:`Sums` in order, but for the last, which is ``largest``."""
        values = torch.stack([value.float() for value in sums]).double()
        self._sums = values if self._sums is None else self._sums + values
        self.last_largest = largest
        self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)

    def read(self) -> Sums:
        """Read everything at once."""
        if self._sums is None or self._largest is None:
            return Sums()
        values = torch.cat([self._sums, self._largest.double().reshape(1)]).tolist()
        return Sums(**{field.name: value for field, value in zip(fields(Sums), values, strict=True)})


def observe(
    seen: Observed, logps: torch.Tensor, entropy: torch.Tensor, inputs: dict[str, torch.Tensor], config: TrainerConfig
) -> None:
    """Compare our logprobs with the engine's, and put what the loss compares with where it will look.

    Args:
        seen: where to add what is seen.
        logps: our log-probabilities of the completion, float32[B, C], 0 where masked; without gradient.
        entropy: entropies, the same shape.
        inputs: the micro-batch. ``importance_sampling_ratio`` or ``old_per_token_logps`` is put there, and
            ``ref_per_token_logps`` is kept within reach of ``exp``.
    """
    mask = inputs["completion_mask"]
    sampling = inputs["sampling_per_token_logps"]
    log_ratio = ((logps.float() - sampling) * mask).clamp(-FURTHEST, FURTHEST)
    k3 = (torch.expm1(log_ratio) - log_ratio) * mask
    fresh = mask * (inputs["lag"] == 0).unsqueeze(1)
    count = mask.sum()
    sums = [count, (entropy.float() * mask).sum(), k3.sum(), (k3 * fresh).sum(), fresh.sum()]
    if "ref_per_token_logps" in inputs:
        inputs["ref_per_token_logps"] = within_reach(inputs["ref_per_token_logps"], logps)
    if config.correction == "none":
        inputs["old_per_token_logps"] = within_reach(sampling, logps)
        sums += [(torch.exp(log_ratio) * mask).sum(), count, torch.zeros_like(count)]
    else:
        weights, outside = importance_weights(log_ratio, config)
        inputs["importance_sampling_ratio"] = weights
        real = mask if weights.size(1) > 1 or mask.size(1) == 1 else mask.amax(1, keepdim=True)
        sums += [(weights * real).sum(), real.sum(), (outside * real).sum()]
    seen.add(sums, log_ratio.abs().max())


def within_reach(other: torch.Tensor, logps: torch.Tensor) -> torch.Tensor:
    """``other`` logprobs, those too far from ours moved to where ``exp`` of the difference stays finite."""
    apart = logps - other
    near = logps - apart.clamp(-FURTHEST_IN_LOSS, FURTHEST_IN_LOSS)
    return torch.where(apart.abs() > FURTHEST_IN_LOSS, near, other)


def importance_weights(log_ratio: torch.Tensor, config: TrainerConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Importance weights against the behaviour policy.

    Args:
        log_ratio: log of recomputed over behaviour probability, float32[B, C], 0 where masked.

    Returns:
        Weights, and 1 where the ratio was out of bounds: [B, C] for the token modes, [B, 1] for the sequence modes.
    """
    sequence = config.correction.startswith("sequence")
    ratio = torch.exp((log_ratio.sum(1, keepdim=True) if sequence else log_ratio).clamp(-FURTHEST, FURTHEST))
    low = config.correction_min if config.correction_min is not None else 0.0
    high = config.correction_max if config.correction_max is not None else math.inf
    outside = (ratio < low) | (ratio > high)
    weights = ratio.masked_fill(outside, 0.0) if config.correction.endswith("mask") else ratio.clamp(low, high)
    return weights, outside.to(ratio.dtype)
