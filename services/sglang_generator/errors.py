"""What can go wrong with an engine, and what follows from each kind for its state."""

from __future__ import annotations

from typing import Literal, TypeAlias

from gristmill.errors import BadInput, InfrastructureError

Kind: TypeAlias = Literal[
    "connection",
    "timeout",
    "unavailable",
    "protocol",
    "invalid",
    "mismatch",
    "adapter",
    "auth",
    "aborted",
    "lost",
    "source",
]
"""``source``: the trainer's weight source failed, so an engine cannot get a version (and may hold half of it)."""
Effect: TypeAlias = Literal["resync", "count", "none"]

_EFFECTS: dict[Kind, Effect] = {
    "connection": "resync",
    "timeout": "count",
    "unavailable": "count",
    "protocol": "count",
    "invalid": "count",
    "mismatch": "resync",
    "adapter": "resync",
    "auth": "resync",
    "aborted": "none",
    "lost": "none",
    "source": "resync",
}


class EngineError(InfrastructureError):
    """An engine failed a request; another engine, or this one later, may serve it.

    ``resync`` takes the engine out of service at once, until its policies are confirmed anew (it may have
    restarted, or serve other weights); ``count`` counts for the circuit breaker; ``none`` says nothing about it.
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.effect: Effect = _EFFECTS[kind]


class PolicyGone(InfrastructureError):
    """No engine can serve a policy version any more, so a sample of it cannot be finished."""


class RequestRefused(BadInput):
    """An engine says that the request itself is wrong: no engine will serve it."""
