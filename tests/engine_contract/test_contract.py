"""What the generator and the weight delivery rely on, true of every engine that speaks SGLang's API.

Only behaviour that SGLang documents or its source shows is asserted, and nothing that depends on the model:
prompts are a handful of token ids that every vocabulary has.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from support.engine import Client, Target

PROMPT = [11, 42, 7, 99, 23, 54, 76, 31, 12, 88, 63, 17]
NEW = {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True}
LONG = {**NEW, "max_new_tokens": 1500}
CLOSE = 0.1
"""Mean difference of log-probabilities that bfloat16 explains: kernels change with the size of the batch."""


def values(answer: Any) -> list[float]:
    """Log-probabilities of an answer, after the checks that the generator makes of every one."""
    meta, ids = answer["meta_info"], answer["output_ids"]
    triples = meta["output_token_logprobs"]
    assert [triple[1] for triple in triples] == ids
    assert meta["completion_tokens"] == len(ids)
    assert all(triple[0] <= 1e-3 for triple in triples)
    return [triple[0] for triple in triples]


def score(client: Client, output: list[int], lora: str | None = None) -> list[float]:
    """Raw log-probabilities of tokens after the prompt, computed in one pass over all of them."""
    body: dict[str, Any] = {"input_ids": PROMPT + output, "sampling_params": {"max_new_tokens": 0}}
    if lora is not None:
        body["lora_path"] = lora
    status, scored = client.post("/generate", return_logprob=True, logprob_start_len=len(PROMPT) - 1, **body)
    assert status == 200, scored
    triples = scored["meta_info"]["input_token_logprobs"]
    assert triples[0][0] is None
    assert [triple[1] for triple in triples[1:]] == output
    return [triple[0] for triple in triples[1:]]


def gap(one: list[float], other: list[float]) -> float:
    """Mean difference."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


def failed(status: int, answer: Any) -> str:
    """Message of a refusal, whichever of SGLang's shapes it has."""
    assert 400 <= status < 500, answer
    if isinstance(answer, dict):
        for key in ("error_message", "message", "detail"):
            if answer.get(key):
                return str(answer[key])
        if isinstance(answer.get("error"), dict):
            return str(answer["error"]["message"])
    return str(answer)


@contextmanager
def adapter(client: Client, path: str) -> Iterator[str]:
    """An adapter under a fresh name, unloaded afterwards."""
    name = f"contract-{uuid4().hex}"
    status, answer = client.post("/load_lora_adapter", lora_name=name, lora_path=path)
    assert (status, answer["success"]) == (200, True), answer
    assert name in answer["loaded_adapters"]
    try:
        yield name
    finally:
        client.post("/unload_lora_adapter", lora_name=name)


def need(target: Target, adapters: int = 0, checkpoint: bool = False) -> None:
    if len(target.adapters) < adapters:
        pytest.skip("set GRISTMILL_ENGINE_ADAPTERS")
    if checkpoint and not target.checkpoint:
        pytest.skip("set GRISTMILL_ENGINE_CHECKPOINT")


def running(client: Client) -> int:
    loads = client.get("/v1/loads", include="core")[1]["loads"]
    return sum(load["num_running_reqs"] for load in loads)


def start(client: Client, pool: ThreadPoolExecutor, rid: str, **extra: Any) -> Any:
    future = pool.submit(client.generate, PROMPT, rid=rid, **{**LONG, **extra})
    deadline = time.monotonic() + 30
    while not running(client) and not future.done() and time.monotonic() < deadline:
        time.sleep(0.02)
    return future


def test_it_says_what_it_is(client: Client) -> None:
    assert client.get("/health")[0] == 200
    status, info = client.get("/model_info")
    assert status == 200
    assert info["is_generation"] is True
    assert isinstance(info["model_path"], str)
    assert isinstance(info["tokenizer_path"], str)
    assert isinstance(info["weight_version"], str)
    (load, *_) = client.get("/v1/loads", include="core")[1]["loads"]
    for key in ("dp_rank", "num_running_reqs", "num_waiting_reqs", "num_used_tokens", "token_usage"):
        assert key in load
    assert client.get("/server_info")[0] == 200
    cards = client.get("/v1/models")[1]["data"]
    assert cards[0]["parent"] is None
    assert cards[0]["max_model_len"] > 0


