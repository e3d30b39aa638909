"""SGLang's endpoints for weights and for looking at them, one function each.

A reply with ``success: false`` is an :class:`EngineError` of kind ``adapter``: the engine does not hold the version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.wire import Checksum, LoraReply, Reply, ScoreReply

PROBE_IDS = tuple(range(16))
"""Prompt of a probe: ids that every vocabulary has, enough of them for weights to show."""

_BRIEF_S = 10.0
"""For clearing up what nobody needs any more."""


class _Shape(msgspec.Struct):
    tp_size: int = 1


async def update_from_disk(client: EngineClient, path: str, name: str) -> None:
    """Replace the weights by those of a folder that the engine reads; it waits for all requests in flight."""
    await _update(client, "/update_weights_from_disk", {"model_path": path, "weight_version": name})


async def update_from_tensor(
    client: EngineClient, payload: Sequence[bytes], ranks: int, load_format: str | None, name: str | None
) -> None:
    """Replace some of the weights by tensors: ``payload`` is their pickle in base64, in parts. With a ``name`` they are
    the last: it becomes the engine's ``weight_version``, and the caches of older weights are flushed."""
    rest = {"load_format": load_format, "flush_cache": name is not None, "weight_version": name}
    parts = [b'{"serialized_named_tensors":[']
    for rank in range(ranks):
        parts += [b',"' if rank else b'"', *payload, b'"']
    parts += [b"],", msgspec.json.encode(rest)[1:]]
    await _update(client, "/update_weights_from_tensor", parts)


async def update_from_distributed(client: EngineClient, body: Mapping[str, Any], name: str | None) -> None:
    """Receive one bucket of a broadcast. ``name`` as in :func:`update_from_tensor`."""
    rest = {"load_format": "flattened_bucket", "flush_cache": name is not None, "weight_version": name}
    await _update(client, "/update_weights_from_distributed", {**body, **rest})


async def set_version(client: EngineClient, name: str) -> None:
    """Rename what the engine serves, without touching its requests."""
    await _update(client, "/update_weight_version", {"new_version": name, "abort_all_requests": False})


async def init_group(client: EngineClient, body: Mapping[str, Any]) -> None:
    """Join a process group; answers when all have joined."""
    await _update(client, "/init_weights_update_group", dict(body))


async def destroy_group(client: EngineClient, group: str) -> None:
    """Leave a process group. A restarted engine does not know it, which is as good."""
    body = {"group_name": group}
    await client.call("POST", "/destroy_weights_update_group", Reply, body, timeout_s=_BRIEF_S, refusal=True)


async def load_lora_from_tensors(client: EngineClient, parts: Sequence[bytes]) -> LoraReply:
    """Load an adapter that travels in the request. SGLang asks for the ordinary key here, not for the admin's."""
    path = "/load_lora_adapter_from_tensors"
    return await client.call("POST", path, LoraReply, parts, refusal=True, admin=False)


async def tensor_parallel_size(client: EngineClient) -> int:
    """Ranks of the engine, each of which takes its part of every tensor."""
    info = await client.call("GET", "/server_info", _Shape, admin=False, absent=True)
    return 1 if info is None else info.tp_size


async def checksum(client: EngineClient) -> Checksum | None:
    """Checksums of all weights of the engine; None if it has no such endpoint."""
    body = {"action": "checksum"}
    found = await client.call("POST", "/weights_checker", Checksum, body, refusal=True, absent=True)
    if found is not None and (not found.success or found.per_engine_checksum is None):
        raise EngineError("protocol", f"{client.url}/weights_checker: no checksum: {found.message}")
    return found


async def probe(client: EngineClient, adapter: str | None) -> list[float]:
    """Log-probabilities of a fixed prompt: they tell weights apart.

    Raises:
        EngineError: no valid response, or of another adapter.
    """
    body: dict[str, Any] = {
        "rid": uuid4().hex,
        "input_ids": PROBE_IDS,
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    if adapter is not None:
        body["lora_path"] = adapter
    meta = (await client.call("POST", "/generate", ScoreReply, body, admin=False)).meta_info
    if meta.lora_path is not msgspec.UNSET and meta.lora_path != adapter:
        raise EngineError("mismatch", f"{client.url}: a probe of {adapter!r} was answered by {meta.lora_path!r}")
    scores = [entry[0] for entry in meta.input_token_logprobs if entry[0] is not None]
    if len(scores) < len(PROBE_IDS) - 1:
        raise EngineError("invalid", f"{client.url}: a probe gave {len(scores)} log-probabilities")
    return scores


async def _update(client: EngineClient, path: str, body: dict[str, Any] | Sequence[bytes]) -> None:
    reply = await client.call("POST", path, Reply, body, refusal=True)
    if not reply.success:
        raise EngineError("adapter", f"{client.url}{path} failed: {reply.message}")
