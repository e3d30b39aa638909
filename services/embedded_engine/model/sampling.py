"""Sampling and its log-probabilities.

The log-probability of a token is log_softmax(logits / temperature), before top-k, top-p and min-p; for
greedy requests (temperature 0) it is log_softmax(logits). Both as SGLang has it. Draws are by inverse
transform: one uniform number a token, so a seeded request draws the same numbers whatever batch it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

TOP_P_CANDIDATES = 256
"""Candidates sorted first for top-p; the whole vocabulary is sorted only where these do not reach it."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How one request draws its next token."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @property
    def greedy(self) -> bool:
        """Take the likeliest token."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def filtered(self) -> bool:
        """Some tokens are excluded before drawing."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


@dataclass(frozen=True)
class Sampled:
    """Per request: token id, its log-probability, and whether the logits were finite."""

    ids: list[int]
    logprobs: list[float]
    finite: list[bool]


class BatchSampler:
    """Sampling for a fixed list of requests; build anew when the batch changes."""

    def __init__(self, draws: Sequence[Draw], device: torch.device) -> None:
        self._draws = tuple(draws)
        scale = [1.0 if draw.temperature == 0.0 else draw.temperature for draw in draws]
        self._temperature = torch.tensor(scale, device=device)[:, None]
        self._unscaled = all(value == 1.0 for value in scale)
        self._greedy = [index for index, draw in enumerate(draws) if draw.greedy]
        self._filtered = [index for index, draw in enumerate(draws) if draw.filtered and not draw.greedy]

    def sample(
        self, logits: torch.Tensor, uniforms: Sequence[float], banned: Sequence[tuple[int, list[int]]]
    ) -> Sampled:
        """Draw one token for each request.

        Args:
            logits: float32 [requests, vocabulary].
            uniforms: a number in [0, 1) for each request; greedy ones ignore theirs.
            banned: (request, token ids) that must not be drawn; they leave the distribution altogether.
        """
        for row, ids in banned:
            logits[row, ids] = float("-inf")
        scaled = logits if self._unscaled else logits / self._temperature
        logprobs = torch.log_softmax(scaled, dim=-1)
        ids = self._invert(logprobs.exp(), torch.tensor(uniforms, dtype=torch.float64, device=logits.device))
        if self._greedy:
            ids[self._greedy] = logits[self._greedy].argmax(dim=-1)
        if self._filtered:
            ids[self._filtered] = self._draw_filtered(logprobs[self._filtered].exp(), uniforms)
        chosen = logprobs.gather(1, ids[:, None])[:, 0]
        values = chosen.tolist()
        return Sampled(ids.tolist(), values, [value - value == 0.0 for value in values])

    @staticmethod
    def _invert(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """Index of the first cumulated probability above uniform x total: never one of probability zero."""
        cumulated = probabilities.cumsum(dim=-1, dtype=torch.float64)
        wanted = uniforms[:, None] * cumulated[:, -1:]
        return torch.searchsorted(cumulated, wanted, right=True)[:, 0].clamp_(max=probabilities.shape[-1] - 1)

    def _draw_filtered(self, probabilities: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
        """Draws of the requests with top-k, top-p or min-p; [their number, vocabulary] to ids."""
        draws = [self._draws[index] for index in self._filtered]
        device = probabilities.device
        vocabulary = probabilities.shape[-1]
        wanted = torch.tensor([uniforms[index] for index in self._filtered], dtype=torch.float64, device=device)
        top_p = torch.tensor([draw.top_p for draw in draws], device=device)[:, None]
        min_p = torch.tensor([draw.min_p for draw in draws], device=device)[:, None]
        limits = [draw.top_k if draw.top_k > 0 else vocabulary for draw in draws]
        top_k = torch.tensor(limits, device=device)[:, None]
        count = min(vocabulary, TOP_P_CANDIDATES)
        best, order = probabilities.topk(count, dim=-1)
        enough = (best.sum(dim=-1, keepdim=True) >= top_p) & (top_p < 1.0)
        enough |= top_k <= count
        enough |= best[:, -1:] < best[:, :1] * min_p
        if count < vocabulary and not bool(enough.all()):
            best, order = probabilities.sort(dim=-1, descending=True)
        before = best.cumsum(dim=-1, dtype=torch.float64) - best
        excluded = before > top_p
        excluded |= torch.arange(best.shape[-1], device=device)[None] >= top_k
        excluded |= best < best[:, :1] * min_p
        kept = best.masked_fill(excluded, 0.0)
        return order.gather(1, self._invert(kept, wanted)[:, None])[:, 0]


def seeded_uniform(seed: int, position: int) -> float:
    """Uniform number in [0, 1) of a seed and a position in the sequence (splitmix64 of both)."""
    mask = (1 << 64) - 1
    value = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = ((value ^ (value >> shift)) * factor) & mask
    return ((value ^ (value >> 31)) >> 11) / float(1 << 53)
