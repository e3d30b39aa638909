"""Whole weights: what the modes that replace them have in common. An engine serves one version at a time, and belongs
to one generator."""

from __future__ import annotations

import time

from sglang_generator.delivery import calls
from sglang_generator.delivery.base import Delivery, Receipt, confirm
from sglang_generator.delivery.verify import LOADING, Ledger, take_fingerprint
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.policy import Policy


class FullDelivery(Delivery):
    """Transfer by a subclass; verification and confirmation here."""

    exclusive = True

    def __init__(self, run_id: str, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._ledger = Ledger(run_id)
        self._ranks: dict[str, int] = {}

    async def begin(self, client: EngineClient) -> None:
        self._ledger.doubt(client.url)
        self._ranks.pop(client.url, None)

    async def put(self, client: EngineClient, policy: Policy, pinned: str | None, trusted: bool) -> Receipt:
        if not policy.announced:
            return Receipt(self.mode, first_token_s=await confirm(client, policy, pinned, self._timeout_s))
        started = time.monotonic()
        moved = 0
        looked_s = 0.0
        if not (trusted and await self._is_there(client, policy)):
            await self._ledger.look(client, await client.model_info(), policy)
            looked_s = time.monotonic() - started
            moved = await self.transfer(client, policy)
            stamp = (await client.model_info()).weight_version
            if stamp != policy.weight_version:
                raise EngineError(
                    "mismatch", f"{client.url} reports weight_version {stamp!r} after loading {policy.name!r}"
                )
        transferred = time.monotonic()
        found = await take_fingerprint(client)
        self._ledger.check(client.url, policy, found)
        verified = time.monotonic()
        return Receipt(
            self.mode,
            moved,
            transfer_s=transferred - started - looked_s,
            verify_s=looked_s + verified - transferred,
            first_token_s=await confirm(client, policy, pinned, self._timeout_s),
            verified=found.method,
            checksum=found.value if found.method == "checksum" else "",
        )

    async def transfer(self, client: EngineClient, policy: Policy) -> int:
        """Replace the engine's weights and set its ``weight_version``; gives the bytes moved.

        Raises:
            EngineError: it holds no whole version now.
        """
        raise NotImplementedError

    async def ranks(self, client: EngineClient) -> int:
        """Tensor-parallel ranks of an engine, asked once per admission."""
        if client.url not in self._ranks:
            self._ranks[client.url] = await calls.tensor_parallel_size(client)
        return self._ranks[client.url]

    async def mark_loading(self, client: EngineClient, policy: Policy) -> None:
        """Before the first part: from here on the engine holds no version, and says so if it is left like that."""
        await calls.set_version(client, policy.name + LOADING)

    async def _is_there(self, client: EngineClient, policy: Policy) -> bool:
        """Whether an engine that was out of service still has what was verified there."""
        if not self._ledger.holds(client.url, policy):
            return False
        if (await client.model_info()).weight_version != policy.weight_version:
            return False
        return self._ledger.matches(policy, await take_fingerprint(client))
