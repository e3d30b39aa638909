"""Reuse of prefixes: what is copied is what was computed, and never another adapter's."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embedded_engine.model.kv_cache import GRAIN, KVCache
from embedded_engine.model.sampling import Draw
from embedded_engine.model.spec import ModelSpec
from embedded_engine.prefix_cache import BLOCK, PrefixCache
from embedded_engine.request import Generation, SamplingPlan

SPEC = ModelSpec(
    path=Path(),
    architecture="LlamaForCausalLM",
    model_type="llama",
    vocab_size=10,
    hidden_size=4,
    intermediate_size=4,
    layers=2,
    heads=2,
    kv_heads=2,
    head_dim=1,
    rms_eps=1e-6,
    tied=True,
    context_length=256,
    inverse_frequencies=(1.0,),
    eos_token_ids=frozenset(),
)
PLAN = SamplingPlan(draw=Draw(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0), max_new_tokens=1)


class Uid:
    """Stands for an adapter where only its identity matters."""

    def __init__(self, uid: int) -> None:
        self.uid = uid


def request(tokens: list[int], uid: int, slot: int) -> Generation:
    made = Generation(
        rid="r",
        prompt_ids=tokens,
        plan=PLAN,
        adapter=Uid(uid) if uid else None,
        notify=lambda _: None,  # type: ignore[arg-type]
    )
    made.slot = slot
    return made


def compute(cache: KVCache, made: Generation) -> None:
    """Fill the slot with numbers that tell token, position and adapter apart, as a model would."""
    for layer in range(SPEC.layers):
        for position in range(made.computed, len(made.tokens)):
            number = made.adapter_uid * 1e6 + layer * 1e4 + position * 20 + made.tokens[position]
            rows = slice(made.slot * SPEC.kv_heads, (made.slot + 1) * SPEC.kv_heads)
            cache.keys[layer][rows, position] = number
            cache.values[layer][rows, position] = -number
    made.computed = len(made.tokens)


prompts = st.lists(
    st.tuples(
        st.integers(0, 2),  # adapter
        st.lists(st.integers(0, 1), min_size=1, max_size=5 * BLOCK),
        st.booleans(),  # ends at once
        st.integers(0, 6 * BLOCK),  # limit
    ),
    min_size=1,
    max_size=14,
)


@settings(deadline=None, max_examples=120)
@given(prompts, st.sampled_from([0, 40, 200]))
def test_a_reused_prefix_is_the_computed_one(cases: list[tuple[int, list[int], bool, int]], budget: int) -> None:
    cache = KVCache(SPEC, torch.float32, torch.device("cpu"), max_slots=16, max_tokens=4096)
    cache.ensure(16, 128)
    prefixes = PrefixCache(cache, budget)
    seen: list[tuple[int, list[int]]] = []
    for slot, (uid, tokens, ends, limit) in enumerate(cases):
        made = request(tokens, uid, slot)
        made.computed = prefixes.fill(made, min(limit, len(tokens)))
        assert made.computed <= limit
        if made.computed:
            assert any(uid == u and tokens[: made.computed] == t[: made.computed] for u, t in seen)
        compute(cache, made)
        fresh = request(tokens, uid, 15)
        compute(cache, fresh)
        for layer in range(SPEC.layers):
            kept = cache.keys[layer].view(16, 2, -1)[slot, :, : len(tokens)]
            assert torch.equal(kept, cache.keys[layer].view(16, 2, -1)[15, :, : len(tokens)])
        prefixes.add_running(made)
        seen.append((uid, tokens))
        if ends:
            prefixes.remove_running(made, len(tokens))
            cache.clear(slot)
        assert prefixes.stored_tokens <= budget


def test_clear_and_forget_leave_nothing() -> None:
    cache = KVCache(SPEC, torch.float32, torch.device("cpu"), max_slots=4, max_tokens=4096)
    cache.ensure(4, 64)
    prefixes = PrefixCache(cache, 100)
    for slot, uid in enumerate((1, 2)):
        made = request(list(range(BLOCK)) * 2, uid, slot)
        compute(cache, made)
        prefixes.add_running(made)
        prefixes.remove_running(made, 2 * BLOCK)
    assert prefixes.stored_tokens == 4 * BLOCK
    prefixes.forget_adapter(1)
    assert prefixes.stored_tokens == 2 * BLOCK
    assert prefixes.fill(request(list(range(BLOCK)) * 2, 1, 3), 99) == 0
    assert prefixes.fill(request(list(range(BLOCK)) * 2, 2, 3), 99) == 2 * BLOCK
    prefixes.clear()
    assert prefixes.stored_tokens == 0
    assert prefixes.fill(request(list(range(BLOCK)) * 2, 2, 3), 99) == 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 256)), min_size=1, max_size=12))
def test_allocation_follows_the_requests(loads: list[tuple[int, int]]) -> None:
    """Loads that fit the budget (up to rounding) never make the cache larger than it, whatever came before."""
    cache = KVCache(SPEC, torch.float32, torch.device("cpu"), max_slots=8, max_tokens=512)
    for slots, wanted in loads:
        length = max(1, min(wanted, 512 // slots // GRAIN * GRAIN))
        cache.reserve(slots, length)
        cache.ensure(slots, length)
        assert cache.slots >= slots
        assert cache.capacity >= length
        if slots * GRAIN <= 512:
            assert cache.slots * cache.capacity <= 1024  # the smallest allocation is 4 x 256
        for layer in range(SPEC.layers):
            assert cache.keys[layer].shape == (cache.slots * SPEC.kv_heads, cache.capacity, SPEC.head_dim)


def test_growing_and_shrinking_keep_what_matters() -> None:
    cache = KVCache(SPEC, torch.float32, torch.device("cpu"), max_slots=8, max_tokens=4096)
    cache.keys[1][3, 5] = 7.0
    cache.ensure(8, 250)
    assert cache.slots == 8
    assert cache.capacity >= 250
    assert cache.keys[1][3, 5] == 7.0
    cache.shrink()
    assert cache.slots == 4
    assert float(cache.keys[1].abs().sum()) == 0.0
