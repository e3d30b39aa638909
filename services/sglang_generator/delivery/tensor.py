"""Mode ``tensor``: weights in requests, by ``/update_weights_from_tensor``.

``inline``: this process reads the verified artifact and sends its bytes, chunk by chunk; the engine may be on another
host. ``ipc``: the trainer's weight source lends handles of its GPU memory, and the engine copies from there; one host.
"""

from __future__ import annotations

import asyncio

from gristmill.errors import ArtifactError
from sglang_generator.delivery import calls
from sglang_generator.delivery.artifact import Chunk, Payload, import_torch, pack_chunk, plan_chunks
from sglang_generator.delivery.full import FullDelivery
from sglang_generator.delivery.sharing import Shared
from sglang_generator.delivery.weight_source import WeightSource
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.policy import Policy


class InlineDelivery(FullDelivery):
    """Reads the artifact and sends it."""

    mode = "tensor"

    def __init__(self, run_id: str, *, chunk_bytes: int, timeout_s: float) -> None:
        super().__init__(run_id, timeout_s=timeout_s)
        self._chunk_bytes = chunk_bytes
        self._packed: Shared[Payload] = Shared()

    async def begin(self, client: EngineClient) -> None:
        await super().begin(client)
        await asyncio.to_thread(import_torch)

    async def transfer(self, client: EngineClient, policy: Policy) -> int:
        if policy.path is None:
            raise EngineError("adapter", f"{policy.name}: there is no folder to send")
        try:
            chunks = await asyncio.to_thread(plan_chunks, policy.path, self._chunk_bytes)
            ranks = await self.ranks(client)
            await self.mark_loading(client, policy)
            await self._send(client, policy, chunks, ranks)
        except (ArtifactError, OSError) as error:
            # Verified a moment ago, so it is being removed: the version has been overtaken.
            raise EngineError("source", f"{policy.name} cannot be read any more: {error}") from error
        return sum(chunk.tensor_bytes for chunk in chunks)

    async def _send(self, client: EngineClient, policy: Policy, chunks: list[Chunk], ranks: int) -> None:
        """Chunk after chunk; while one is sent, the next is packed."""

        def pack(number: int) -> asyncio.Task[Payload]:
            chunk = chunks[number]
            return asyncio.create_task(self._packed.get((policy.name, number), lambda: pack_chunk(chunk)))

        ahead: asyncio.Task[Payload] | None = pack(0)
        try:
            for number in range(1, len(chunks) + 1):
                assert ahead is not None
                payload = await ahead
                last = number == len(chunks)
                ahead = None if last else pack(number)
                await calls.update_from_tensor(client, payload.parts, ranks, None, policy.name if last else None)
                del payload
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)


class IpcDelivery(FullDelivery):
    """Borrows the trainer's memory."""

    mode = "tensor"

    def __init__(self, run_id: str, source: WeightSource, *, timeout_s: float) -> None:
        super().__init__(run_id, timeout_s=timeout_s)
        self._source = source

    async def prepare(self, policy: Policy) -> None:
        if policy.announced:
            await self._source.manifest(policy)

    async def transfer(self, client: EngineClient, policy: Policy) -> int:
        manifest = await self._source.manifest(policy)
        ranks = await self.ranks(client)
        lease = await self._source.lend(policy)
        try:
            await self.mark_loading(client, policy)
            for number, payload in enumerate(lease.payloads, start=1):
                name = policy.name if number == len(lease.payloads) else None
                await calls.update_from_tensor(client, [payload.encode()], ranks, "flattened_bucket", name)
        finally:
            # Also when the delivery is cancelled: the trainer keeps what is lent in its GPU memory.
            await asyncio.shield(self._source.give_back(lease))
        return manifest.bytes

    async def close(self) -> None:
        await self._source.close()
