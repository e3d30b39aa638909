"""Requests and answers: finish reasons, stops, streams, and refusals by name."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.engine import EOS, VOCAB, Client, RunningEngine

PROMPT = list(b"what is two and two?")


def params_of(**extra: Any) -> dict[str, Any]:
    return {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 4, **extra}}


def test_answer_has_sglangs_shape(client: Client) -> None:
    answer = client.generate(PROMPT, lora="one", rid="a-rid", max_new_tokens=3, temperature=1.0, ignore_eos=True)
    meta = answer["meta_info"]
    assert meta["id"] == "a-rid"
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(PROMPT), 3)
    assert meta["weight_version"] == "default"
    assert meta["lora_path"] == "one"
    assert meta["e2e_latency"] > 0
    assert isinstance(answer["text"], str)
    assert len(answer["output_ids"]) == 3


def test_without_logprobs_none_are_sent(client: Client) -> None:
    _, answer = client.post("/generate", **params_of())
    assert "output_token_logprobs" not in answer["meta_info"]


def test_stop_token_is_kept_in_ids_and_cut_from_text(client: Client) -> None:
    first = client.generate(PROMPT, max_new_tokens=12, temperature=0, ignore_eos=True)["output_ids"]
    stop = first[5]
    at = first.index(stop)
    answer = client.generate(PROMPT, max_new_tokens=12, temperature=0, stop_token_ids=[stop])
    assert answer["output_ids"] == first[: at + 1]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    whole = client.generate(PROMPT, max_new_tokens=12, temperature=0, stop_token_ids=[stop], no_stop_trim=True)
    assert whole["text"].startswith(answer["text"])
    ignored = client.generate(PROMPT, max_new_tokens=12, temperature=0, stop_token_ids=[stop], ignore_eos=True)
    assert ignored["output_ids"] == first


def test_the_models_own_end_token_stops(client: Client) -> None:
    """Sampled long enough, a random model ends by itself, and never beyond the end token."""
    params = {"max_new_tokens": 200, "temperature": 3.0}
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda seed: client.generate(PROMPT, sampling_seed=seed, **params), range(6)))
    ends = [answer["meta_info"]["finish_reason"]["type"] for answer in answers]
    for answer, end in zip(answers, ends, strict=True):
        ids = answer["output_ids"]
        assert EOS not in ids[:-1]
        assert (ids[-1] == EOS) == (end == "stop")
    assert "stop" in ends


def test_stop_string(client: Client) -> None:
    full = client.generate(PROMPT, max_new_tokens=30, temperature=1.5, sampling_seed=3, ignore_eos=True)
    text = full["text"]
    wanted = next(c for c in text[2:] if c.isascii() and c.isprintable())
    answer = client.generate(PROMPT, max_new_tokens=30, temperature=1.5, sampling_seed=3, ignore_eos=True, stop=wanted)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": wanted}
    assert answer["text"] == text[: text.index(wanted)]
    assert answer["output_ids"] == full["output_ids"][: len(answer["output_ids"])]


def test_min_new_tokens_holds_stops_back(client: Client) -> None:
    first = client.generate(PROMPT, max_new_tokens=8, temperature=0, ignore_eos=True)["output_ids"]
    answer = client.generate(PROMPT, max_new_tokens=8, min_new_tokens=5, temperature=0, stop_token_ids=[first[0]])
    assert len(answer["output_ids"]) >= 5
    assert first[0] not in answer["output_ids"][:5]


def test_seeds_fix_the_sample_across_chunks(client: Client) -> None:
    whole = client.generate(PROMPT, max_new_tokens=12, temperature=1.0, sampling_seed=11, ignore_eos=True)
    again = client.generate(PROMPT, max_new_tokens=12, temperature=1.0, sampling_seed=11, ignore_eos=True)
    other = client.generate(PROMPT, max_new_tokens=12, temperature=1.0, sampling_seed=12, ignore_eos=True)
    head = client.generate(PROMPT, max_new_tokens=5, temperature=1.0, sampling_seed=11, ignore_eos=True)["output_ids"]
    tail = client.generate([*PROMPT, *head], max_new_tokens=7, temperature=1.0, sampling_seed=11, ignore_eos=True)
    assert whole["output_ids"] == again["output_ids"] == head + tail["output_ids"]
    assert other["output_ids"] != whole["output_ids"]


def test_text_prompt_and_token_texts(client: Client) -> None:
    status, answer = client.post(
        "/generate",
        text="hi",
        sampling_params={"max_new_tokens": 2, "ignore_eos": True},
        return_logprob=True,
        logprob_start_len=0,
        return_text_in_logprobs=True,
        return_prompt_token_ids=True,
    )
    assert status == 200
    assert [triple[2] for triple in answer["meta_info"]["input_token_logprobs"]] == ["h", "i"]
    assert len(answer["prompt_token_ids"]) == 2


def test_stream_is_cumulative(client: Client) -> None:
    body = {**params_of(ignore_eos=True, max_new_tokens=9), "stream": True, "return_logprob": True}
    seen: list[Any] = []
    with client.http.stream("POST", "/generate", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line:
                seen.append(line.removeprefix("data: "))
    assert seen.pop() == "[DONE]"
    answers = [json.loads(item) for item in seen]
    assert answers[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 9}
    for before, after in itertools.pairwise(answers):
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert len(after["meta_info"]["output_token_logprobs"]) == len(after["output_ids"])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"input_ids": PROMPT, "sampling_params": {"temprature": 1.0}}, "temprature"),
        ({"input_ids": PROMPT, "samplingparams": {}}, "samplingparams"),
        ({"input_ids": PROMPT, "sampling_params": {"n": 4}}, "n must be 1"),
        ({"input_ids": PROMPT, "sampling_params": {"repetition_penalty": 1.1}}, "repetition_penalty"),
        ({"input_ids": PROMPT, "sampling_params": {"frequency_penalty": 0.5}}, "frequency_penalty"),
        ({"input_ids": PROMPT, "sampling_params": {"json_schema": "{}"}}, "json_schema"),
        ({"input_ids": PROMPT, "sampling_params": {"logit_bias": {"3": 1.0}}}, "logit_bias"),
        ({"input_ids": PROMPT, "sampling_params": {"temperature": -1}}, "temperature"),
        ({"input_ids": PROMPT, "sampling_params": {"top_p": 0}}, "top_p"),
        ({"input_ids": PROMPT, "sampling_params": {"top_k": 0}}, "top_k"),
        ({"input_ids": PROMPT, "sampling_params": {"max_new_tokens": "5"}}, "max_new_tokens"),
        ({"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3, "min_new_tokens": 4}}, "min_new_tokens"),
        ({"input_ids": PROMPT, "sampling_params": {"stop_token_ids": [VOCAB]}}, "stop_token_ids"),
        ({"input_ids": PROMPT, "top_logprobs_num": 3}, "top_logprobs_num"),
        ({"input_ids": PROMPT, "return_hidden_states": True}, "return_hidden_states"),
        ({"input_ids": PROMPT, "logprob_start_len": 99, "return_logprob": True}, "logprob_start_len"),
        ({"input_ids": PROMPT, "lora_path": "nobody"}, "nobody"),
        ({"input_ids": [3, VOCAB]}, "vocabulary"),
        ({"input_ids": [3, -1]}, "vocabulary"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": PROMPT, "text": "both"}, "not both"),
        ({}, "text or input_ids"),
        ({"input_ids": PROMPT * 20, "sampling_params": {"max_new_tokens": 500}}, "context length of 512"),
        ({"input_ids": PROMPT * 30}, "longer than the model's context length"),
        ({"input_ids": [PROMPT, PROMPT]}, "input_ids"),
    ],
)
def test_refusals_name_the_reason(client: Client, body: dict[str, Any], named: str) -> None:
    status, answer = client.post("/generate", **body)
    assert status == 400
    message = answer["error"]["message"] if "error" in answer else answer["message"]
    assert named in message


def test_exactly_the_context_length_fits(client: Client) -> None:
    answer = client.generate([5] * 500, max_new_tokens=12, temperature=1.0, ignore_eos=True)
    assert len(answer["output_ids"]) == 12
    answer = client.generate([5] * 509, max_new_tokens=None, temperature=1.0, ignore_eos=True)
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


def test_status_pages(client: Client, engine: RunningEngine) -> None:
    assert client.get("/health")[0] == 200
    assert client.get("/health_generate")[0] == 200
    status, info = client.get("/model_info")
    assert status == 200
    assert info == client.get("/get_model_info")[1]
    assert info["is_generation"] is True
    assert info["model_path"] == engine.server.engine.config.model_path == info["tokenizer_path"]
    _, loads = client.get("/v1/loads", include="core,lora")
    (load,) = loads["loads"]
    assert load["num_running_reqs"] == 0
    assert load["lora"]["slots_used"] == 2
    assert "memory" not in load
    assert client.get("/v1/loads", include="nonsense")[0] == 400
    _, listed = client.get("/v1/models")
    assert {card["id"]: card["parent"] for card in listed["data"]} == {
        info["model_path"]: None,
        "one": info["model_path"],
        "two": info["model_path"],
    }
    _, server = client.get("/server_info")
    assert server["dtype"] == "float32"
    _, metrics = client.get("/metrics")
    for name in (
        "num_running_reqs",
        "prompt_tokens_total",
        "generation_tokens_total",
        "e2e_request_latency_seconds_sum",
    ):
        assert f"sglang:{name}{{" in metrics
