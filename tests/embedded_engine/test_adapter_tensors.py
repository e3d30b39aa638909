"""Adapters whose tensors come in the request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.engine import Client, Reference, RunningEngine
from support.weights import adapter_body, base64_pickle, bucket

PROMPT = list(b"five and six make")


@pytest.fixture
def own(model: Path) -> Iterator[Client]:
    with RunningEngine(model, max_loaded_loras=2, max_lora_rank=8) as engine:
        client = Client(engine.url)
        yield client
        client.http.close()


def load(client: Client, name: str, **body: Any) -> tuple[int, Any]:
    return client.post("/load_lora_adapter_from_tensors", lora_name=name, **body)


def logprobs(client: Client, name: str | None, ids: list[int]) -> list[float]:
    body: dict[str, Any] = {"input_ids": PROMPT + ids, "sampling_params": {"max_new_tokens": 0}}
    answer = client.post("/generate", lora_path=name, return_logprob=True, logprob_start_len=len(PROMPT) - 1, **body)
    return [triple[0] for triple in answer[1]["meta_info"]["input_token_logprobs"][1:]]


@pytest.mark.parametrize("flattened", [False, True])
def test_tensors_are_as_good_as_files(own: Client, model: Path, adapter_one: Path, flattened: bool) -> None:
    body = adapter_body(adapter_one)
    if flattened:
        tensors = sorted(load_file(str(adapter_one / "adapter_model.safetensors")).items())
        body = {**body, "load_format": "flattened_bucket", "serialized_tensors": base64_pickle(bucket(tensors))}
    status, answer = load(own, "run-v1", **body)
    assert (status, answer) == (
        200,
        {"success": True, "error_message": "", "loaded_adapters": {"run-v1": "__tensor__"}},
    )
    sampled = own.generate(PROMPT, lora="run-v1", max_new_tokens=8, temperature=0.8, ignore_eos=True)
    expected = Reference(model, adapter_one).logprobs(PROMPT, sampled["output_ids"], 0.8)
    found = [triple[0] for triple in sampled["meta_info"]["output_token_logprobs"]]
    assert found == pytest.approx(expected, abs=1e-4)
    assert sampled["meta_info"]["lora_path"] == "run-v1"
    assert own.post("/load_lora_adapter", lora_name="files", lora_path=str(adapter_one))[0] == 200
    ids = sampled["output_ids"]
    assert logprobs(own, "files", ids) == pytest.approx(logprobs(own, "run-v1", ids), abs=1e-5)
    assert own.post("/unload_lora_adapter", lora_name="run-v1")[0] == 200


def change(expected: dict[str, str], how: str) -> dict[str, str]:
    name = sorted(expected)[0]
    return {
        "value-diff": {**expected, name: "0" * 64},
        "missing": {**expected, "nowhere": "0" * 64},
        "extra": {key: value for key, value in expected.items() if key != name},
    }[how]


@pytest.mark.parametrize("how", ["value-diff", "missing", "extra"])
def test_wrong_checksums_are_refused(own: Client, adapter_one: Path, how: str) -> None:
    body = adapter_body(adapter_one, checksums=True)
    expected = change(body["expected_checksums"], how)
    status, answer = load(own, "run-v1", **{**body, "expected_checksums": expected})
    assert (status, answer["success"], answer["loaded_adapters"]) == (400, False, {})
    assert "MISMATCH" in answer["error_message"]
    assert f"1 {how}" in answer["error_message"]
    assert own.post("/generate", input_ids=PROMPT, lora_path="run-v1")[0] == 400
    assert load(own, "run-v1", **body)[0] == 200


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        ({"serialized_tensors": base64_pickle(len)}, "builtins.len"),
        ({"serialized_tensors": base64_pickle({"a": torch.ones(2)})}, "not a LoRA matrix"),
        ({"serialized_tensors": base64_pickle({})}, "no tensor"),
        ({"config_dict": {"peft_type": "IA3"}}, "IA3"),
    ],
)
def test_what_cannot_be_applied_is_refused(own: Client, adapter_one: Path, spoil: dict[str, Any], named: str) -> None:
    body = {**adapter_body(adapter_one), **spoil}
    status, answer = load(own, "bad", **body)
    assert (status, answer["success"]) == (400, False)
    assert named in answer["error_message"]


def test_settings_names_and_pins_count_as_from_files(own: Client, adapter_one: Path) -> None:
    body = adapter_body(adapter_one)
    config = json.loads((adapter_one / "adapter_config.json").read_text())
    status, answer = load(own, "dora", **{**body, "config_dict": {**config, "use_dora": True}})
    assert status == 400
    assert "use_dora" in answer["error_message"]
    assert load(own, "one", pinned=True, **body)[0] == 200
    assert "already loaded" in load(own, "one", **body)[1]["error_message"]
    assert load(own, "two", pinned=True, **body)[0] == 200
    assert "pinned" in load(own, "three", **body)[1]["error_message"]
    status, answer = load(own, "typo", **body, path="x")
    assert (status, answer["object"]) == (400, "error")
