"""Identity, answers, streams, refusals, the cache: what every call of the generator rests on."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any
from uuid import uuid4

from support.contract import NEW, PROMPT, Target, failed, finish, values, version
from support.engine import Client


def test_it_says_what_it_is(client: Client) -> None:
    assert client.get("/health")[0] == 200
    status, info = client.get("/model_info")
    assert status == 200
    assert info["is_generation"] is True
    assert isinstance(info["model_path"], str)
    assert isinstance(info["tokenizer_path"], str)
    assert isinstance(info["weight_version"], str)
    cards = client.get("/v1/models")[1]["data"]
    assert cards[0]["parent"] is None
    assert cards[0]["max_model_len"] > 0


def test_it_says_how_much_it_can_do(client: Client) -> None:
    (load, *_) = client.get("/v1/loads", include="core")[1]["loads"]
    for key in ("dp_rank", "num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens"):
        assert isinstance(load[key], int)
    assert 0.0 <= load["token_usage"] <= 1.0
    assert load["max_total_num_tokens"] > 0
    status, info = client.get("/server_info")
    assert status == 200
    assert info["tp_size"] >= 1
    assert "cuda_graph_max_bs_decode" in info
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] >= 1
    assert info["internal_states"][0]["memory_usage"]["token_capacity"] == load["max_total_num_tokens"]


def test_generate_answers_with_ids_and_logprobs(client: Client) -> None:
    rid = uuid4().hex
    answer = client.generate(PROMPT, rid=rid, **NEW)
    meta = answer["meta_info"]
    assert meta["id"] == rid
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["prompt_tokens"] == len(PROMPT)
    assert meta["weight_version"] == version(client)
    assert len(values(answer)) == 8
    assert isinstance(answer["text"], str)


def test_streaming_is_cumulative(client: Client) -> None:
    body = {"input_ids": PROMPT, "sampling_params": NEW, "stream": True, "return_logprob": True}
    chunks = []
    with client.http.stream("POST", "/generate", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                chunks.append(line.removeprefix("data: "))
    assert chunks.pop() == "[DONE]"
    answers = [json.loads(chunk) for chunk in chunks]
    for before, after in itertools.pairwise(answers):
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    assert finish(answers[-1]) == "length"
    assert len(values(answers[-1])) == 8


def test_bad_requests_are_400(client: Client) -> None:
    length = client.get("/v1/models")[1]["data"][0]["max_model_len"]
    body: dict[str, Any] = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": length}}
    assert str(length) in failed(*client.post("/generate", **body))
    assert "top_p" in failed(*client.post("/generate", input_ids=PROMPT, sampling_params={"top_p": 2.0}))


def test_a_version_is_a_string(client: Client, target: Target) -> None:
    before = version(client)
    for path, body in (
        ("/update_weights_from_disk", {"model_path": str(target.model), "weight_version": 7}),
        ("/update_weights_from_tensor", {"serialized_named_tensors": [""], "weight_version": 7}),
        ("/update_weight_version", {"new_version": 7}),
    ):
        status, _ = client.post(path, **body)
        assert status in (400, 422)
    assert version(client) == before


def test_renaming_the_weights_stamps_the_next_answer(client: Client) -> None:
    before, renamed = version(client), uuid4().hex
    answer = client.post("/update_weight_version", new_version=renamed, abort_all_requests=False)[1]
    assert (answer["success"], answer["new_version"]) == (True, renamed)
    assert client.generate(PROMPT, **NEW)["meta_info"]["weight_version"] == renamed
    assert client.post("/update_weight_version", new_version=before)[0] == 200
    assert version(client) == before


def test_flush_cache(client: Client) -> None:
    prompt = PROMPT * 20
    client.generate(prompt, **NEW)
    assert client.generate(prompt, **NEW)["meta_info"]["cached_tokens"] > 0
    deadline = time.monotonic() + 30
    while client.post("/flush_cache")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert client.generate(prompt, **NEW)["meta_info"]["cached_tokens"] == 0
