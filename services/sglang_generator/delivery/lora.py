"""Mode ``lora``: adapters under immutable names; many live side by side, and nothing pauses.

``files``: the engine reads the adapter's folder. ``tensors``: the adapter travels in the request. That the engine
applies it, and does not serve the base model under its name, is shown by a probe whose log-probabilities must differ
from the base model's (unless the adapter adds nothing, as version 0's).

SGLang's ``expected_checksums`` are not sent: in 0.5.16 any use of them, right or wrong, ends the server (its worker
names an attribute that it has not).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from gristmill.errors import ArtifactError
from sglang_generator.delivery import calls
from sglang_generator.delivery.artifact import Packed, import_torch, is_null_adapter, pack_adapter
from sglang_generator.delivery.base import Delivery, Receipt, confirm
from sglang_generator.delivery.disk import folder_bytes
from sglang_generator.delivery.sharing import Shared
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.policy import Policy
from sglang_generator.wire import LoraReply, ModelList


class LoraDelivery(Delivery):
    """Adapters named ``{run}-v{version}``."""

    mode = "lora"
    exclusive = False

    def __init__(
        self, run_id: str, *, transfer: Literal["files", "tensors"] = "files", adopt: bool, timeout_s: float
    ) -> None:
        self._prefix = f"{run_id}-v"
        self._tensors = transfer == "tensors"
        self._adopt = adopt
        self._timeout_s = timeout_s
        self._packed: Shared[Packed] = Shared()

    async def begin(self, client: EngineClient) -> None:
        await super().begin(client)
        if self._tensors:
            await asyncio.to_thread(import_torch)

    async def clean(self, client: EngineClient, models: ModelList | None, wanted: Collection[Policy]) -> None:
        paths = {policy.adapter: str(policy.path) for policy in wanted}
        for card in models.data if models else ():
            adopted = self._adopt and card.root is not None and card.root == paths.get(card.id)
            if card.parent is not None and self._of_run(card.id) and not adopted:
                await self._unload(client, card.id)

    async def put(self, client: EngineClient, policy: Policy, pinned: str | None, trusted: bool) -> Receipt:
        if policy.adapter is None or policy.path is None:
            return Receipt(self.mode, first_token_s=await confirm(client, policy, pinned, self._timeout_s))
        started = time.monotonic()
        moved = await self._load(client, policy.adapter, policy.path, trusted=trusted)
        transferred = time.monotonic()
        await self._must_differ_from_base(client, policy.adapter, policy.path)
        verified = time.monotonic()
        return Receipt(
            self.mode,
            moved,
            transfer_s=transferred - started,
            verify_s=verified - transferred,
            first_token_s=await confirm(client, policy, pinned, self._timeout_s),
            verified="probe",
        )

    async def drop(self, client: EngineClient, policy: Policy) -> None:
        if policy.adapter is not None and policy.path is not None:
            await self._unload(client, policy.adapter)

    async def _load(self, client: EngineClient, name: str, path: Path, *, trusted: bool) -> int:
        """Bytes moved: 0 if the adapter is there already and may stay."""
        if self._tensors:
            packed = await self._pack(name, path)
            load = partial(calls.load_lora_from_tensors, client, _body(name, packed))
            stays, moved = trusted, packed.tensor_bytes
        else:
            load = partial(client.load_lora_adapter, name, str(path))
            stays, moved = trusted or self._adopt, None
        reply = await load()
        if _is_present(reply):
            if stays:
                return 0
            await self._unload(client, name)
            reply = await load()
        self._check(client, name, path, reply)
        return await asyncio.to_thread(folder_bytes, path) if moved is None else moved

    async def _pack(self, name: str, path: Path) -> Packed:
        try:
            return await self._packed.get(name, lambda: pack_adapter(path))
        except (ArtifactError, OSError) as error:
            raise _gone(name, error) from error

    async def _must_differ_from_base(self, client: EngineClient, name: str, path: Path) -> None:
        base, adapted = await calls.probe(client, None), await calls.probe(client, name)
        if base != adapted:
            return
        try:
            null = await asyncio.to_thread(is_null_adapter, path)
        except (ArtifactError, OSError) as error:
            raise _gone(name, error) from error
        if not null:
            raise EngineError(
                "adapter", f"{client.url} answers for {name} exactly as for its base model, so it does not apply {path}"
            )

    def _check(self, client: EngineClient, name: str, path: Path, reply: LoraReply) -> None:
        if not reply.success:
            raise EngineError("adapter", f"{client.url} did not load {name} from {path}: {reply.error_message}")
        if reply.loaded_adapters is not None and name not in reply.loaded_adapters:
            raise EngineError("adapter", f"{client.url} says it loaded {name}, but does not list it")

    def _of_run(self, adapter: str) -> bool:
        return adapter.startswith(self._prefix) and adapter.removeprefix(self._prefix).isdigit()

    async def _unload(self, client: EngineClient, name: str) -> None:
        reply = await client.unload_lora_adapter(name)
        if not reply.success and not _is_absent(reply.error_message):
            raise EngineError("adapter", f"{client.url} did not unload {name}: {reply.error_message}")


def _gone(name: str, error: Exception) -> EngineError:
    """It was verified before, so it has been removed since: nobody can load it any more."""
    return EngineError("adapter", f"{name} cannot be read any more: {error}")


def _body(name: str, packed: Packed) -> list[bytes]:
    """The request in parts: joined, a large adapter would be copied once more."""
    rest = {"lora_name": name, "config_dict": packed.config}
    return [msgspec.json.encode(rest)[:-1], b',"serialized_tensors":"', *packed.parts, b'"}']


def _is_present(reply: LoraReply) -> bool:
    return not reply.success and "already" in (reply.error_message or "")


def _is_absent(message: str | None) -> bool:
    lowered = (message or "").lower()
    return "does not exist" in lowered or "not loaded" in lowered or "not found" in lowered
