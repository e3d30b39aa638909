"""How a policy version gets onto one engine, and how the engine's word for it is checked.

Nothing here decides when; :mod:`sglang_generator.engine` does. Each ``put`` returns only after the engine has
sampled a token with the version: until then nothing may be stamped with it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol
from uuid import uuid4

from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError, RequestRefused
from sglang_generator.policy import Policy
from sglang_generator.wire import ModelList

_PROBE_IDS = (0, 1)
"""Prompt of the confirming request: ids that every vocabulary has."""


class Delivery(Protocol):
    """Puts versions onto engines."""

    exclusive: bool
    """Whether putting a version takes the one before away, so that its samples must finish first."""

    async def clean(self, client: EngineClient, models: ModelList | None, wanted: Collection[Policy]) -> None:
        """At first contact, remove versions of this run that an engine holds: nobody can tell what is in them.

        A run id may have been used before, and an engine outlives its line; a peer that still needs one of them
        finds it missing and loads it anew.
        """

    async def put(self, client: EngineClient, policy: Policy, pinned: str | None, trusted: bool) -> None:
        """Load a version and confirm it. ``trusted``: if it is there already, then by this run.

        Raises:
            EngineError: the engine does not serve it.
        """

    async def drop(self, client: EngineClient, policy: Policy) -> None:
        """Take a drained version off an engine."""


async def confirm(client: EngineClient, policy: Policy, pinned: str | None, timeout_s: float) -> None:
    """Sample one token with a version.

    Raises:
        EngineError: no valid response, or of another version.
    """
    try:
        await client.generate(
            rid=uuid4().hex,
            input_ids=_PROBE_IDS,
            params={"max_new_tokens": 1, "temperature": 1.0},
            expected=policy.expected(pinned),
            timeout_s=timeout_s,
        )
    except RequestRefused as error:
        raise EngineError("protocol", f"the confirming request was refused: {error}") from error


class LoraDelivery:
    """Adapters under immutable names; many live side by side."""

    exclusive = False

    def __init__(self, run_id: str, *, adopt: bool, timeout_s: float) -> None:
        self._prefix = f"{run_id}-v"
        self._adopt = adopt
        self._timeout_s = timeout_s

    async def clean(self, client: EngineClient, models: ModelList | None, wanted: Collection[Policy]) -> None:
        paths = {policy.adapter: str(policy.path) for policy in wanted}
        for card in models.data if models else ():
            adopted = self._adopt and card.root is not None and card.root == paths.get(card.id)
            if card.parent is not None and self._of_run(card.id) and not adopted:
                await self._unload(client, card.id)

    async def put(self, client: EngineClient, policy: Policy, pinned: str | None, trusted: bool) -> None:
        if policy.adapter is not None and policy.path is not None:
            await self._load(client, policy.adapter, str(policy.path), trusted=trusted)
        await confirm(client, policy, pinned, self._timeout_s)

    async def drop(self, client: EngineClient, policy: Policy) -> None:
        if policy.adapter is not None and policy.path is not None:
            await self._unload(client, policy.adapter)

    async def _load(self, client: EngineClient, name: str, path: str, *, trusted: bool) -> None:
        reply = await client.load_lora_adapter(name, path)
        if not reply.success and "already" in (reply.error_message or ""):
            if trusted or self._adopt:
                return
            await self._unload(client, name)
            reply = await client.load_lora_adapter(name, path)
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


class DiskDelivery:
    """Whole weights; an engine serves one version, and belongs to one generator."""

    exclusive = True

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def clean(self, client: EngineClient, models: ModelList | None, wanted: Collection[Policy]) -> None:
        """Nothing to remove: new weights replace the old ones."""

    async def put(self, client: EngineClient, policy: Policy, pinned: str | None, trusted: bool) -> None:
        if policy.path is not None and policy.weight_version is not None:
            info = await client.model_info()
            if not (trusted and info.weight_version == policy.weight_version):
                reply = await client.update_weights_from_disk(str(policy.path), policy.weight_version)
                if not reply.success:
                    raise EngineError("adapter", f"{client.url} did not load {policy.path}: {reply.message}")
                info = await client.model_info()
            if info.weight_version != policy.weight_version:
                raise EngineError(
                    "mismatch",
                    f"{client.url} reports weight_version {info.weight_version!r} after loading {policy.name!r}",
                )
        await confirm(client, policy, pinned, self._timeout_s)

    async def drop(self, client: EngineClient, policy: Policy) -> None:
        """Nothing to take away."""


def _is_absent(message: str | None) -> bool:
    lowered = (message or "").lower()
    return "does not exist" in lowered or "not loaded" in lowered or "not found" in lowered
