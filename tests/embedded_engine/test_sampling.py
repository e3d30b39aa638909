"""Drawing: log-probabilities before filters, filters as SGLang's, exact frequencies, seeded draws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embedded_engine.model import sampling
from embedded_engine.model.sampling import BatchSampler, Draw, seeded_uniform

CPU = torch.device("cpu")


def draw(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Draw:
    return Draw(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


def allowed(logits: torch.Tensor, one: Draw) -> set[int]:
    """Ids that SGLang's sampler leaves, written the plain way."""
    probabilities = torch.softmax(logits.double() / (one.temperature or 1.0), -1)
    best, order = probabilities.sort(descending=True, stable=True)
    kept, total = set(), 0.0
    for rank, (value, token) in enumerate(zip(best.tolist(), order.tolist(), strict=True)):
        within = total <= one.top_p and (one.top_k == 0 or rank < one.top_k) and value >= best[0].item() * one.min_p
        if within:
            kept.add(token)
        total += value
    return kept


draws = st.builds(
    draw,
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 1000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.7]),
)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    batch=st.lists(draws, min_size=1, max_size=5),
    vocabulary=st.sampled_from([2, 30, 700]),
    uniform=st.sampled_from([0.0, 0.25, 0.5, 0.99, math.nextafter(1.0, 0.0)]),
)
def test_draws_are_allowed_and_logprobs_unfiltered(
    seed: int, batch: list[Draw], vocabulary: int, uniform: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(batch), vocabulary, generator=generator) * 4
    result = BatchSampler(batch, CPU).sample(logits.clone(), [uniform] * len(batch), [])
    for row, one in enumerate(batch):
        assert result.finite[row]
        assert result.ids[row] in allowed(logits[row], one)
        expected = torch.log_softmax(logits[row] / (one.temperature or 1.0), -1)[result.ids[row]].item()
        assert result.logprobs[row] == pytest.approx(expected, abs=1e-5)


def test_frequencies_are_the_probabilities() -> None:
    """A grid of uniforms hits every token in proportion, so nothing is biased."""
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, float("-inf")]])
    probabilities = torch.softmax(logits[0], -1)
    count = 2000
    sampler = BatchSampler([draw()], CPU)
    hits = torch.zeros(5)
    for step in range(count):
        hits[sampler.sample(logits.clone(), [(step + 0.5) / count], []).ids[0]] += 1
    assert hits[4] == 0
    assert torch.allclose(hits / count, probabilities, atol=2 / count)


def test_greedy_reports_the_raw_logprob() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    result = BatchSampler([draw(temperature=0.0)], CPU).sample(logits.clone(), [0.9], [])
    assert result.ids == [1]
    assert result.logprobs[0] == pytest.approx(torch.log_softmax(logits, -1)[0, 1].item())


def test_banned_tokens_leave_the_distribution() -> None:
    logits = torch.tensor([[5.0, 1.0, 1.0]])
    result = BatchSampler([draw()], CPU).sample(logits, [0.1], [(0, [0])])
    assert result.ids == [1]
    assert result.logprobs[0] == pytest.approx(math.log(0.5))


def test_a_row_that_is_not_finite_is_flagged_alone() -> None:
    logits = torch.zeros(2, 4)
    logits[0, 2] = float("nan")
    result = BatchSampler([draw(), draw()], CPU).sample(logits, [0.5, 0.5], [])
    assert result.finite == [False, True]


def test_top_p_looks_beyond_its_first_candidates() -> None:
    """A flat distribution needs more tokens than the fast path sorts."""
    logits = torch.zeros(1, 4 * sampling.TOP_P_CANDIDATES)
    sampler = BatchSampler([draw(top_p=0.9)], CPU)
    ids = {sampler.sample(logits.clone(), [step / 500], []).ids[0] for step in range(500)}
    assert len(ids) > 1.5 * sampling.TOP_P_CANDIDATES


@given(st.integers(-(2**63), 2**63), st.integers(0, 2**20))
def test_seeded_uniform_is_a_function_in_range(seed: int, position: int) -> None:
    value = seeded_uniform(seed, position)
    assert 0.0 <= value < 1.0
    assert value == seeded_uniform(seed, position)


def test_seeded_uniforms_are_spread() -> None:
    values = sorted(seeded_uniform(seed, position) for seed in range(40) for position in range(50))
    worst = max(abs(value - (rank + 0.5) / len(values)) for rank, value in enumerate(values))
    assert worst < 0.04
