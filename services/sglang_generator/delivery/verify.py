"""Did the weights land? Fingerprints of an engine's weights, and what they must be.

After a delivery the fingerprint must have changed, and be the one that every engine of the same shape, and every
delivery of the same version, gives. The exceptions are those in which equal weights are no mistake: the same version
was there before; two versions have the same artifact; version 0 is the base model that the engine started with.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from sglang_generator.delivery import calls
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.policy import Policy
from sglang_generator.wire import ModelInfo

LOADING = "-loading"
"""Ends the ``weight_version`` of an engine that holds parts of two versions."""

_VERSIONS_KEPT = 16


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """``value`` of an engine's weights. Only those of one ``method`` and ``shape`` may be compared.

    A ``probe`` is good for telling that something changed; its last digits depend on what else the engine computes.
    """

    method: Literal["checksum", "probe"]
    shape: str
    value: str


async def take_fingerprint(client: EngineClient) -> Fingerprint:
    """Checksum of an engine's weights, or a probe where there is none.

    Raises:
        EngineError: the engine gives neither.
    """
    found = await calls.checksum(client)
    if found is None:
        scores = await calls.probe(client, None)
        return Fingerprint("probe", client.url, repr(scores))
    # The names of the parameters are part of the shape: they differ by architecture and with --enable-lora.
    names = hashlib.sha256("\n".join(sorted(found.ranks[0].checksums)).encode()).hexdigest() if found.ranks else ""
    return Fingerprint("checksum", f"{len(found.ranks)}:{names}", found.per_engine_checksum or "")


@dataclass(frozen=True, slots=True)
class _Seen:
    name: str
    sha256: str


class Ledger:
    """Fingerprints seen, by engine and by version."""

    def __init__(self, run_id: str) -> None:
        self._prefix = f"{run_id}-v"
        self._versions: dict[str, dict[str, tuple[Fingerprint, str]]] = {}
        """Fingerprint and artifact digest by version's name, by shape."""
        self._before: dict[str, dict[Fingerprint, _Seen]] = {}
        """What an engine held before a delivery; kept until one succeeds, for a failed one may have changed the
        engine's stamp and nothing else."""
        self._measured: set[str] = set()
        self._holds: dict[str, str] = {}

    def doubt(self, url: str) -> None:
        """An engine may have restarted."""
        self._measured.discard(url)

    def holds(self, url: str, policy: Policy) -> bool:
        """Whether a version was the last that was verified on an engine."""
        return self._holds.get(url) == policy.name

    async def look(self, client: EngineClient, info: ModelInfo, policy: Policy) -> None:
        """Take the fingerprint of what a delivery of ``policy`` will replace, unless it is known."""
        if client.url in self._measured:
            return
        found = await take_fingerprint(client)
        stamp = info.weight_version or ""
        same = stamp in (policy.name, policy.name + LOADING) or info.model_path == str(policy.path)
        if not same:  # else it may hold this very version already
            seen = self._versions.get(found.shape, {}).get(stamp)
            self._before.setdefault(client.url, {})[found] = _Seen(stamp, seen[1] if seen else "")
        self._measured.add(client.url)

    def matches(self, policy: Policy, found: Fingerprint) -> bool:
        """Whether an engine that says it holds a version does."""
        known = self._versions.get(found.shape, {}).get(policy.name)
        return found.method == "probe" or (known is not None and known[0] == found)

    def check(self, url: str, policy: Policy, found: Fingerprint) -> None:
        """Judge the fingerprint after a delivery, and remember it.

        Raises:
            EngineError: it is not that of the version.
        """
        versions = self._versions.setdefault(found.shape, {})
        known = versions.get(policy.name) if found.method == "checksum" else None
        if known is not None and known[0] != found:
            raise EngineError(
                "mismatch",
                f"{url} has checksum {found.value[:16]} after {policy.name} was loaded; an earlier delivery of that "
                f"version gave {known[0].value[:16]}: the weights did not arrive whole",
            )
        if known is None:
            self._must_differ(url, policy, found)
        if found.method == "checksum":
            versions[policy.name] = (found, policy.sha256)
            for name in list(versions)[:-_VERSIONS_KEPT]:
                del versions[name]
        self._before[url] = {found: _Seen(policy.name, policy.sha256)}
        self._measured.add(url)
        self._holds[url] = policy.name

    def _must_differ(self, url: str, policy: Policy, found: Fingerprint) -> None:
        others = [
            _Seen(name, digest) for name, (other, digest) in self._versions[found.shape].items() if other == found
        ]
        before = self._before.get(url, {}).get(found)
        for seen in [*others, *([before] if before is not None else [])]:
            if seen.name == policy.name or seen.sha256 == policy.sha256:
                continue
            if policy.version == 0 and not seen.name.startswith(self._prefix):
                continue
            raise EngineError(
                "mismatch",
                f"{url} has the same weights ({found.method}) after {policy.name} was loaded as with "
                f"{seen.name or 'those before'}: the update did not land",
            )
