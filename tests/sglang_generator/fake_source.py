"""A trainer's weight source for fake engines: its "handles" are JSON, its broadcasts go through queues."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from fake_engine import EMBEDDING, FakeEngine
from fake_server import FakeServer

KEY = "secret"


class FakeSource(FakeServer):
    """Holds the newest two versions of a run, each as three buckets of two tensors."""

    def __init__(self, engines: list[FakeEngine], run_id: str = "run") -> None:
        super().__init__()
        self.run_id = run_id
        self.held: list[int] = []
        self.leases: set[str] = set()
        self.groups: dict[str, dict[str, Any]] = {}
        self.closed: list[str] = []
        self.sent: list[tuple[int, int]] = []
        self.join_fails = False
        self.fail_send = -1
        """Number of the bucket that is not sent."""
        self.gate = asyncio.Event()
        self.gate.set()
        """Closed, sends and loans wait."""
        self.channels: dict[str, asyncio.Queue[dict[str, float]]] = {}
        for engine in engines:
            engine.channels = self.channels

    def hold(self, version: int) -> None:
        """A new version; the oldest gives way."""
        self.held = [*self.held, version][-2:]

    async def answer(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        if headers.get("authorization") != f"Bearer {KEY}":
            return 401, {"error": "the weight source needs its key"}
        match method, *path.strip("/").split("/"):
            case "GET", "weights", version:
                return self._held(int(version)) or (200, self._manifest(int(version)))
            case "POST", "weights", version, "ipc":
                await self.gate.wait()
                return self._held(int(version)) or (200, self._lend(int(version)))
            case "DELETE", "leases", lease:
                self.leases.discard(lease)
                return 200, {}
            case "POST", "groups":
                if body["group"] in self.groups:
                    return 409, {"error": "taken"}
                self.groups[body["group"]] = body
                self.channels[body["group"]] = asyncio.Queue()
                return 200, {"master_address": "127.0.0.1", "master_port": 1}
            case "GET", "groups", group if group in self.groups:
                failed = {"state": "failed", "error": "no route"}
                return 200, failed if self.join_fails else {"state": "ready", "error": None}
            case "POST", "groups", group, "send" if group in self.groups:
                await self.gate.wait()
                return await self._send(group, body["version"], body["bucket"])
            case "DELETE", "groups", group:
                self.closed.append(group)
                self.groups.pop(group, None)
                return 200, {}
        return 409, {"error": f"there is no {path}"}

    def _held(self, version: int) -> tuple[int, Any] | None:
        if version in self.held:
            return None
        return 404, {"error": f"version {version} is not held", "held": [{"version": each} for each in self.held]}

    def _values(self, version: int) -> list[dict[str, float]]:
        names = [[EMBEDDING, "model.a"], ["model.b", "model.c"], ["model.d", "model.norm.weight"]]
        return [dict.fromkeys(bucket, float(version)) for bucket in names]

    def _manifest(self, version: int) -> dict[str, Any]:
        buckets = [
            {"names": list(bucket), "dtypes": ["float32"] * 2, "shapes": [[1], [1]], "bytes": 8}
            for bucket in self._values(version)
        ]
        return {"version": version, "name": f"{self.run_id}-v{version}", "bytes": 24, "buckets": buckets}

    def _lend(self, version: int) -> dict[str, Any]:
        lease = f"lease-{version}-{len(self.sent)}"
        self.leases.add(lease)
        payloads = [base64.b64encode(json.dumps(bucket).encode()).decode() for bucket in self._values(version)]
        return {"lease": lease, "payloads": payloads}

    async def _send(self, group: str, version: int, bucket: int) -> tuple[int, Any]:
        if (missing := self._held(version)) is not None:
            return missing
        if bucket == self.fail_send:
            self.fail_send = -1
            return 409, {"error": "the broadcast failed"}
        self.sent.append((version, bucket))
        await self.channels[group].put(self._values(version)[bucket])
        return 200, {"seconds": 0.0}