def test_generate_answers_with_ids_and_logprobs(client: Client) -> None:
    rid = uuid4().hex
    answer = client.generate(PROMPT, rid=rid, **NEW)
    meta = answer["meta_info"]
    assert meta["id"] == rid
    assert meta["finish_reason"]["type"] == "length"
    assert meta["finish_reason"]["length"] == 8
    assert meta["prompt_tokens"] == len(PROMPT)
    assert meta["weight_version"] == client.get("/model_info")[1]["weight_version"]
    assert len(values(answer)) == 8
    assert isinstance(answer["text"], str)


def test_stop_token_is_part_of_the_ids(client: Client) -> None:
    greedy = {"max_new_tokens": 8, "temperature": 0.0}
    ids = client.generate(PROMPT, ignore_eos=True, **greedy)["output_ids"]
    stop = ids[2]
    answer = client.generate(PROMPT, stop_token_ids=[stop], **greedy)
    assert answer["output_ids"] == ids[: ids.index(stop) + 1]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_logprobs_are_after_temperature_and_before_filters(client: Client) -> None:
    """Greedy answers report raw log-probabilities; great heat makes all of them that of one token out of many."""
    answer = client.generate(PROMPT, **{**NEW, "temperature": 0.0})
    assert gap(values(answer), score(client, answer["output_ids"])) < CLOSE
    flat = values(client.generate(PROMPT, **{**NEW, "temperature": 1000.0, "top_k": 2}))
    assert max(flat) < -4
    assert max(flat) - min(flat) < 0.5


