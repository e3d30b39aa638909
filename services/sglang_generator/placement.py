"""Groups on their way to an engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from sglang_generator.engine import Engine
from sglang_generator.policy import Policy


@dataclass(frozen=True, slots=True)
class Placement:
    """A group's policy, and the engine it starts on; retries may move some of its samples."""

    policy: Policy
    engine: Engine


class Starter(Protocol):
    """A group that waits for an engine."""

    def start(self, placement: Placement) -> None:
        """Submit the group's requests; called in the moment of its placement, so it must neither wait nor raise."""

    def withdraw(self) -> None:
        """Take the requests back."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A group's place in the queue."""

    samples: int
    starter: Starter | None
    placed: asyncio.Future[Placement]

    def start(self, placement: Placement) -> None:
        """The group has an engine."""
        if self.starter is not None:
            self.starter.start(placement)
        self.placed.set_result(placement)

    def withdraw(self) -> None:
        """The group gives up in the moment of its placement."""
        if self.starter is not None:
            self.starter.withdraw()
