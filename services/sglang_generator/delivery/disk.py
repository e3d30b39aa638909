"""Mode ``disk``: the engine reads a folder by ``/update_weights_from_disk``."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from sglang_generator.delivery import calls
from sglang_generator.delivery.full import FullDelivery
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.policy import Policy


class DiskDelivery(FullDelivery):
    """Needs a file system that trainer, generator and engines share."""

    mode = "disk"

    async def transfer(self, client: EngineClient, policy: Policy) -> int:
        if policy.path is None:
            raise EngineError("adapter", f"{policy.name}: there is no folder to load it from")
        await calls.update_from_disk(client, str(policy.path), policy.name)
        return await asyncio.to_thread(folder_bytes, policy.path)


def folder_bytes(folder: Path) -> int:
    """Bytes of the weights in a folder; what is being removed meanwhile counts as gone."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total
