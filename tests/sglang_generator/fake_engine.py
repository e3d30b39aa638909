"""A deterministic server with SGLang's endpoints, and faults on demand.

An adapter (or weights folder) holds ``version.txt``; every token sampled with it is ``1000 + that number`` (999
for the bare model), so a test sees from the tokens alone which weights made a completion, whatever was stamped.

``python fake_engine.py PORT TOKENIZER LATENCY_S TOKENS`` serves from a process of its own, for benchmarks.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE_TOKEN = 999


@dataclass
class Seen:
    """What the engine was asked; kept over restarts."""

    generates: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    updates: list[str] = field(default_factory=list)
    most_adapters: int = 0
    most_in_flight: int = 0
    paths: Counter[str] = field(default_factory=Counter)

    def samples(self) -> list[dict[str, Any]]:
        """Generate requests that are not one-token probes."""
        return [body for body in self.generates if body["input_ids"] != [0, 1]]


class FakeEngine:
    """One engine in the running event loop. ``faults`` maps a path to what happens to the next requests there.

    A fault is ``[kind, count]``; kinds: ``503``, ``500``, ``400``, ``401``, ``429``, ``drop`` (connection closed),
    ``hang``, ``garbage``, and for /generate: ``abort``, ``wrong_version``, ``wrong_adapter``, ``ids`` (a logprob's
    token differs), ``short`` (a logprob is missing), ``nan``, ``prompt`` (prompt token count differs), ``empty``.
    """

    def __init__(
        self, tokenizer: str, *, port: int = 0, latency_s: float = 0.0, tokens: int = 4, list_models: bool = True
    ) -> None:
        self.tokenizer = tokenizer
        self.port = port
        self.latency_s = latency_s
        self.tokens = tokens
        self.list_models = list_models
        self.echo_adapter = True
        self.fault_text = "fault"
        self.seen = Seen()
        self.faults: dict[str, list[Any]] = {}
        self.adapters: dict[str, str] = {}
        self.weight_version = "default"
        self.model_path = "base"
        self.in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.unload_gate = asyncio.Event()
        self.unload_gate.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeEngine:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.crash()

    async def start(self) -> None:
        """Listen; after :meth:`crash` on the same port, with nothing loaded."""
        self.adapters.clear()
        self.weight_version, self.model_path = "default", "base"
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def crash(self) -> None:
        """Die: every connection is cut, every request lost."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.in_flight = 0
        self.idle.set()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                raw = await reader.readexactly(length)
                status, body = await self._answer(path.split("?")[0], json.loads(raw) if raw else {})
                if status == 0:
                    return
                payload = body if isinstance(body, bytes) else json.dumps(body).encode()
                head_out = (
                    f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
                )
                writer.write(head_out.encode() + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    def _fault(self, path: str) -> str | None:
        fault = self.faults.get(path)
        if fault is None:
            return None
        fault[1] -= 1
        if not fault[1]:
            del self.faults[path]
        return str(fault[0])

    async def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.seen.paths[path] += 1
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

    async def _update_weights_from_disk(self, body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        await self.idle.wait()
        self.model_path, self.weight_version = body["model_path"], body["weight_version"]
        self.seen.updates.append(body["weight_version"])
        return 200, {"success": True, "message": "", "num_paused_requests": 0}

    def _token(self, adapter: str | None) -> int:
        folder = self.adapters[adapter] if adapter is not None else self.model_path
        file = Path(folder) / "version.txt"
        return 1000 + int(file.read_text()) if file.is_file() else BASE_TOKEN

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


async def _main() -> None:
    engine = FakeEngine(sys.argv[2], port=int(sys.argv[1]), latency_s=float(sys.argv[3]), tokens=int(sys.argv[4]))
    async with engine:
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(_main())
