"""Weights from the request and from a process group: the numbers afterwards, and what a failed update leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch

from support.engine import Client, Reference, RunningEngine, make_model
from support.weights import (
    Named,
    Rank0,
    announced,
    base64_pickle,
    bucket,
    checkpoint_tensors,
    chunks,
    flat,
    free_port,
)

PROMPT = list(b"three and four make")
KINDS = ("qwen2", "llama", "qwen3")


@pytest.fixture(scope="module")
def second(models: Path) -> Path:
    return make_model(models / "tensor-second", seed=21)


@pytest.fixture
def own(model: Path) -> Iterator[Client]:
    """An engine of its own: these tests change its weights."""
    with RunningEngine(model, update_timeout_s=5.0) as engine:
        client = Client(engine.url)
        yield client
        client.http.close()


def send(client: Client, tensors: Any, **extra: Any) -> tuple[int, Any]:
    return client.post("/update_weights_from_tensor", serialized_named_tensors=[base64_pickle(tensors)], **extra)


def checksum(client: Client) -> str:
    status, answer = client.post("/weights_checker", action="checksum")
    assert (status, answer["success"], answer["message"]) == (200, True, "Success.")
    found: str = answer["per_engine_checksum"]
    return found


def serves(client: Client, folder: Path, version: str) -> None:
    """It samples with the weights of that checkpoint and says so."""
    answer = client.generate(PROMPT, max_new_tokens=8, temperature=0.9, ignore_eos=True)
    expected = Reference(folder).logprobs(PROMPT, answer["output_ids"], 0.9)
    found = [triple[0] for triple in answer["meta_info"]["output_token_logprobs"]]
    assert found == pytest.approx(expected, abs=1e-4)
    assert answer["meta_info"]["weight_version"] == version


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_has_its_place(kind: Any, tmp_path: Path) -> None:
    """Sent in any order and in parts, fused projections included, the weights are the checkpoint's."""
    first, other = make_model(tmp_path / "first", kind), make_model(tmp_path / "other", kind, seed=8)
    with RunningEngine(first) as engine:
        client = Client(engine.url)
        before = checksum(client)
        parts = chunks(list(reversed(checkpoint_tensors(other))), 5)
        for part in parts:
            assert send(client, part, flush_cache=part is parts[-1]) == (
                200,
                {"success": True, "message": "Succeeded to update model weights."},
            )
        serves(client, other, "default")
        from_tensors = checksum(client)
        assert client.post("/update_weights_from_disk", model_path=str(first))[0] == 200
        assert checksum(client) == before != from_tensors
        assert client.post("/update_weights_from_disk", model_path=str(other))[0] == 200
        assert checksum(client) == from_tensors
        client.http.close()


def test_a_bucket_and_the_version(own: Client, second: Path) -> None:
    status, answer = send(
        own, bucket(checkpoint_tensors(second)), load_format="flattened_bucket", weight_version="run-v2"
    )
    assert (status, answer["message"]) == (
        200,
        "Succeeded to update model weights. Weight version updated to run-v2.",
    )
    serves(own, second, "run-v2")


