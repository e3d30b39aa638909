"""Chunked sampling: prompt and partial are sent again, and the chunks join to one sample."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from support.contract import PROMPT, Target, agree, finish, score, start, values
from support.engine import Client

LONG_PROMPT = PROMPT * 20
SLACK = 16
"""Tokens at the end of a known prefix that may be computed again: caches keep whole blocks."""


def chunked(client: Client, prompt: list[int], count: int, size: int, **params: float) -> tuple[list[int], list[float]]:
    """Ids and logprobs of ``count`` chunks; asserts that each but the first finds its prefix in the cache."""
    ids: list[int] = []
    logprobs: list[float] = []
    for number in range(count):
        answer = client.generate([*prompt, *ids], max_new_tokens=size, ignore_eos=True, **params)
        known = len(prompt) + len(ids)
        if number:
            assert known - SLACK <= answer["meta_info"]["cached_tokens"] < known
        assert answer["meta_info"]["prompt_tokens"] == known
        ids += answer["output_ids"]
        logprobs += values(answer)
    return ids, logprobs


def test_a_second_turn_reuses_the_prefix(client: Client) -> None:
    first = client.generate(LONG_PROMPT, max_new_tokens=8, temperature=1.0, ignore_eos=True)
    again = client.generate(LONG_PROMPT + first["output_ids"] + PROMPT, max_new_tokens=8, temperature=1.0)
    assert again["meta_info"]["cached_tokens"] >= len(LONG_PROMPT) - SLACK


def test_greedy_chunks_have_the_logprobs_of_one_pass(client: Client, target: Target) -> None:
    ids, logprobs = chunked(client, LONG_PROMPT, 4, 16, temperature=0.0)
    agree(logprobs, score(client, LONG_PROMPT, ids), target.tolerance)
    agree(logprobs, target.reference().logprobs(LONG_PROMPT, ids), target.tolerance)


@pytest.mark.parametrize("temperature", [0.7, 1.4])
def test_sampled_chunks_have_the_logprobs_of_one_pass(client: Client, target: Target, temperature: float) -> None:
    ids, logprobs = chunked(client, LONG_PROMPT, 4, 16, temperature=temperature, top_p=0.9)
    expected = target.reference().logprobs(LONG_PROMPT, ids, temperature)
    agree(logprobs, expected, target.tolerance, temperature)


def test_greedy_chunks_are_the_text_of_one_request(client: Client, target: Target) -> None:
    """Where a likeliest token is not tied with the next by rounding: until then the ids are the same."""
    whole = client.generate(LONG_PROMPT, max_new_tokens=48, temperature=0.0, ignore_eos=True)["output_ids"]
    ids, _ = chunked(client, LONG_PROMPT, 3, 16, temperature=0.0)
    same = next((at for at, (one, other) in enumerate(zip(whole, ids, strict=True)) if one != other), len(whole))
    if same < len(whole):
        best = target.reference().distributions(LONG_PROMPT, ids[: same + 1])[-1]
        apart = abs(float(best[whole[same]] - best[ids[same]]))
        assert apart <= target.tolerance.p99, f"token {same} differs, and not by rounding ({apart:.3f})"


def test_an_aborted_request_goes_on_where_it_was(client: Client, target: Target) -> None:
    rid = uuid4().hex
    with ThreadPoolExecutor(1) as pool:
        call = start(client, pool, rid, max_new_tokens=3000)
        client.post("/abort_request", rid=rid)
        partial = call.result()
    assert finish(partial) == "abort"
    ids = partial["output_ids"]
    assert ids
    rest = client.generate([*PROMPT, *ids], max_new_tokens=16, temperature=1.0, ignore_eos=True)
    known = len(PROMPT) + len(ids)
    assert known - SLACK <= rest["meta_info"]["cached_tokens"] < known
    found = values(partial) + values(rest)
    agree(found, score(client, PROMPT, ids + rest["output_ids"]), target.tolerance)
