"""Adapters: by name, several at once, from files and from tensors."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.contract import (
    NEW,
    PROMPT,
    Target,
    adapter,
    agree,
    checksum,
    failed,
    fresh,
    gap,
    loaded,
    need_embedded,
    running,
    score,
    values,
    version,
)
from support.engine import Client
from support.weights import adapter_body

FROM_TENSORS = "/load_lora_adapter_from_tensors"


def test_an_adapter_changes_the_numbers_and_the_base_stays(client: Client, target: Target) -> None:
    before = client.generate(PROMPT, **{**NEW, "max_new_tokens": 32})
    ids = before["output_ids"]
    stamp, weights = version(client), checksum(client)
    with adapter(client, target.adapters[0]) as name:
        changed = score(client, PROMPT, ids, name)
        agree(changed, target.reference(target.adapters[0]).logprobs(PROMPT, ids), target.tolerance)
        base = score(client, PROMPT, ids)
        agree(base, values(before), target.tolerance)
        assert gap(changed, base) > 4 * gap(base, values(before))
        # Adapters are another policy, not other weights.
        assert version(client) == stamp
        assert checksum(client) == weights


def test_two_live_side_by_side(client: Client, target: Target) -> None:
    with adapter(client, target.adapters[0]) as one, adapter(client, target.adapters[1]) as two:
        again = client.post("/load_lora_adapter", lora_name=one, lora_path=target.adapters[0])
        assert "already loaded" in failed(*again)
        listed = {card["id"]: card["parent"] for card in client.get("/v1/models")[1]["data"]}
        assert listed[one] is not None
        assert listed[two] is not None
        policies = (None, one, two)
        with ThreadPoolExecutor(9) as pool:
            params = {"max_new_tokens": 24, "temperature": 0.0, "ignore_eos": True}
            calls = [(name, pool.submit(client.generate, PROMPT, lora=name, **params)) for name in policies * 3]
            answers = [(name, call.result()) for name, call in calls]
        for name, answer in answers:
            ids = answer["output_ids"]
            gaps = {other: gap(values(answer), score(client, PROMPT, ids, other)) for other in policies}
            own = gaps.pop(name)
            assert own < target.tolerance.mean
            assert own < min(gaps.values()) / 4
    left = {card["id"] for card in client.get("/v1/models")[1]["data"]}
    assert not left & {one, two}
    # What comes of a request that names it now is not common ground: SGLang loads it again from its path.
    assert "does not exist" in failed(*client.post("/unload_lora_adapter", lora_name=one))


@pytest.mark.parametrize("which", [0, 1])
def test_from_tensors_is_as_from_files(client: Client, target: Target, which: int) -> None:
    path = target.adapters[which]
    ids = client.generate(PROMPT, **{**NEW, "max_new_tokens": 32})["output_ids"]
    base = score(client, PROMPT, ids)
    with adapter(client, path) as files, loaded(client, FROM_TENSORS, **adapter_body(path)) as tensors:
        one, other = score(client, PROMPT, ids, files), score(client, PROMPT, ids, tensors)
        agree(one, other, target.tolerance)
        assert gap(one, other) < gap(one, base) / 4
        sampled = client.generate(PROMPT, lora=tensors, **{**NEW, "max_new_tokens": 32})
        expected = target.reference(path).logprobs(PROMPT, sampled["output_ids"])
        agree(values(sampled), expected, target.tolerance)


def test_from_tensors_is_once_by_name(client: Client, target: Target) -> None:
    body = adapter_body(target.adapters[0])
    with loaded(client, FROM_TENSORS, **body) as name:
        assert len(values(client.generate(PROMPT, lora=name, **NEW))) == 8
        again = client.post(FROM_TENSORS, lora_name=name, **body)
        assert "already loaded" in failed(*again)


@pytest.mark.parametrize("how", ["value", "missing", "extra"])
def test_wrong_checksums_are_refused(client: Client, target: Target, how: str) -> None:
    need_embedded(target, "any expected_checksums, right or wrong, end SGLang 0.5.16 (managers/tp_worker.py)")
    body: dict[str, Any] = adapter_body(target.adapters[0], checksums=True)
    expected = body["expected_checksums"]
    first = sorted(expected)[0]
    body["expected_checksums"] = {
        "value": {**expected, first: "0" * 64},
        "missing": {**expected, "nowhere": "0" * 64},
        "extra": {name: value for name, value in expected.items() if name != first},
    }[how]
    name = fresh()
    assert "MISMATCH" in failed(*client.post(FROM_TENSORS, lora_name=name, **body))
    missing = {"input_ids": PROMPT, "lora_path": name, "sampling_params": {"max_new_tokens": 1}}
    assert name in failed(*client.post("/generate", **missing))


def test_a_missing_folder_is_refused(client: Client, tmp_path: Path) -> None:
    name = fresh()
    status, answer = client.post("/load_lora_adapter", lora_name=name, lora_path=str(tmp_path / "nothing"))
    assert (status, answer["success"]) == (400, False)
    assert answer["error_message"]
    assert name not in {card["id"] for card in client.get("/v1/models")[1]["data"]}


def test_many_versions_one_after_the_other(client: Client, target: Target) -> None:
    """Loading, using and unloading leaves nothing behind."""
    before = {card["id"] for card in client.get("/v1/models")[1]["data"]}
    for number in range(12):
        with adapter(client, target.adapters[number % 2]) as name:
            assert len(values(client.generate(PROMPT, lora=name, **NEW))) == 8
    assert {card["id"] for card in client.get("/v1/models")[1]["data"]} == before


def test_unloading_waits(client: Client, target: Target) -> None:
    with ThreadPoolExecutor(1) as pool, adapter(client, target.adapters[0]) as name:
        call = pool.submit(client.generate, PROMPT, lora=name, **{**NEW, "max_new_tokens": 300})
        while not running(client) and not call.done():
            time.sleep(0.01)
        status, answer = client.post("/unload_lora_adapter", lora_name=name)
        assert (status, answer["success"]) == (200, True)
        assert name not in answer["loaded_adapters"]
        assert len(values(call.result())) == 300