def test_bfloat16_tensors_become_the_engines_type(own: Client, model: Path, second: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rounded = tmp_path / "rounded"
    AutoModelForCausalLM.from_pretrained(second, dtype=torch.bfloat16).to(torch.float32).save_pretrained(rounded)
    AutoTokenizer.from_pretrained(model).save_pretrained(rounded)
    assert send(own, checkpoint_tensors(second, torch.bfloat16), weight_version="half")[0] == 200
    serves(own, rounded, "half")


def test_a_tied_head_may_come_along(own: Client, second: Path) -> None:
    tensors = checkpoint_tensors(second)
    embedding = dict(tensors)["model.embed_tokens.weight"]
    assert send(own, [*tensors, ("lm_head.weight", embedding)], weight_version="2")[0] == 200
    serves(own, second, "2")


def spoiled(tensors: list[Named], how: str) -> list[Named]:
    name, value = tensors[-1]
    return {
        "unknown": [*tensors, ("model.layers.9.mlp.up_proj.weight", value)],
        "fused": [*tensors, ("model.layers.0.self_attn.qkv_proj.weight", value)],
        "shape": [*tensors[:-1], (name, torch.zeros(2, 2))],
        "twice": [*tensors, tensors[-1]],
        "finite": [*tensors[:-1], (name, torch.full_like(value, float("inf")))],
        "floating point": [*tensors[:-1], (name, torch.zeros(value.shape, dtype=torch.int64))],
        "no parameter": [],
    }[how]


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("unknown", "not a parameter"),
        ("fused", "not a parameter"),
        ("shape", "shape"),
        ("twice", "twice"),
        ("finite", "finite"),
        ("floating point", "floating point"),
        ("no parameter", "no parameter"),
    ],
)
def test_a_failed_update_leaves_the_old_weights_whole(
    own: Client, model: Path, second: Path, how: str, named: str
) -> None:
    """The bad tensor is the last one: those before it fit, and are not taken either."""
    before = checksum(own)
    status, answer = send(own, spoiled(checkpoint_tensors(second), how), weight_version="never")
    assert (status, answer["success"]) == (400, False)
    assert named in answer["message"]
    assert checksum(own) == before
    serves(own, model, "default")


def test_what_is_no_tensor_is_refused(own: Client, model: Path) -> None:
    for payload, named in ((base64_pickle(len), "builtins.len"), ("AAAA", "pickle"), ("%", "base64")):
        status, answer = own.post("/update_weights_from_tensor", serialized_named_tensors=[payload])
        assert (status, answer["success"]) == (400, False)
        assert named in answer["message"]
    for body, named in (
        ({"serialized_named_tensors": []}, "serialized_named_tensors"),
        ({"serialized_named_tensors": ["AAAA"], "load_format": "direct"}, "load_format"),
        ({"serialized_named_tensors": ["AAAA"], "weight_version": 3}, "weight_version"),
        ({"serialized_named_tensors": ["AAAA"], "flush": True}, "flush: unknown parameter"),
    ):
        status, answer = own.post("/update_weights_from_tensor", **body)
        assert (status, answer["object"]) == (400, "error")
        assert named in answer["message"]
    assert own.http.post("/update_weights_from_tensor", content=b"{").status_code == 400
    serves(own, model, "default")


def start_long(client: Client, pool: ThreadPoolExecutor, **extra: Any) -> Future[Any]:
    params = {"max_new_tokens": 500, "temperature": 1.0, "ignore_eos": True, **extra}
    future = pool.submit(client.generate, PROMPT, rid=uuid4().hex, **params)
    while not client.get("/v1/loads")[1]["loads"][0]["num_running_reqs"] and not future.done():
        time.sleep(0.01)
    return future


def test_an_update_waits_for_requests_in_flight(own: Client, model: Path, second: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        old = start_long(own, pool)
        assert send(own, checkpoint_tensors(second), weight_version="2")[0] == 200
        assert old.done()
        answer = old.result()
        assert answer["meta_info"]["weight_version"] == "default"
        expected = Reference(model).logprobs(PROMPT, answer["output_ids"])
        found = [triple[0] for triple in answer["meta_info"]["output_token_logprobs"]]
        assert found == pytest.approx(expected, abs=1e-4)
    serves(own, second, "2")


def test_an_update_under_a_pause(own: Client, second: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        held = start_long(own, pool)
        own.post("/pause_generation", mode="in_place")
        tensors = checkpoint_tensors(second)
        status, answer = send(own, tensors, weight_version="2")
        assert status == 400
        assert "flush_cache" in answer["message"]
        assert send(own, tensors, weight_version="2", flush_cache=False)[0] == 200
        own.post("/continue_generation")
        assert held.result(30)["meta_info"]["weight_version"] == "2"


def test_two_updates_at_once_do_not_mix(own: Client, model: Path, second: Path) -> None:
    """Each holds half of the parameters; whichever comes last, none of the other's is lost."""
    one, two = chunks(checkpoint_tensors(second), 2)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda part: send(own, part, weight_version="2"), (one, two)))
    assert [status for status, _ in answers] == [200, 200]
    serves(own, second, "2")