def test_many_at_once_keep_their_rids(client: Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        futures = {
            rid: pool.submit(client.generate, PROMPT, rid=rid, **NEW) for rid in (uuid4().hex for _ in range(16))
        }
        for rid, future in futures.items():
            answer = future.result(60)
            assert answer["meta_info"]["id"] == rid
            assert len(values(answer)) == 8


def test_a_second_turn_reuses_the_prefix(client: Client) -> None:
    prompt = PROMPT * 20
    first = client.generate(prompt, **NEW)
    again = client.generate(prompt + first["output_ids"], **NEW)
    assert again["meta_info"]["cached_tokens"] >= len(prompt) // 2


def test_streaming_is_cumulative(client: Client) -> None:
    body = {"input_ids": PROMPT, "sampling_params": NEW, "stream": True, "return_logprob": True}
    chunks = []
    with client.http.stream("POST", "/generate", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                chunks.append(line.removeprefix("data: "))
    assert chunks.pop() == "[DONE]"
    last = json.loads(chunks[-1])
    assert last["meta_info"]["finish_reason"]["type"] == "length"
    assert len(values(last)) == 8


def test_abort_gives_the_partial(client: Client) -> None:
    rid = uuid4().hex
    with ThreadPoolExecutor(1) as pool:
        future = start(client, pool, rid)
        assert client.post("/abort_request", rid=rid)[0] == 200
        answer = future.result(60)
    assert answer["meta_info"]["finish_reason"]["type"] in ("abort", "length")
    values(answer)


def test_bad_requests_are_400(client: Client) -> None:
    length = client.get("/v1/models")[1]["data"][0]["max_model_len"]
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": length}}
    assert str(length) in failed(*client.post("/generate", **body))
    assert "top_p" in failed(*client.post("/generate", input_ids=PROMPT, sampling_params={"top_p": 2.0}))
    unknown = {"lora_path": "contract-nobody", "sampling_params": {"max_new_tokens": 1}}
    assert "contract-nobody" in failed(*client.post("/generate", input_ids=PROMPT, **unknown))


def test_adapters_live_side_by_side(client: Client, target: Target) -> None:
    need(target, adapters=2)
    with adapter(client, target.adapters[0]) as one, adapter(client, target.adapters[1]) as two:
        again = client.post("/load_lora_adapter", lora_name=one, lora_path=target.adapters[0])
        assert "already loaded" in failed(*again)
        listed = {card["id"]: card["parent"] for card in client.get("/v1/models")[1]["data"]}
        assert listed[one] is not None
        assert listed[two] is not None
        policies = (None, one, two)
        with ThreadPoolExecutor(9) as pool:
            params = {"max_new_tokens": 24, "temperature": 0.0, "ignore_eos": True}
            futures = [(name, pool.submit(client.generate, PROMPT, lora=name, **params)) for name in policies * 3]
            answers = [(name, future.result(60)) for name, future in futures]
        for name, answer in answers:
            gaps = {other: gap(values(answer), score(client, answer["output_ids"], other)) for other in policies}
            own = gaps.pop(name)
            assert own < CLOSE
            assert own < min(gaps.values()) / 4
    left = {card["id"] for card in client.get("/v1/models")[1]["data"]}
    assert not left & {one, two}
    # What comes of a request that names it now is not common ground: SGLang loads it again from its path.
    assert "does not exist" in failed(*client.post("/unload_lora_adapter", lora_name=one))


def test_unloading_waits(client: Client, target: Target) -> None:
    need(target, adapters=1)
    with ThreadPoolExecutor(1) as pool, adapter(client, target.adapters[0]) as name:
        body = {"input_ids": PROMPT, "sampling_params": {**NEW, "max_new_tokens": 300}, "lora_path": name}
        future = pool.submit(client.post, "/generate", **body)
        while not running(client) and not future.done():
            time.sleep(0.01)
        status, answer = client.post("/unload_lora_adapter", lora_name=name)
        assert (status, answer["success"]) == (200, True)
        assert name not in answer["loaded_adapters"]
        status, answer = future.result(60)
        assert status == 200
        assert len(answer["output_ids"]) == 300


def test_pause_abort_and_continue(client: Client) -> None:
    with ThreadPoolExecutor(2) as pool:
        future = start(client, pool, uuid4().hex)
        assert client.post("/pause_generation", mode="abort")[0] == 200
        partial = future.result(60)
        assert partial["meta_info"]["finish_reason"]["type"] in ("abort", "length")
        held = pool.submit(client.generate, PROMPT, **NEW)
        time.sleep(0.3)
        assert not held.done()
        assert client.post("/continue_generation")[0] == 200
        assert len(values(held.result(60))) == 8
    assert client.post("/pause_generation", mode="nonsense")[0] in (400, 422)


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_held_request_goes_on(client: Client, mode: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = start(client, pool, uuid4().hex, max_new_tokens=400)
        client.post("/pause_generation", mode=mode)
        client.post("/continue_generation")
        assert len(values(future.result(60))) == 400


def test_a_held_request_can_be_aborted(client: Client) -> None:
    rid = uuid4().hex
    with ThreadPoolExecutor(1) as pool:
        future = start(client, pool, rid)
        client.post("/pause_generation", mode="retract")
        assert client.post("/abort_request", rid=rid)[0] == 200
        answer = future.result(60)
        assert answer["meta_info"]["finish_reason"]["type"] in ("abort", "length")
        values(answer)


def test_flush_cache(client: Client) -> None:
    client.generate(PROMPT * 20, **NEW)
    deadline = time.monotonic() + 30
    while client.post("/flush_cache")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert client.generate(PROMPT * 20, **NEW)["meta_info"]["cached_tokens"] == 0


def test_weight_versions(client: Client, target: Target) -> None:
    need(target, checkpoint=True)
    before = client.get("/model_info")[1]["weight_version"]
    version = uuid4().hex
    with ThreadPoolExecutor(2) as pool:
        old = start(client, pool, uuid4().hex, max_new_tokens=200)
        body = {"model_path": target.checkpoint, "weight_version": version}
        status, answer = client.post("/update_weights_from_disk", **body)
        assert (status, answer["success"]) == (200, True), answer
        old_answer = old.result(60)
    assert old_answer["meta_info"]["weight_version"] == before
    assert client.generate(PROMPT, **NEW)["meta_info"]["weight_version"] == version
    assert client.get("/model_info")[1]["weight_version"] == version
    status, answer = client.post("/update_weights_from_disk", model_path="/no/such/model", weight_version="never")
    assert status == 400
    assert answer["success"] is False
    assert client.get("/model_info")[1]["weight_version"] == version
    status, _ = client.post("/update_weights_from_disk", model_path=target.checkpoint, weight_version=7)
    assert status in (400, 422)
    renamed = uuid4().hex
    assert client.post("/update_weight_version", new_version=renamed)[1]["success"] is True
    assert client.generate(PROMPT, **NEW)["meta_info"]["weight_version"] == renamed
