"""Adapters: loading, names, limits, unloading under use, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.engine import Client, Reference, RunningEngine, make_adapter
from support.processes import wait_until

PROMPT = list(b"two and two make")


@pytest.fixture
def small(model: Path) -> Iterator[Client]:
    """An engine for two adapters."""
    with RunningEngine(model, max_loaded_loras=2, max_lora_rank=8) as engine:
        client = Client(engine.url)
        yield client
        client.http.close()


def load(client: Client, name: str, path: Path, **extra: Any) -> tuple[int, Any]:
    return client.post("/load_lora_adapter", lora_name=name, lora_path=str(path), **extra)


def test_names_limits_and_eviction(small: Client, adapter_one: Path, adapter_two: Path) -> None:
    assert load(small, "v1", adapter_one)[1] == {
        "success": True,
        "error_message": "",
        "loaded_adapters": {"v1": str(adapter_one)},
    }
    status, answer = load(small, "v1", adapter_two)
    assert (status, answer["success"]) == (400, False)
    assert "already loaded" in answer["error_message"]
    assert load(small, "v2", adapter_two, pinned=True)[0] == 200
    assert sorted(load(small, "v3", adapter_one)[1]["loaded_adapters"]) == ["v2", "v3"]
    status, answer = small.post("/generate", input_ids=PROMPT, lora_path="v1")
    assert status == 400
    assert "not loaded" in answer["error"]["message"]
    assert small.post("/unload_lora_adapter", lora_name="v3")[1]["loaded_adapters"] == {"v2": str(adapter_two)}
    assert load(small, "v4", adapter_one, pinned=True)[0] == 200
    status, answer = load(small, "v5", adapter_one)
    assert status == 400
    assert "pinned" in answer["error_message"]
    status, answer = small.post("/unload_lora_adapter", lora_name="v1")
    assert status == 400
    assert "does not exist" in answer["error_message"]
    assert small.post("/load_lora_adapter", lora_name="v6", path="typo")[0] == 400


def test_unloading_waits_for_its_requests(
    small: Client, adapter_one: Path, references: dict[str | None, Reference]
) -> None:
    load(small, "v1", adapter_one)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(small.generate, PROMPT, lora="v1", max_new_tokens=600, temperature=1.0, ignore_eos=True)
        wait_until(lambda: small.get("/v1/loads")[1]["loads"][0]["num_running_reqs"] == 1 or running.done())
        assert small.post("/unload_lora_adapter", lora_name="v1")[0] == 200
        assert small.get("/v1/loads")[1]["loads"][0]["num_running_reqs"] == 0
        answer = running.result(20)
    assert len(answer["output_ids"]) == 600
    expected = references["one"].logprobs(PROMPT, answer["output_ids"])
    found = [triple[0] for triple in answer["meta_info"]["output_token_logprobs"]]
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_name_loaded_again_is_the_new_adapter(
    small: Client, adapter_one: Path, adapter_two: Path, references: dict[str | None, Reference]
) -> None:
    """Nothing kept of the old adapter of that name is reused: not its prefixes, not its matrices."""
    for path, key in ((adapter_one, "one"), (adapter_two, "two")):
        assert load(small, "name", path)[0] == 200
        answer = small.generate(PROMPT, lora="name", max_new_tokens=6, temperature=0.8, ignore_eos=True)
        expected = references[key].logprobs(PROMPT, answer["output_ids"], 0.8)
        found = [triple[0] for triple in answer["meta_info"]["output_token_logprobs"]]
        assert found == pytest.approx(expected, abs=1e-4)
        assert answer["meta_info"]["cached_tokens"] == 0
        assert small.post("/unload_lora_adapter", lora_name="name")[0] == 200


def edited(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "adapter_config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return apply


def tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        found = load_file(str(path))
        change(found)
        save_file(found, str(path))

    return apply


def first(found: dict[str, torch.Tensor]) -> str:
    return sorted(found)[0]


def poison(found: dict[str, torch.Tensor]) -> None:
    found[first(found)][0, 0] = float("nan")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (edited(lambda c: c.update(use_rslora=True)), "use_rslora"),
        (edited(lambda c: c.update(use_dora=True)), "use_dora"),
        (edited(lambda c: c.update(bias="all")), "bias"),
        (edited(lambda c: c.update(rank_pattern={"q_proj": 4})), "rank_pattern"),
        (edited(lambda c: c.update(alpha_pattern={"q_proj": 4})), "alpha_pattern"),
        (edited(lambda c: c.update(modules_to_save=["lm_head"])), "modules_to_save"),
        (edited(lambda c: c.update(init_lora_weights="pissa")), "init_lora_weights"),
        (edited(lambda c: c.update(peft_type="IA3")), "IA3"),
        (edited(lambda c: c.update(r=16)), "max_lora_rank 8"),
        (edited(lambda c: c.update(r=4)), "shape"),
        (tensors(lambda t: t.pop(first(t))), "only one of"),
        (tensors(lambda t: t.update({"base_model.model.lm_head.lora_A.weight": torch.zeros(8, 64)})), "lm_head"),
        (tensors(poison), "not finite"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"junk"), "cannot be read"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "not JSON"),
    ],
)
def test_what_cannot_be_applied_is_refused(
    small: Client, adapter_one: Path, tmp_path: Path, spoil: Callable[[Path], None], named: str
) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(adapter_one, folder)
    spoil(folder)
    status, answer = load(small, "bad", folder)
    assert (status, answer["success"]) == (400, False)
    assert named in answer["error_message"]
    assert small.post("/generate", input_ids=PROMPT, lora_path="bad")[0] == 400


def test_dora_really_differs(model: Path, tmp_path: Path, client: Client) -> None:
    """An adapter as PEFT itself writes it, with a setting that would silently change the numbers."""
    folder = make_adapter(model, tmp_path / "dora", use_dora=True)
    status, answer = load(client, "dora", folder)
    assert status == 400
    assert "use_dora" in answer["error_message"]


def test_an_adapter_that_overflows_is_an_error_of_its_request_alone(
    client: Client, adapter_one: Path, tmp_path: Path, references: dict[str | None, Reference]
) -> None:
    folder = tmp_path / "huge"
    shutil.copytree(adapter_one, folder)
    tensors(lambda t: t.update({key: value * 1e30 for key, value in t.items()}))(folder)
    assert load(client, "huge", folder)[0] == 200
    with ThreadPoolExecutor(6) as pool:
        good = [pool.submit(client.generate, PROMPT, max_new_tokens=30, ignore_eos=True) for _ in range(3)]
        bad = [pool.submit(client.post, "/generate", input_ids=PROMPT, lora_path="huge") for _ in range(3)]
        for future in bad:
            status, answer = future.result(20)
            assert status == 500
            assert "huge" in answer["detail"]
        answers = [future.result(20) for future in good]
    answers += [client.generate(PROMPT, lora="one", max_new_tokens=9, ignore_eos=True) for _ in range(4)]
    for answer, key in zip(answers, [None] * 3 + ["one"] * 4, strict=True):
        expected = references[key].logprobs(PROMPT, answer["output_ids"])
        found = [triple[0] for triple in answer["meta_info"]["output_token_logprobs"]]
        assert found == pytest.approx(expected, abs=1e-4)
    assert client.post("/unload_lora_adapter", lora_name="huge")[0] == 200