def test_checksums_have_sglangs_names_and_shape(own: Client) -> None:
    status, answer = own.post("/weights_checker", action="checksum")
    assert status == 200
    (rank,) = answer["ranks"]
    names = set(rank["checksums"])
    assert {"model.embed_tokens.weight", "model.norm.weight", "model.layers.1.mlp.down_proj.weight"} <= names
    assert "model.layers.0.self_attn.qkv_proj.bias" in names
    assert "lm_head.weight" not in names
    assert all(len(value) == 16 for value in rank["checksums"].values())
    assert len(rank["per_gpu_checksum"]) == len(answer["per_engine_checksum"]) == 64
    assert rank["parallelism_info"] == {
        "tp_rank": 0, "tp_size": 1, "dp_rank": 0, "dp_size": 1, "pp_rank": 0, "pp_size": 1, "rank": 0, "size": 1,
    }  # fmt: skip
    assert own.get("/weights_checker")[1] == answer
    status, answer = own.post("/weights_checker", action="snapshot")
    assert (status, answer["success"]) == (400, False)
    assert "snapshot" in answer["message"]


def test_server_info_tells_what_a_client_sizes_itself_by(own: Client) -> None:
    info = own.get("/server_info")[1]
    assert (info["tp_size"], info["dp_size"], info["pp_size"]) == (1, 1, 1)
    assert info["max_running_requests"] == info["internal_states"][0]["effective_max_running_requests_per_dp"] == 32
    assert info["internal_states"][0]["memory_usage"]["token_capacity"] == info["max_total_num_tokens"]
    assert info["cuda_graph_max_bs_decode"] is None


@contextmanager
def group(client: Client) -> Iterator[tuple[str, Rank0]]:
    """A group of the engine and this process."""
    name, port = f"group-{uuid4().hex}", free_port()
    body = {
        "master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2,
        "group_name": name, "backend": "gloo",
    }  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(client.post, "/init_weights_update_group", **body)
        rank0 = Rank0(name, port, timeout_s=20)
        assert joined.result(20) == (200, {"success": True, "message": "Succeeded to initialize custom process group."})
    try:
        yield name, rank0
    finally:
        rank0.close()


def broadcast(
    client: Client, name: str, rank0: Rank0, tensors: list[Named], *, flattened: bool, **extra: Any
) -> tuple[int, Any]:
    if flattened:
        extra["load_format"] = "flattened_bucket"
    with ThreadPoolExecutor(1) as pool:
        path = "/update_weights_from_distributed"
        call = pool.submit(client.post, path, group_name=name, **announced(tensors), **extra)
        for tensor in [flat(tensors)] if flattened else [tensor for _, tensor in tensors]:
            rank0.send(tensor)
        return call.result(20)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("flattened", [False, True])
def test_weights_over_a_group(own: Client, second: Path, flattened: bool, dtype: torch.dtype | None) -> None:
    tensors = checkpoint_tensors(second, dtype)
    with group(own) as (name, rank0):
        parts = chunks(tensors, 3)
        for part in parts:
            last = {"flush_cache": True, "weight_version": "run-v3"} if part is parts[-1] else {"flush_cache": False}
            assert broadcast(own, name, rank0, part, flattened=flattened, **last)[0] == 200
        assert own.get("/model_info")[1]["weight_version"] == "run-v3"
        found = checksum(own)
        assert send(own, tensors)[0] == 200
        assert checksum(own) == found
        if dtype is None:
            serves(own, second, "run-v3")
        assert own.post("/destroy_weights_update_group", group_name=name) == (
            200,
            {"success": True, "message": "Succeeded to destroy custom process group."},
        )
        status, answer = own.post("/destroy_weights_update_group", group_name=name)
        assert (status, answer["message"]) == (400, "The group to be destroyed does not exist.")


