"""Mode ``nccl``: the trainer broadcasts its weights to an engine, by ``/update_weights_from_distributed``.

Each engine has a process group of its own with the trainer (rank 0), made when it is admitted: an engine that dies
costs its group and nothing else. Bucket by bucket, the trainer is told to send while the engine is told to receive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal
from uuid import uuid4

from sglang_generator.delivery import calls
from sglang_generator.delivery.full import FullDelivery
from sglang_generator.delivery.weight_source import WeightSource
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.policy import Policy

_JOIN_POLL_S = 0.05


class NcclDelivery(FullDelivery):
    """Broadcast from the trainer."""

    mode = "nccl"

    def __init__(
        self, run_id: str, source: WeightSource, *, backend: Literal["nccl", "gloo"], timeout_s: float
    ) -> None:
        super().__init__(run_id, timeout_s=timeout_s)
        self._run_id = run_id
        self._source = source
        self._backend = backend
        self._groups: dict[str, str] = {}

    async def begin(self, client: EngineClient) -> None:
        await super().begin(client)
        await self.leave(client)

    async def prepare(self, policy: Policy) -> None:
        if policy.announced:
            await self._source.manifest(policy)

    async def transfer(self, client: EngineClient, policy: Policy) -> int:
        manifest = await self._source.manifest(policy)
        group = await self._group(client)
        await self.mark_loading(client, policy)
        for number, bucket in enumerate(manifest.buckets):
            last = number == len(manifest.buckets) - 1
            body = {"names": bucket.names, "dtypes": bucket.dtypes, "shapes": bucket.shapes, "group_name": group}
            try:
                await both(
                    self._source.send(group, policy, number),
                    calls.update_from_distributed(client, body, policy.name if last else None),
                )
            except BaseException:
                # One side may be left waiting for the other: without the group it is told so.
                await asyncio.shield(self._source.close_group(group))
                raise
        return manifest.bytes

    async def leave(self, client: EngineClient) -> None:
        group = self._groups.pop(client.url, None)
        if group is not None:
            await self._destroy(client, group)

    async def close(self) -> None:
        await self._source.close()

    async def _group(self, client: EngineClient) -> str:
        if client.url in self._groups:
            return self._groups[client.url]
        group = f"{self._run_id}-{uuid4().hex}"
        world_size = 1 + await self.ranks(client)
        address = await self._source.open_group(group, world_size, self._backend)
        body = {
            "master_address": address.master_address,
            "master_port": address.master_port,
            "rank_offset": 1,
            "world_size": world_size,
            "group_name": group,
            "backend": self._backend,
        }
        try:
            await both(self._joined(group), calls.init_group(client, body))
        except BaseException:
            await asyncio.shield(self._source.close_group(group))
            raise
        self._groups[client.url] = group
        return group

    async def _joined(self, group: str) -> None:
        while True:
            found = await self._source.group(group)
            if found.state == "ready":
                return
            if found.state == "failed":
                raise EngineError("source", f"the trainer did not join group {group}: {found.error}")
            await asyncio.sleep(_JOIN_POLL_S)

    async def _destroy(self, client: EngineClient, group: str) -> None:
        await self._source.close_group(group)
        try:
            await calls.destroy_group(client, group)
        except EngineError:
            return  # an engine that does not answer has more to worry about; its admission will tell


async def both(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Run two halves of one exchange; when one fails the other is given up, and the first failure is raised."""
    tasks = [asyncio.create_task(one), asyncio.create_task(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in tasks if task.done() and task.exception() is not None]
        for task in failed or tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
