"""What every way of delivering a policy version has in common: the interface, the receipt, and the confirmation.

Nothing here decides when; :mod:`sglang_generator.engine` does. Each ``put`` returns only after the engine's copy was
verified and the engine has sampled a token with it: until then nothing may be stamped with it.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from uuid import uuid4

from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError, RequestRefused
from sglang_generator.policy import Policy
from sglang_generator.wire import ModelList

CONFIRM_IDS = (0, 1)
"""Prompt of the confirming request: ids that every vocabulary has."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one delivery to one engine moved, and how long each part took."""

    mode: str
    moved: int = 0
    """Bytes of weights; 0 if the engine had them."""
    transfer_s: float = 0.0
    verify_s: float = 0.0
    first_token_s: float = 0.0
    verified: str = "stamp"
    """By what: ``checksum``, ``probe``, or nothing but the ``stamp`` of the confirming request."""
    checksum: str = ""


class Delivery:
    """Puts versions onto engines. One object serves all engines of a generator."""

    mode: str
    exclusive: bool
    """Whether putting a version takes the one before away, so that its samples must finish first."""

    async def begin(self, client: EngineClient) -> None:
        """An engine is being admitted, for the first time or again: it may have restarted."""

    async def clean(self, client: EngineClient, models: ModelList | None, wanted: Collection[Policy]) -> None:
        """At first contact, remove versions of this run that an engine holds: nobody can tell what is in them.

        A run id may have been used before, and an engine outlives its line; a peer that still needs one of them
        finds it missing and loads it anew.
        """

    async def prepare(self, policy: Policy) -> None:
        """Make sure that a version can be had, while the engine still serves the one before.

        Raises:
            EngineError: of kind ``source`` if not; the engine is not to blame.
        """

    async def put(self, client: EngineClient, policy: Policy, pinned: str | None, trusted: bool) -> Receipt:
        """Load a version, verify and confirm it. ``trusted``: if an adapter is there already, then by this run.

        Raises:
            EngineError: the engine does not serve it.
        """
        raise NotImplementedError

    async def drop(self, client: EngineClient, policy: Policy) -> None:
        """Take a drained version off an engine."""

    async def leave(self, client: EngineClient) -> None:
        """The generator stops: give back what it holds on an engine."""

    async def close(self) -> None:
        """Close connections of the delivery's own."""


async def confirm(client: EngineClient, policy: Policy, pinned: str | None, timeout_s: float) -> float:
    """Sample one token with a version; gives the seconds it took.

    Raises:
        EngineError: no valid response, or of another version.
    """
    started = time.monotonic()
    try:
        await client.generate(
            rid=uuid4().hex,
            input_ids=CONFIRM_IDS,
            params={"max_new_tokens": 1, "temperature": 1.0},
            expected=policy.expected(pinned),
            timeout_s=timeout_s,
        )
    except RequestRefused as error:
        raise EngineError("protocol", f"the confirming request was refused: {error}") from error
    return time.monotonic() - started
