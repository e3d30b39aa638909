"""A deterministic server with SGLang's endpoints, and faults on demand.

An adapter (or weights folder) holds ``version.txt``; every token sampled with it is ``1000 + that number`` (999
for the bare model), so a test sees from the tokens alone which weights made a completion, whatever was stamped.

``python fake_engine.py PORT TOKENIZER LATENCY_S TOKENS`` serves from a process of its own, for benchmarks.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import pickle
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_server import FakeServer

BASE_TOKEN = 999
TENSOR_PATH = "__tensor__"
EMBEDDING = "model.embed_tokens.weight"


@dataclass
class Seen:
    """What the engine was asked; kept over restarts."""

    generates: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    updates: list[str] = field(default_factory=list)
    stamps: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    garbled: list[str] = field(default_factory=list)
    most_adapters: int = 0
    most_in_flight: int = 0
    paths: Counter[str] = field(default_factory=Counter)

    def samples(self) -> list[dict[str, Any]]:
        """Generate requests that are not one-token probes."""
        return [body for body in self.generates if body["input_ids"] != [0, 1]]


class FakeEngine(FakeServer):
    """One engine in the running event loop. ``faults`` maps a path to what happens to the next requests there.

    A fault is ``[kind, count]``; kinds: ``503``, ``500``, ``400``, ``401``, ``429``, ``drop`` (connection closed),
    ``hang``, ``garbage``, and for /generate: ``abort``, ``wrong_version``, ``wrong_adapter``, ``ids`` (a logprob's
    token differs), ``short`` (a logprob is missing), ``nan``, ``prompt`` (prompt token count differs), ``empty``.
    """

    def __init__(
        self, tokenizer: str, *, port: int = 0, latency_s: float = 0.0, tokens: int = 4, list_models: bool = True
    ) -> None:
        super().__init__(port)
        self.tokenizer = tokenizer
        self.latency_s = latency_s
        self.tokens = tokens
        self.list_models = list_models
        self.echo_adapter = True
        self.fault_text = "fault"
        self.seen = Seen()
        self.faults: dict[str, list[Any]] = {}
        self.adapters: dict[str, str] = {}
        self.tensor_adapters: dict[str, float] = {}
        self.unapplied: set[str] = set()
        """Adapters that are taken in and then ignored."""
        self.weight_version = "default"
        self.model_path = "base"
        self.in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.unload_gate = asyncio.Event()
        self.unload_gate.set()
        self.weights: dict[str, float] = {}
        """Value of each tensor that was pushed; empty for the model that the engine started with."""
        self.groups: dict[str, dict[str, Any]] = {}
        self.chunks = 0
        """Parts of weights received so far."""
        self.on_chunk: Callable[[int], Awaitable[None]] | None = None
        """Called with the number of each part before it is taken in."""
        self.deaf = False
        """Confirms updates and ignores them."""
        self.garbles = 0
        """Updates from now on that end with a wrong tensor."""
        self.checker = True
        self.channels: dict[str, asyncio.Queue[dict[str, float]]] = {}
        """Where broadcasts arrive, by group; a fake weight source puts them there."""
        self.info: dict[str, Any] = {"tp_size": 1, "internal_states": [{}]}
        self.load: dict[str, Any] | None = {}
        """Over what ``/v1/loads`` tells of the engine; None: it has no such endpoint."""

    async def start(self) -> None:
        """Listen; after :meth:`crash` on the same port, with nothing loaded."""
        self.adapters.clear()
        self.weights.clear()
        self.groups.clear()
        self.weight_version, self.model_path = "default", "base"
        await super().start()

    async def crash(self) -> None:
        """Die: every connection is cut, every request lost."""
        await super().crash()
        self.in_flight = 0
        self.idle.set()

    def _fault(self, path: str) -> str | None:
        fault = self.faults.get(path)
        if fault is None:
            return None
        fault[1] -= 1
        if not fault[1]:
            del self.faults[path]
        return str(fault[0])

    async def answer(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        self.seen.paths[path] += 1
        probe = path == "/generate" and body["sampling_params"]["max_new_tokens"] == 0
        if probe:
            return self._probe(body)
        if path == "/generate":
            self.seen.generates.append(body)
        fault = self._fault(path)
        if fault == "drop":
            return 0, b""
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "garbage":
            return 200, b"<html>"
        if fault is not None and fault.isdigit():
            return int(fault), {"error": {"message": f"{self.fault_text} {fault}"}}
        handler = getattr(self, "_" + path.strip("/").replace("/", "_"), None)
        if handler is None:
            return 404, {"detail": "Not Found"}
        result: tuple[int, Any] = await handler(body, fault)
        return result

    async def _health(self, _body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        return 200, {}

    async def _model_info(self, _body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        return 200, {
            "model_path": self.model_path,
            "tokenizer_path": self.tokenizer,
            "is_generation": True,
            "weight_version": self.weight_version,
        }

    async def _v1_models(self, _body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        if not self.list_models:
            return 404, {"detail": "Not Found"}
        base = {"id": "base", "root": "base", "parent": None, "max_model_len": 4096}
        cards = [{"id": n, "root": p, "parent": "base", "max_model_len": None} for n, p in self.adapters.items()]
        return 200, {"object": "list", "data": [base, *cards]}

    async def _abort_request(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        self.seen.aborted.append(body["rid"])
        return 200, {}

    async def _load_lora_adapter(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        name, path = body["lora_name"], body["lora_path"]
        if name in self.adapters:
            message = f"Failed to load LoRA adapter {name} because it is already loaded"
            return 400, {"success": False, "error_message": message}
        if not Path(path).is_dir():
            return 400, {"success": False, "error_message": f"no such path {path}"}
        self.adapters[name] = path
        self.seen.loads.append(name)
        self.seen.most_adapters = max(self.seen.most_adapters, len(self.adapters))
        return 200, {"success": True, "error_message": "", "loaded_adapters": dict(self.adapters)}

    async def _unload_lora_adapter(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        name = body["lora_name"]
        if name not in self.adapters:
            return 400, {"success": False, "error_message": f"LoRA with name {name} does not exist. Loaded LoRAs: []"}
        await self.unload_gate.wait()
        self.adapters.pop(name, None)
        self.seen.unloads.append(name)
        return 200, {"success": True, "error_message": "", "loaded_adapters": dict(self.adapters)}

    async def _load_lora_adapter_from_tensors(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        name = body["lora_name"]
        if name in self.adapters:
            message = f"Failed to load LoRA adapter {name} because it is already loaded"
            return 400, {"success": False, "error_message": message}
        tensors = _unpickle(body["serialized_tensors"])
        if body.get("expected_checksums") is not None:  # which end SGLang 0.5.16
            return 500, {"success": False, "error_message": "the server is gone"}
        if body["config_dict"]["peft_type"] != "LORA":
            return 400, {"success": False, "error_message": "not a LoRA adapter"}
        self.adapters[name] = TENSOR_PATH
        self.tensor_adapters[name] = next(float(v.flatten()[0]) for k, v in tensors.items() if "lora_B" in k)
        self.seen.loads.append(name)
        self.seen.most_adapters = max(self.seen.most_adapters, len(self.adapters))
        return 200, {"success": True, "error_message": None, "loaded_adapters": dict(self.adapters)}

    async def _update_weights_from_disk(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        await self.idle.wait()
        self.model_path, self.weight_version = body["model_path"], body["weight_version"]
        file = Path(body["model_path"]) / "version.txt"
        if file.is_file():
            if not self.deaf:
                self.weights.clear()
            self._take_in({EMBEDDING: float(file.read_text())})
        self._garble(body["weight_version"])
        self.seen.updates.append(body["weight_version"])
        return 200, {"success": True, "message": "", "num_paused_requests": 0}

    async def _update_weight_version(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        self.weight_version = body["new_version"]
        self.seen.stamps.append(body["new_version"])
        return 200, {"success": True, "message": "", "new_version": body["new_version"]}

    async def _update_weights_from_tensor(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        assert len(body["serialized_named_tensors"]) == self.info["tp_size"]
        payload = body["serialized_named_tensors"][0]
        if body["load_format"] == "flattened_bucket":
            values = json.loads(base64.b64decode(payload))  # a fake weight source's "handles"
        else:
            values = {name: float(tensor.flatten()[0]) for name, tensor in _unpickle(payload)}
        return await self._chunk(values, body)

    async def _init_weights_update_group(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        self.groups[body["group_name"]] = body
        self.seen.groups.append(body["group_name"])
        return 200, {"success": True, "message": ""}

    async def _destroy_weights_update_group(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        known = self.groups.pop(body["group_name"], None)
        return (200, {"success": True, "message": ""}) if known else (400, {"success": False, "message": "no group"})

    async def _update_weights_from_distributed(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        if body["group_name"] not in self.groups:
            return 400, {"success": False, "message": f"Group {body['group_name']} not in []"}
        assert body["load_format"] == "flattened_bucket"
        values = await self.channels[body["group_name"]].get()
        assert list(values) == body["names"]
        return await self._chunk(values, body)

    async def _chunk(self, values: dict[str, float], body: dict[str, Any]) -> tuple[int, Any]:
        self.chunks += 1
        if self.on_chunk is not None:
            await self.on_chunk(self.chunks)
        assert (body["weight_version"] is not None) == body["flush_cache"]
        await self.idle.wait()
        self._take_in(values)
        if body["weight_version"] is not None:
            self.weight_version = body["weight_version"]
            self._garble(body["weight_version"])
            self.seen.updates.append(body["weight_version"])
        return 200, {"success": True, "message": ""}

    def _take_in(self, values: dict[str, float]) -> None:
        if not self.deaf:
            self.weights.update(values)

    def _garble(self, name: str) -> None:
        if self.garbles:
            self.garbles -= 1
            self.weights["model.norm.weight"] = -1.0
            self.seen.garbled.append(name)

    async def _weights_checker(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        assert body == {"action": "checksum"}
        if not self.checker:
            return 404, {"detail": "Not Found"}
        value = hashlib.sha256(repr(sorted(self.weights.items())).encode()).hexdigest()
        ranks = [{"checksums": {EMBEDDING: value}, "per_gpu_checksum": value, "parallelism_info": {"tp_rank": 0}}]
        return 200, {"success": True, "message": "Success.", "ranks": ranks, "per_engine_checksum": value}

    async def _server_info(self, _body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        return 200, self.info

    async def _v1_loads(self, _body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        if self.load is None:
            return 404, {"detail": "Not Found"}
        load = {"dp_rank": 0, "num_running_reqs": self.in_flight, "num_waiting_reqs": 0, "token_usage": 0.1}
        return 200, {"timestamp": "", "version": "0", "loads": [load | self.load]}

    def _token(self, adapter: str | None) -> int:
        if adapter is None:
            return 1000 + int(self.weights[EMBEDDING]) if EMBEDDING in self.weights else BASE_TOKEN
        if self.adapters[adapter] == TENSOR_PATH:
            return 1000 + int(self.tensor_adapters[adapter])
        file = Path(self.adapters[adapter]) / "version.txt"
        return 1000 + int(file.read_text()) if file.is_file() else BASE_TOKEN

    def _probe(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Log-probabilities of the prompt: those of the base model where an adapter is null, or not applied."""
        adapter = body.get("lora_path")
        if adapter is not None and adapter not in self.adapters:
            return 400, {"error": {"message": f"The following requested LoRA adapters are not loaded: {adapter}"}}
        level = self._token(None) if adapter in (*self.unapplied, None) else self._token(adapter)
        triples = [[None, body["input_ids"][0], None], *([-level / 1000, one, None] for one in body["input_ids"][1:])]
        meta = {"id": body["rid"], "weight_version": self.weight_version, "input_token_logprobs": triples}
        if self.echo_adapter:
            meta["lora_path"] = adapter
        return 200, {"text": "", "output_ids": [], "meta_info": meta}

    async def _generate(self, body: dict[str, Any], fault: str | None) -> tuple[int, Any]:
        adapter = body.get("lora_path")
        if adapter is not None and adapter not in self.adapters:
            return 400, {"error": {"message": f"The following requested LoRA adapters are not loaded: {adapter}"}}
        token = self._token(adapter)
        self.in_flight += 1
        self.idle.clear()
        self.seen.most_in_flight = max(self.seen.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.latency_s)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()
        count = min(self.tokens, body["sampling_params"]["max_new_tokens"])
        ids = [token] * count
        seed = body["sampling_params"].get("sampling_seed") or 0
        triples: list[list[Any]] = [[-0.125 * (1 + (seed + i) % 7), token, None] for i in range(count)]
        meta: dict[str, Any] = {
            "id": body["rid"],
            "finish_reason": {"type": "length", "length": count},
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": count,
            "cached_tokens": 0,
            "weight_version": self.weight_version,
            "output_token_logprobs": triples,
        }
        if self.echo_adapter:
            meta["lora_path"] = adapter
        if fault == "abort":
            meta["finish_reason"] = {"type": "abort", "message": "aborted", "status_code": None}
        elif fault == "wrong_version":
            meta["weight_version"] = "other"
        elif fault == "wrong_adapter":
            meta["lora_path"] = "other-v1"
        elif fault == "ids":
            triples[-1][1] = token + 1
        elif fault == "short":
            triples.pop()
        elif fault == "nan":
            triples[0][0] = None
        elif fault == "prompt":
            meta["prompt_tokens"] += 1
        elif fault == "empty":
            ids, meta["completion_tokens"], meta["output_token_logprobs"] = [], 0, []
        return 200, {"text": " ".join(map(str, ids)), "output_ids": ids, "meta_info": meta}


def _unpickle(payload: str) -> Any:
    return pickle.loads(base64.b64decode(payload))


async def _main() -> None:
    engine = FakeEngine(sys.argv[2], port=int(sys.argv[1]), latency_s=float(sys.argv[3]), tokens=int(sys.argv[4]))
    async with engine:
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(_main())
