"""A policy version as engines serve it, and the rules for which record of the ``policies`` topic counts.

:class:`PolicyBook` is pure: it takes records and says what each one is. Within one run versions only grow; a
record that goes back, contradicts an earlier one, or belongs to another run changes nothing, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from gristmill.errors import ConfigError
from gristmill.messages import PolicyVersion
from sglang_generator.config import DeliveryMode, StaticPolicy
from sglang_generator.wire import Expected

Outcome: TypeAlias = Literal["version", "credit", "repeated", "other_run", "backwards", "conflict", "misnamed"]
"""``version``: a newer version; ``credit``: more credit for the newest; ``repeated``: nothing new. The rest is ignored,
and someone should know."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One version: ``adapter`` over the base weights, or whole weights that report ``weight_version``."""

    run_id: str
    version: int
    name: str
    """Immutable name: ``{run_id}-v{version}``, or empty for the bare model of a line without a trainer."""
    adapter: str | None
    """Adapter name for requests; None asks for the bare weights."""
    weight_version: str | None
    """What the engine must report; None means what it reported at first contact."""
    path: Path | None
    """Verified artifact; None when there is nothing to load, or the trainer hands the weights over itself."""
    sha256: str = ""
    """Announced digest of the artifact; empty for a policy that nobody announced."""

    @property
    def announced(self) -> bool:
        """Whether a trainer announced it, so that it must be brought onto the engines."""
        return bool(self.sha256)

    def expected(self, pinned: str | None) -> Expected:
        """What responses must carry on an engine that reported ``pinned`` at first contact."""
        return Expected(self.adapter, self.weight_version or pinned)


def static_policy(config: StaticPolicy, run_id: str) -> Policy:
    """The policy of a line without a trainer."""
    return Policy(run_id, config.version, config.adapter or "", config.adapter, config.weight_version, None)


def announced_policy(record: PolicyVersion, path: Path | None) -> Policy:
    """The policy of a record whose artifact was verified, or is not read here."""
    if record.kind == "lora":
        return Policy(record.run_id, record.version, record.name, record.name, None, path, record.sha256)
    return Policy(record.run_id, record.version, record.name, None, record.name, path, record.sha256)


class PolicyBook:
    """The newest version of one run, and its credit."""

    def __init__(self, run_id: str, delivery: DeliveryMode) -> None:
        self._run_id = run_id
        self._kind = "lora" if delivery == "lora" else "full"
        self._delivery = delivery
        self.newest: PolicyVersion | None = None

    def take(self, record: PolicyVersion) -> Outcome:
        """Judge one record and remember it if it counts.

        Raises:
            ConfigError: the run's trainer publishes another kind of weights than this generator delivers.
        """
        if record.run_id != self._run_id:
            return "other_run"
        if record.name != f"{record.run_id}-v{record.version}":
            return "misnamed"
        if record.kind != self._kind:
            raise ConfigError(
                f"policy {record.name} is of kind {record.kind!r}, but generator.delivery is {self._delivery!r}: "
                "set it to 'lora' for adapters (trainer.weights: lora), and to 'disk', 'tensor' or 'nccl' for whole "
                "weights (trainer.weights: full)"
            )
        newest = self.newest
        if newest is None or record.version > newest.version:
            self.newest = record
            return "version"
        if record.version < newest.version:
            return "backwards"
        if (record.uri, record.sha256) != (newest.uri, newest.sha256):
            return "conflict"
        if record.admit_until <= newest.admit_until:
            return "repeated"
        self.newest = record
        return "credit"
