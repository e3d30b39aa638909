"""The engine's numbers equal a fresh forward pass of transformers and PEFT, whatever the batch was."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.engine import Client, Kind, Reference, RunningEngine, make_adapter, make_model

TOLERANCE = 1e-4


def logprobs(answer: Any) -> list[float]:
    triples = answer["meta_info"]["output_token_logprobs"]
    assert [triple[1] for triple in triples] == answer["output_ids"]
    assert answer["meta_info"]["output_token_logprobs_length"] == len(triples) == len(answer["output_ids"])
    return [triple[0] for triple in triples]


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 250), k=length)


def test_mixed_batch_equals_a_fresh_forward(client: Client, references: dict[str | None, Reference]) -> None:
    """Three policies, prompts of 1 to 90 tokens, different temperatures and filters, all at once."""
    cases = []
    for number in range(24):
        lora = (None, "one", "two")[number % 3]
        params: dict[str, Any] = {"max_new_tokens": 5 + number, "temperature": (0.6, 1.0, 1.3)[number % 3]}
        params |= ({}, {"top_p": 0.8}, {"top_k": 7}, {"min_p": 0.05}, {"top_p": 0.5, "top_k": 40})[number % 5]
        cases.append((prompt_of((1, 7, 33, 90)[number % 4] + number // 8, number), lora, params))
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda case: client.generate(case[0], lora=case[1], **case[2]), cases))
    for (prompt, lora, params), answer in zip(cases, answers, strict=True):
        expected = references[lora].logprobs(prompt, answer["output_ids"], params["temperature"])
        assert logprobs(answer) == pytest.approx(expected, abs=TOLERANCE)


def test_a_group_shares_its_prompt(client: Client, references: dict[str | None, Reference]) -> None:
    prompt = prompt_of(70, 100)
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: client.generate(prompt, lora="one", max_new_tokens=12, temperature=1.2), range(8))
        )
    cached = sorted(answer["meta_info"]["cached_tokens"] for answer in answers)
    assert cached[0] == 0
    assert cached[1:] == [69] * 7
    assert len({tuple(answer["output_ids"]) for answer in answers}) > 1
    for answer in answers:
        expected = references["one"].logprobs(prompt, answer["output_ids"], 1.2)
        assert logprobs(answer) == pytest.approx(expected, abs=TOLERANCE)


def test_chunks_join_to_one_sample(client: Client, references: dict[str | None, Reference]) -> None:
    """Prompt plus partial, sent again, goes on from the kept prefix with the same numbers."""
    prompt, output, found = prompt_of(40, 200), [], []
    for chunk in range(4):
        answer = client.generate([*prompt, *output], lora="two", max_new_tokens=9, temperature=0.7, ignore_eos=True)
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 9}
        if chunk:
            assert answer["meta_info"]["cached_tokens"] == len(prompt) + len(output) - 1
        output += answer["output_ids"]
        found += logprobs(answer)
    assert found == pytest.approx(references["two"].logprobs(prompt, output, 0.7), abs=TOLERANCE)


def test_prefixes_do_not_cross_adapters(client: Client, references: dict[str | None, Reference]) -> None:
    prompt = prompt_of(50, 300)
    for lora in (None, "one", "two", None):
        answer = client.generate(prompt, lora=lora, max_new_tokens=6, temperature=0.9)
        expected = references[lora].logprobs(prompt, answer["output_ids"], 0.9)
        assert logprobs(answer) == pytest.approx(expected, abs=TOLERANCE)


def test_greedy_is_the_likeliest_with_raw_logprobs(client: Client, references: dict[str | None, Reference]) -> None:
    prompt = prompt_of(20, 400)
    answer = client.generate(prompt, lora="one", max_new_tokens=10, temperature=0, ignore_eos=True)
    assert answer["output_ids"] == references["one"].greedy(prompt, 10)
    expected = references["one"].logprobs(prompt, answer["output_ids"])
    assert logprobs(answer) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("start", [0, 13])
def test_prompt_logprobs(client: Client, references: dict[str | None, Reference], start: int) -> None:
    prompt = prompt_of(40, 500)
    params = {"max_new_tokens": 0}
    body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True, "lora_path": "two"}
    status, answer = client.post("/generate", logprob_start_len=start, **body)
    assert status == 200, answer
    triples = answer["meta_info"]["input_token_logprobs"]
    assert [triple[1] for triple in triples] == prompt[start:]
    assert triples[0][0] is None
    expected = references["two"].logprobs(prompt[: start + 1], prompt[start + 1 :])
    assert [triple[0] for triple in triples[1:]] == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_architectures(tmp_path: Path, kind: Kind) -> None:
    """Untied head and scaled rotary positions; per-head norms and a head size of its own. Prompts in chunks."""
    model = make_model(tmp_path / "model", kind, seed=3)
    adapter = make_adapter(model, tmp_path / "adapter", seed=4)
    prompts = [prompt_of(length, length) for length in (150, 3, 60)]
    with RunningEngine(model, max_prefill_tokens=32) as engine:
        client = Client(engine.url)
        client.post("/load_lora_adapter", lora_name="a", lora_path=str(adapter))
        for lora, path in ((None, None), ("a", adapter)):
            reference = Reference(model, path)
            with ThreadPoolExecutor(3) as pool:
                answers = list(
                    pool.map(lambda p: client.generate(p, lora=lora, max_new_tokens=8, temperature=1.1), prompts)  # noqa: B023
                )
            for prompt, answer in zip(prompts, answers, strict=True):
                expected = reference.logprobs(prompt, answer["output_ids"], 1.1)
                assert logprobs(answer) == pytest.approx(expected, abs=TOLERANCE)
        client.http.close()
