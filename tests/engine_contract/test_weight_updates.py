"""New base weights by every mode: the stamp, the numbers, the checksum, and that modes agree with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from support.contract import (
    NEW,
    PROMPT,
    Target,
    agree,
    checksum,
    cut,
    failed,
    fresh,
    from_disk,
    from_tensors,
    gap,
    need_embedded,
    score,
    start,
    values,
    version,
)
from support.engine import Client
from support.weights import Rank0, announced, base64_pickle, checkpoint_tensors, flat, free_port

pytestmark = pytest.mark.usefixtures("restored")
Mode = Callable[[Client, Target, str], None]


def disk(client: Client, target: Target, name: str) -> None:
    from_disk(client, target.checkpoint, name)


def tensors_in_chunks(client: Client, target: Target, name: str) -> None:
    from_tensors(client, target.checkpoint, name, flattened=False)


def buckets_in_chunks(client: Client, target: Target, name: str) -> None:
    from_tensors(client, target.checkpoint, name, flattened=True)


@contextmanager
def group(client: Client, target: Target) -> Iterator[tuple[str, Rank0]]:
    """A process group of the engine and this process, which is rank 0."""
    if target.rank0 is None:
        pytest.skip("NCCL needs a second visible GPU for rank 0 (GRISTMILL_ENGINE_RANK0): one GPU cannot be both ranks")
    name, port = fresh("group"), free_port()
    size = 1 + int(client.get("/server_info")[1]["tp_size"])
    body = {
        "master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": size,
        "group_name": name, "backend": target.backend,
    }  # fmt: skip
    if target.backend == "nccl":
        torch.cuda.set_device(target.rank0)
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(client.post, "/init_weights_update_group", **body)
        rank0 = Rank0(name, port, backend=target.backend, world_size=size)
        status, answer = joined.result()
    assert (status, answer["success"]) == (200, True), answer
    with ThreadPoolExecutor(1) as pool:
        try:
            yield name, rank0
            # Together: some versions of NCCL take leave of each other.
            left = pool.submit(client.post, "/destroy_weights_update_group", group_name=name)
        finally:
            rank0.close()
        status, answer = left.result()
    assert (status, answer["success"]) == (200, True), answer


def over_a_group(client: Client, target: Target, version_name: str, *, flattened: bool) -> None:
    parts = cut(checkpoint_tensors(target.checkpoint))
    with group(client, target) as (name, rank0), ThreadPoolExecutor(1) as pool:
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            body = {**announced(part), "group_name": name, "flush_cache": last}
            if flattened:
                body["load_format"] = "flattened_bucket"
            if last:
                body["weight_version"] = version_name
            call = pool.submit(client.post, "/update_weights_from_distributed", **body)
            for tensor in [flat(part)] if flattened else [tensor for _, tensor in part]:
                rank0.send(tensor.to(target.rank0))
            status, answer = call.result()
            assert (status, answer["success"]) == (200, True), answer


def broadcast_tensors(client: Client, target: Target, name: str) -> None:
    over_a_group(client, target, name, flattened=False)


def broadcast_buckets(client: Client, target: Target, name: str) -> None:
    over_a_group(client, target, name, flattened=True)


MODES: dict[str, Mode] = {
    "disk": disk,
    "tensor": tensors_in_chunks,
    "flattened": buckets_in_chunks,
    "distributed": broadcast_tensors,
    "distributed-flattened": broadcast_buckets,
}


@pytest.mark.parametrize("mode", MODES)
def test_stamp_numbers_and_checksum_change_together(client: Client, target: Target, original: str, mode: str) -> None:
    old = version(client)
    before = client.generate(PROMPT, **{**NEW, "max_new_tokens": 32})
    assert before["meta_info"]["weight_version"] == old
    name = fresh(mode)
    MODES[mode](client, target, name)
    assert version(client) == name
    after = client.generate(PROMPT, **{**NEW, "max_new_tokens": 32})
    assert after["meta_info"]["weight_version"] == name
    assert after["meta_info"]["cached_tokens"] == 0, "a prefix of the old weights was used again"
    expected = target.reference(model=target.checkpoint).logprobs(PROMPT, after["output_ids"])
    agree(values(after), expected, target.tolerance)
    assert gap(values(after), target.reference().logprobs(PROMPT, after["output_ids"])) > 2 * target.tolerance.mean
    changed = checksum(client)
    assert changed != original
    assert checksum(client) == changed
    # The same weights by another mode have the same checksum, and the first ones have theirs again.
    again = "disk" if mode != "disk" else "tensor"
    MODES[again](client, target, name)
    assert checksum(client) == changed
    from_disk(client, target.model, old)
    assert checksum(client) == original
    agree(score(client, PROMPT, before["output_ids"]), values(before), target.tolerance)


def test_a_part_of_the_weights_changes_the_checksum(client: Client, target: Target, original: str) -> None:
    """One small tensor: no less than all of them may be checked."""
    name, tensor = next(pair for pair in checkpoint_tensors(target.checkpoint) if pair[0] == "model.norm.weight")
    payload = base64_pickle([(name, tensor)])
    status, answer = client.post("/update_weights_from_tensor", serialized_named_tensors=[payload])
    assert (status, answer["success"]) == (200, True), answer
    assert checksum(client) != original
    own = dict(checkpoint_tensors(target.model))[name]
    client.post("/update_weights_from_tensor", serialized_named_tensors=[base64_pickle([(name, own)])])
    assert checksum(client) == original


def test_an_update_without_a_version_keeps_the_old_one(client: Client, target: Target) -> None:
    before = version(client)
    from_disk(client, target.checkpoint)
    assert version(client) == before


def test_an_update_waits_for_requests_in_flight(client: Client, target: Target) -> None:
    before, name = version(client), fresh()
    with ThreadPoolExecutor(1) as pool:
        old = start(client, pool, fresh(), max_new_tokens=200)
        from_disk(client, target.checkpoint, name)
        answer = old.result()
    assert answer["meta_info"]["weight_version"] == before
    assert len(values(answer)) == 200
    assert client.generate(PROMPT, **NEW)["meta_info"]["weight_version"] == name


def test_an_update_may_abort_what_is_in_flight(client: Client, target: Target) -> None:
    before, name = version(client), fresh()
    with ThreadPoolExecutor(1) as pool:
        old = start(client, pool, fresh(), max_new_tokens=3000)
        from_disk(client, target.checkpoint, name, abort_all_requests=True)
        answer = old.result()
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["meta_info"]["weight_version"] == before
    assert values(answer)


def test_a_missing_checkpoint_changes_nothing(client: Client, original: str) -> None:
    before = version(client)
    status, answer = client.post("/update_weights_from_disk", model_path="/no/such/model", weight_version="never")
    assert (status, answer["success"]) == (400, False)
    assert answer["message"]
    assert version(client) == before
    assert checksum(client) == original
    assert len(values(client.generate(PROMPT, **NEW))) == 8


def test_an_unknown_group_cannot_be_left(client: Client) -> None:
    assert "does not exist" in failed(*client.post("/destroy_weights_update_group", group_name=fresh("group")))


def test_tensors_that_do_not_fit_change_nothing(client: Client, target: Target, original: str) -> None:
    need_embedded(target, "SGLang takes what fits, only logs unknown names, and ends with its scheduler on a bad shape")
    tensors = checkpoint_tensors(target.checkpoint)
    for bad in (("nobody.weight", torch.ones(2)), ("model.norm.weight", torch.ones(2))):
        kept = [pair for pair in tensors if pair[0] != bad[0]]
        payload = base64_pickle([*kept, bad])
        body = {"serialized_named_tensors": [payload], "weight_version": "never"}
        assert bad[0] in failed(*client.post("/update_weights_from_tensor", **body))
        assert checksum(client) == original
        assert version(client) != "never"


def test_a_pickle_of_anything_but_tensors_is_refused(client: Client, target: Target, original: str) -> None:
    need_embedded(target, "SGLang raises in its scheduler, which ends the server, and allows all of builtins and torch")
    body = {"serialized_named_tensors": [base64_pickle([("a", len)])]}
    assert "builtins.len" in failed(*client.post("/update_weights_from_tensor", **body))
    assert checksum(client) == original


def test_a_broadcast_to_an_unknown_group_is_refused(client: Client, target: Target, original: str) -> None:
    need_embedded(target, "SGLang asserts in its scheduler, which ends the server")
    body = {**announced([("model.norm.weight", torch.ones(2))]), "group_name": fresh("group")}
    assert "init_weights_update_group" in failed(*client.post("/update_weights_from_distributed", **body))
    assert checksum(client) == original
