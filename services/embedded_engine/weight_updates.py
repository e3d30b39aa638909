"""Updates of the base weights: from disk, from the request, from a trainer's process group; and their checksum.

Every update is read and checked whole while requests go on, and swapped in between two steps once no request is
under way, or at once while the engine is paused. So a failed one has changed nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import torch

from embedded_engine.config import EngineConfig
from embedded_engine.errors import RefusedRequest
from embedded_engine.gate import Gate
from embedded_engine.model.parameters import Named, checksums, replaced
from embedded_engine.model.runner import Model
from embedded_engine.model.weights import Weights
from embedded_engine.scheduler import Scheduler
from embedded_engine.tensor_payload import bytes_of, dtype_of, read_named_tensors, unflatten
from embedded_engine.update_groups import UpdateGroups
from embedded_engine.weight_protocol import (
    InitGroupRequest,
    UpdateBody,
    UpdateDistributedRequest,
    UpdateTensorsRequest,
    UpdateVersionRequest,
    UpdateWeightsRequest,
)


class WeightUpdates:
    """Changes the weights of one model, one update at a time. Lives on the server's event loop.

    Args:
        config: the engine's settings.
        model: whose weights.
        scheduler: the thread that owns the model.
        gate: tells when no request is under way.
        abort_all: aborts every request.
    """

    def __init__(
        self, config: EngineConfig, model: Model, scheduler: Scheduler, gate: Gate, abort_all: Callable[[], None]
    ) -> None:
        self.model_path = config.model_path or ""
        self._model = model
        self._scheduler = scheduler
        self._gate = gate
        self._abort_all = abort_all
        self._groups = UpdateGroups(model.device, config.update_timeout_s)
        self._one = asyncio.Lock()

    async def from_disk(self, body: UpdateWeightsRequest) -> int:
        """Put another checkpoint of the same shape in place.

        Returns:
            Number of requests that were paused meanwhile.

        Raises:
            RefusedRequest: ``flush_cache`` while paused requests hold cache.
            UnsupportedModel: a checkpoint that does not fit.
        """
        paused = await self._apply(body, lambda: self._model.read_update(body.model_path))
        self.model_path = body.model_path
        return paused

    async def from_tensor(self, body: UpdateTensorsRequest) -> int:
        """Replace the parameters that came in the body; as :meth:`from_disk`."""
        payload = body.serialized_named_tensors[0]
        return await self._apply(body, lambda: self._replaced(read_named_tensors(payload, body.load_format)))

    async def from_distributed(self, body: UpdateDistributedRequest) -> int:
        """Replace the parameters that rank 0 of a group broadcasts now; as :meth:`from_disk`."""
        if not len(body.names) == len(body.dtypes) == len(body.shapes):
            raise RefusedRequest(
                f"{len(body.names)} names, {len(body.dtypes)} dtypes and {len(body.shapes)} shapes: one of each is "
                f"needed for every tensor"
            )
        if any(size < 0 for shape in body.shapes for size in shape):
            raise RefusedRequest("shapes must not be negative")
        return await self._apply(body, lambda: self._replaced(self._receive(body)))

    async def join_group(self, body: InitGroupRequest) -> None:
        """Join a trainer's group. Raises RefusedRequest or UnsupportedModel."""
        await asyncio.to_thread(
            self._groups.join,
            body.group_name,
            body.master_address,
            body.master_port,
            body.rank_offset,
            body.world_size,
            body.backend,
        )

    async def leave_group(self, name: str) -> None:
        """Leave a group. Raises RefusedRequest."""
        await asyncio.to_thread(self._groups.leave, name)

    async def rename(self, body: UpdateVersionRequest) -> None:
        """Rename the weights in force."""
        if body.abort_all_requests:
            self._abort_all()

        def change() -> None:
            self._model.weight_version = body.new_version

        await asyncio.wrap_future(self._scheduler.call(change))

    async def checksum(self) -> dict[str, Any]:
        """SGLang's answer to the action ``checksum`` of /weights_checker, for one rank."""
        found = await asyncio.to_thread(checksums, self._model.spec, self._model.transformer.weights)
        digest = hashlib.sha256()
        for name in sorted(found):
            digest.update(name.encode() + found[name].encode())
        rank = {"tp": (0, 1), "dp": (0, 1), "pp": (0, 1)}
        parallelism = {f"{kind}_{key}": value for kind, pair in rank.items() for key, value in
                       zip(("rank", "size"), pair, strict=True)}  # fmt: skip
        ranks = [
            {
                "checksums": found,
                "per_gpu_checksum": digest.hexdigest(),
                "parallelism_info": {**parallelism, "rank": 0, "size": 1},
            }
        ]
        return {
            "success": True,
            "message": "Success.",
            "ranks": ranks,
            "per_engine_checksum": hashlib.sha256(digest.hexdigest().encode()).hexdigest(),
        }

    async def _apply(self, body: UpdateBody, read: Callable[[], Weights]) -> int:
        if body.abort_all_requests:
            self._abort_all()
        async with self._one:
            self._check_flush(body)
            weights = await asyncio.to_thread(read)
            async with self._gate.updating():
                self._check_flush(body)
                paused = self._gate.inside
                change = self._scheduler.update_model(lambda model: _swap(model, weights, body.weight_version))
                await asyncio.wrap_future(change)
        return paused

    def _check_flush(self, body: UpdateBody) -> None:
        held = self._gate.inside if self._gate.paused else 0
        if body.flush_cache and held:
            raise RefusedRequest(
                f"flush_cache=true, but {held} paused requests hold cache: send flush_cache=false, or pause "
                f"with mode=abort"
            )

    def _replaced(self, tensors: list[Named]) -> Weights:
        return replaced(self._model.spec, self._model.transformer.weights, tensors)

    def _receive(self, body: UpdateDistributedRequest) -> list[Named]:
        dtypes = [dtype_of(name) for name in body.dtypes]
        if body.load_format == "flattened_bucket":
            total = sum(bytes_of(dtype, shape) for dtype, shape in zip(dtypes, body.shapes, strict=True))
            (flat,) = self._groups.receive(body.group_name, [(torch.uint8, [total])])
            return unflatten(flat, body.names, dtypes, body.shapes)
        found = self._groups.receive(body.group_name, list(zip(dtypes, body.shapes, strict=True)))
        return list(zip(body.names, found, strict=True))


def _swap(model: Model, weights: Weights, version: str | None) -> None:
    model.swap(weights)
    if version is not None:
        model.weight_version = version