def test_what_cannot_be_a_group_is_refused(own: Client) -> None:
    good = {"master_address": "127.0.0.1", "master_port": free_port(), "rank_offset": 1, "world_size": 2,
            "backend": "gloo"}  # fmt: skip
    for change, named in (
        ({"group_name": ""}, "empty"),
        ({"backend": "nccl"}, "gloo"),
        ({"backend": "smoke"}, "gloo"),
        ({"rank_offset": 2}, "rank 2 of 2"),
    ):
        status, answer = own.post("/init_weights_update_group", **{**good, **change})
        assert (status, answer["success"]) == (400, False)
        assert named in answer["message"]
    assert own.post("/init_weights_update_group", **{**good, "rank_offset": 0})[0] == 400
    tensors = [("model.norm.weight", torch.ones(64))]
    status, answer = own.post("/update_weights_from_distributed", group_name="nobody", **announced(tensors))
    assert status == 400
    assert "init_weights_update_group" in answer["message"]
    uneven = {**announced(tensors), "shapes": []}
    assert "1 names" in own.post("/update_weights_from_distributed", **uneven)[1]["message"]
    wrong = {**announced(tensors), "dtypes": ["int8"]}
    assert "int8" in own.post("/update_weights_from_distributed", **wrong)[1]["message"]
    negative = {**announced(tensors), "shapes": [[-1]]}
    assert "negative" in own.post("/update_weights_from_distributed", **negative)[1]["message"]


def test_a_trainer_that_never_joins_is_given_up(model: Path) -> None:
    with RunningEngine(model, update_timeout_s=1.0) as engine, ThreadPoolExecutor(1) as pool:
        client = Client(engine.url)
        body = {"master_address": "127.0.0.1", "master_port": free_port(), "rank_offset": 1, "world_size": 2,
                "group_name": "alone", "backend": "gloo"}  # fmt: skip
        call = pool.submit(client.post, "/init_weights_update_group", **body)
        # Requests go on meanwhile.
        assert client.generate(PROMPT, max_new_tokens=3)["output_ids"]
        status, answer = call.result(30)
        assert (status, answer["success"]) == (400, False)
        assert "Failed to initialize custom process group" in answer["message"]
        assert client.post("/destroy_weights_update_group", group_name="alone")[0] == 400
        client.http.close()


def test_a_broadcast_that_never_comes_is_given_up(model: Path) -> None:
    with RunningEngine(model, update_timeout_s=1.0) as engine:
        client = Client(engine.url)
        before = checksum(client)
        with group(client) as (name, _):
            body = announced([("model.norm.weight", torch.ones(64))])
            status, answer = client.post("/update_weights_from_distributed", group_name=name, **body)
            assert (status, answer["success"]) == (400, False)
            assert name in answer["message"]
        assert checksum(client) == before
        serves(client, model, "default")
        client.http.close()


def test_a_bad_tensor_of_a_broadcast_changes_nothing(own: Client, model: Path, second: Path) -> None:
    before = checksum(own)
    tensors = [*checkpoint_tensors(second), ("model.norm.bias", torch.ones(3))]
    with group(own) as (name, rank0):
        status, answer = broadcast(own, name, rank0, tensors, flattened=True, weight_version="never")
        assert (status, answer["success"]) == (400, False)
        assert "model.norm.bias" in answer["message"]
        assert checksum(own) == before
        serves(own, model, "default")
        # The group is as good as before.
        good = checkpoint_tensors(second)
        assert broadcast(own, name, rank0, good, flattened=True, weight_version="2")[0] == 200
        serves(own, second, "2")
