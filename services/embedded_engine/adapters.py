"""Adapters by name: loading, use counts, least-recently-used eviction, unloading after the last use.

Lives on the server's event loop. A request holds its adapter by reference, so an adapter that was unloaded
while requests use it stays in memory until they end, and no longer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from embedded_engine.errors import RefusedRequest
from embedded_engine.gate import Gate
from embedded_engine.model.lora import Adapter


@dataclass(eq=False)
class Loaded:
    """An adapter and the number of requests that use it."""

    adapter: Adapter
    users: int = 0


class AdapterRegistry:
    """Loaded adapters, oldest use first.

    Args:
        limit: most adapters at once.
        gate: wakes waiters when a request ends.
        forget: called once no request uses an unloaded adapter any more.
    """

    def __init__(self, limit: int, gate: Gate, forget: Callable[[Adapter], Awaitable[None]]) -> None:
        self._limit = limit
        self._gate = gate
        self._forget = forget
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()
        self._loading = asyncio.Lock()
        self._farewells: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._loaded)

    def names(self) -> dict[str, str]:
        """Name to path."""
        return {name: entry.adapter.path for name, entry in self._loaded.items()}

    def acquire(self, name: str) -> Loaded:
        """Use an adapter; release it afterwards.

        Raises:
            RefusedRequest: no such adapter.
        """
        entry = self._loaded.get(name)
        if entry is None:
            raise RefusedRequest(
                f"The following requested LoRA adapters are not loaded: {name}\n"
                f"Loaded adapters: {sorted(self._loaded)}."
            )
        self._loaded.move_to_end(name)
        entry.users += 1
        return entry

    def release(self, entry: Loaded) -> None:
        """A request no longer uses it."""
        entry.users -= 1
        self._gate.changed()

    async def load(self, name: str, read: Callable[[], Adapter]) -> None:
        """Read an adapter off the loop and register it; the least recently used one gives way at the limit.

        Raises:
            RefusedRequest: the name is taken, or every loaded adapter is pinned.
            UnsupportedModel: from ``read``.
        """
        async with self._loading:
            if name in self._loaded:
                raise RefusedRequest(f"Failed to load LoRA adapter {name} because it is already loaded")
            victim = None
            if len(self._loaded) >= self._limit:
                victim = next((n for n, entry in self._loaded.items() if not entry.adapter.pinned), None)
                if victim is None:
                    raise RefusedRequest(
                        f"Failed to load LoRA adapter {name}: {self._limit} adapters are loaded (max_loaded_loras) "
                        f"and all are pinned; unload one first"
                    )
            adapter = await asyncio.to_thread(read)
            if victim is not None and victim in self._loaded:
                task = asyncio.create_task(self._farewell(self._loaded.pop(victim)))
                self._farewells.add(task)
                task.add_done_callback(self._farewells.discard)
            self._loaded[name] = Loaded(adapter)

    async def unload(self, name: str) -> None:
        """Take the name away at once, then wait until no request uses the adapter.

        Raises:
            RefusedRequest: no such adapter.
        """
        entry = self._loaded.pop(name, None)
        if entry is None:
            raise RefusedRequest(f"LoRA with name {name} does not exist. Loaded LoRAs: {sorted(self._loaded)}.")
        await self._farewell(entry)

    async def _farewell(self, entry: Loaded) -> None:
        await self._gate.until(lambda: entry.users == 0)
        await self._forget(entry.adapter)
