"""What the tests of the engine contract share: the engine under test, tolerances, and the calls they all make."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch

from support.engine import Client, Reference
from support.weights import Named, base64_pickle, bucket, checkpoint_tensors

PROMPT = [11, 42, 7, 99, 23, 54, 76, 31, 12, 88, 63, 17]
NEW = {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True}
CHUNK_BYTES = 128 << 20
"""Bytes of tensors in one inline update, as the generator sends them."""


@dataclass(frozen=True)
class Tolerance:
    """Largest difference of log-probabilities, in units of the logits: a temperature of 0.5 doubles it."""

    mean: float
    p99: float


TOLERANCES = {
    torch.float32: Tolerance(mean=1e-4, p99=1e-3),
    # bfloat16 has 8 bits of mantissa: logits of 16 to 32, usual for a language model, are rounded to steps of 0.125,
    # on both sides, after 30 layers whose kernels round in another order. A wrong temperature, a filtered
    # distribution or another adapter differ by several times as much, and the tests compare with those too.
    torch.bfloat16: Tolerance(mean=0.1, p99=0.6),
}


class Target:
    """A server that speaks SGLang's API, and what the suite may feed it.

    Args:
        url: its address.
        model: folder of the checkpoint that it serves, and of its tokenizer; both sides can read it.
        adapters: two adapter folders that the server can read.
        checkpoint: another checkpoint of the same shape that the server can read.
        dtype: type in which it computes.
        embedded: it is the embedded engine.
        headers: of every request.
        rank0: device of the trainer's end of a process group; None where there is none for it.
        backend: of process groups.
    """

    def __init__(
        self,
        url: str,
        model: Path,
        adapters: tuple[str, str],
        checkpoint: Path,
        dtype: torch.dtype,
        *,
        embedded: bool,
        headers: dict[str, str],
        rank0: str | None,
        backend: str,
    ) -> None:
        self.url = url
        self.model = model
        self.adapters = adapters
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.embedded = embedded
        self.headers = headers
        self.rank0 = rank0
        self.backend = backend
        self.tolerance = TOLERANCES[dtype]
        self._references: dict[tuple[Path, str | None], Reference] = {}
        self._tokenizer: Any = None

    def client(self) -> Client:
        """A new client."""
        return Client(self.url, headers=self.headers)

    def reference(self, adapter: str | None = None, model: Path | None = None) -> Reference:
        """A forward pass of transformers over the served checkpoint (or another one), in the engine's type."""
        key = (model or self.model, adapter)
        if key not in self._references:
            device = self.rank0 or "cuda" if torch.cuda.is_available() else "cpu"
            path = None if adapter is None else Path(adapter)
            self._references[key] = Reference(key[0], path, dtype=self.dtype, device=device)
        return self._references[key]

    @property
    def tokenizer(self) -> Any:
        """The model's own tokenizer."""
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self.model)
        return self._tokenizer


def values(answer: Any) -> list[float]:
    """Log-probabilities of an answer, after the checks that the generator makes of every one."""
    meta, ids = answer["meta_info"], answer["output_ids"]
    triples = meta["output_token_logprobs"]
    assert [triple[1] for triple in triples] == ids
    assert meta["completion_tokens"] == len(ids)
    assert all(triple[0] <= 1e-3 for triple in triples)
    return [triple[0] for triple in triples]


def finish(answer: Any) -> str:
    """Type of the finish reason."""
    found: str = answer["meta_info"]["finish_reason"]["type"]
    return found


def score(client: Client, prompt: Sequence[int], output: Sequence[int], lora: str | None = None) -> list[float]:
    """Raw log-probabilities of tokens after the prompt, computed in one pass over all of them."""
    body: dict[str, Any] = {"input_ids": [*prompt, *output], "sampling_params": {"max_new_tokens": 0}}
    if lora is not None:
        body["lora_path"] = lora
    status, scored = client.post("/generate", return_logprob=True, logprob_start_len=len(prompt) - 1, **body)
    assert status == 200, scored
    triples = scored["meta_info"]["input_token_logprobs"]
    assert triples[0][0] is None
    assert [triple[1] for triple in triples[1:]] == list(output)
    return [triple[0] for triple in triples[1:]]


