"""Logprobs against a fresh forward pass of transformers over the served checkpoint.

What is reported is ``log_softmax(logits / temperature)`` of the sampled token, before top-k, top-p and min-p, whose
distribution a trainer could not compute from the sample alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from support.contract import PROMPT, Target, adapter, agree, gap, score, values
from support.engine import Client

SAMPLES = 6
LENGTH = 48


@dataclass(frozen=True)
class Draw:
    """Sampling parameters that change the distribution."""

    temperature: float
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0

    @property
    def params(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p,
            "max_new_tokens": LENGTH, "ignore_eos": True,
        }  # fmt: skip


FILTERED = [
    Draw(0.7, top_p=0.9),
    Draw(1.3, top_p=0.6),
    Draw(0.6, top_p=0.5, top_k=20),
    Draw(1.5, top_p=0.95, top_k=5),
    Draw(0.8, top_p=0.7, min_p=0.1),
    Draw(1.2, top_p=0.9, top_k=40, min_p=0.2),
]


def kept(logprobs: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Mask of the tokens that the filters leave, as SGLang applies them."""
    ordered, order = logprobs.exp().sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    mask = before <= draw.top_p
    if draw.top_k > 0:
        mask &= torch.arange(ordered.shape[-1]) < draw.top_k
    mask &= ordered >= ordered[:, :1] * draw.min_p
    return torch.zeros_like(mask).scatter(-1, order, mask)


def sample(client: Client, draw: Draw, lora: str | None = None) -> list[Any]:
    with ThreadPoolExecutor(SAMPLES) as pool:
        calls = [pool.submit(client.generate, PROMPT, lora=lora, **draw.params) for _ in range(SAMPLES)]
        return [call.result() for call in calls]


@contextmanager
def policy(client: Client, target: Target, adapted: bool) -> Iterator[str | None]:
    if not adapted:
        yield None
        return
    with adapter(client, target.adapters[0]) as name:
        yield name


@pytest.mark.parametrize("adapted", [False, True], ids=["base", "adapter"])
@pytest.mark.parametrize("draw", FILTERED, ids=str)
def test_after_the_temperature_and_before_the_filters(
    client: Client, target: Target, draw: Draw, adapted: bool
) -> None:
    reference = target.reference(target.adapters[0] if adapted else None)
    found: list[float] = []
    expected: list[float] = []
    raw: list[float] = []
    filtered: list[float] = []
    with policy(client, target, adapted) as name:
        for answer in sample(client, draw, name):
            ids = answer["output_ids"]
            at = torch.arange(len(ids)), torch.tensor(ids)
            warm = reference.distributions(PROMPT, ids, draw.temperature)
            cold = reference.distributions(PROMPT, ids)
            mass = torch.where(kept(warm, draw), warm, -torch.inf).logsumexp(-1)
            found += values(answer)
            expected += warm[at].tolist()
            raw += cold[at].tolist()
            filtered += (warm[at] - mass).tolist()
    agree(found, expected, target.tolerance, draw.temperature)
    # The other conventions are farther off, so that the tolerance cannot hide one of them.
    assert gap(found, expected) < gap(found, raw) / 2, "reported before the temperature?"
    # Filters only ever raise a logprob, by the mass that they cut off; rounding raises as many as it lowers.
    raised = sum(one - other for one, other in zip(found, expected, strict=True))
    assert raised < sum(one - other for one, other in zip(filtered, expected, strict=True)) / 2, "after the filters?"


@pytest.mark.parametrize("draw", FILTERED, ids=str)
def test_the_filters_hold(client: Client, target: Target, draw: Draw) -> None:
    """No token is drawn that they leave out; where rounding may move the border, few are."""
    outside = total = 0
    for answer in sample(client, draw):
        ids = answer["output_ids"]
        mask = kept(target.reference().distributions(PROMPT, ids, draw.temperature), draw)
        outside += int((~mask[torch.arange(len(ids)), torch.tensor(ids)]).sum())
        total += len(ids)
    allowed = 0 if target.dtype == torch.float32 else total // 20
    assert outside <= allowed, f"{outside} of {total} tokens"


def test_greedy_logprobs_are_raw(client: Client, target: Target) -> None:
    answer = client.generate(PROMPT, max_new_tokens=LENGTH, temperature=0.0, ignore_eos=True)
    agree(values(answer), target.reference().logprobs(PROMPT, answer["output_ids"]), target.tolerance)
    agree(values(answer), score(client, PROMPT, answer["output_ids"]), target.tolerance)


def test_great_heat_makes_all_tokens_alike(client: Client) -> None:
    flat = values(client.generate(PROMPT, max_new_tokens=8, temperature=1000.0, top_k=2, ignore_eos=True))
    assert max(flat) < -4
    assert max(flat) - min(flat) < 0.5


def test_a_prompt_is_scored_as_the_reference_scores_it(client: Client, target: Target) -> None:
    output = client.generate(PROMPT, max_new_tokens=LENGTH, temperature=1.0, ignore_eos=True)["output_ids"]
    agree(score(client, PROMPT, output), target.reference().logprobs(PROMPT, output), target.tolerance)


def test_policies_in_one_batch_keep_their_numbers(client: Client, target: Target) -> None:
    """Different temperatures and filters beside each other, as several groups of a line are."""
    draws = [Draw(0.5, top_p=0.8), Draw(1.0), Draw(1.7, top_k=30), Draw(0.9, min_p=0.05)]
    with ThreadPoolExecutor(2 * len(draws)) as pool:
        calls = [(draw, pool.submit(client.generate, PROMPT, **draw.params)) for draw in draws * 2]
        for draw, call in calls:
            answer = call.result()
            expected = target.reference().logprobs(PROMPT, answer["output_ids"], draw.temperature)
            agree(values(answer), expected, target.tolerance, draw.temperature)