def gap(one: Sequence[float], other: Sequence[float]) -> float:
    """Mean difference."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


def agree(one: Sequence[float], other: Sequence[float], tolerance: Tolerance, temperature: float = 1.0) -> None:
    """Assert that two lists of log-probabilities are the same numbers but for rounding."""
    apart = sorted(abs(a - b) * temperature for a, b in zip(one, other, strict=True))
    mean, p99 = sum(apart) / len(apart), apart[min(len(apart) - 1, round(0.99 * (len(apart) - 1)))]
    assert mean <= tolerance.mean, f"mean difference {mean:.5f} of {len(apart)} logprobs, p99 {p99:.5f}"
    assert p99 <= tolerance.p99, f"99th percentile {p99:.5f} of {len(apart)} differences, mean {mean:.5f}"


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


def fresh(kind: str = "contract") -> str:
    """A name that no other test uses."""
    return f"{kind}-{uuid4().hex}"


@contextmanager
def adapter(client: Client, path: str) -> Iterator[str]:
    """An adapter under a fresh name, unloaded afterwards."""
    with loaded(client, "/load_lora_adapter", lora_path=path) as name:
        yield name


@contextmanager
def loaded(client: Client, endpoint: str, **body: Any) -> Iterator[str]:
    """As :func:`adapter`, by either endpoint."""
    name = fresh()
    status, answer = client.post(endpoint, lora_name=name, **body)
    assert (status, answer["success"]) == (200, True), answer
    assert name in answer["loaded_adapters"]
    try:
        yield name
    finally:
        client.post("/unload_lora_adapter", lora_name=name)


def running(client: Client) -> int:
    """Requests that are being decoded."""
    loads = client.get("/v1/loads", include="core")[1]["loads"]
    return sum(load["num_running_reqs"] for load in loads)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def start(client: Client, pool: ThreadPoolExecutor, rid: str, **extra: Any) -> Future[Any]:
    """A long request; returns once one more is decoded than before, or the request has ended."""
    before = running(client)
    future = pool.submit(client.generate, PROMPT, rid=rid, **{**NEW, "max_new_tokens": 1500, **extra})
    wait_for(lambda: future.done() or running(client) > before, f"{rid} to run")
    return future


def version(client: Client) -> str:
    """Version of the base weights."""
    found: str = client.get("/model_info")[1]["weight_version"]
    return found


def checksum(client: Client) -> str:
    """Checksum of all base weights."""
    status, answer = client.post("/weights_checker", action="checksum")
    assert (status, answer["success"]) == (200, True), answer
    found: str = answer["per_engine_checksum"]
    return found


def cut(tensors: Sequence[Named], limit: int = CHUNK_BYTES) -> list[list[Named]]:
    """Chunks of at most ``limit`` bytes, at least two of them."""
    total = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
    limit = min(limit, -(-total // 2))
    parts: list[list[Named]] = [[]]
    size = 0
    for name, tensor in tensors:
        more = tensor.numel() * tensor.element_size()
        if parts[-1] and size + more > limit:
            parts.append([])
            size = 0
        parts[-1].append((name, tensor))
        size += more
    return parts


def from_disk(client: Client, folder: Path, name: str | None = None, **extra: Any) -> None:
    """An update that must succeed."""
    body: dict[str, Any] = {"model_path": str(folder), "flush_cache": True, **extra}
    if name is not None:
        body["weight_version"] = name
    status, answer = client.post("/update_weights_from_disk", **body)
    assert (status, answer["success"]) == (200, True), answer


def from_tensors(client: Client, folder: Path, name: str, *, flattened: bool) -> None:
    """The weights of a checkpoint in chunks, the version and the flush with the last one."""
    parts = cut(checkpoint_tensors(folder))
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        body: dict[str, Any] = {"flush_cache": last}
        if flattened:
            body["load_format"] = "flattened_bucket"
        if last:
            body["weight_version"] = name
        payload = base64_pickle(bucket(part) if flattened else part)
        status, answer = client.post("/update_weights_from_tensor", serialized_named_tensors=[payload], **body)
        assert (status, answer["success"]) == (200, True), answer


def need_embedded(target: Target, why: str) -> None:
    """Skip what is promised by the embedded engine alone."""
    if not target.embedded:
        pytest.skip(why)
