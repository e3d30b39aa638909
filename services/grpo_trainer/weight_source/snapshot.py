"""Published weights as flat byte buckets, and the shelf that holds the newest of them.

Invariants, asserted where they could break:

* A :class:`Snapshot` is immutable. Its bytes are those of the version's artifact: the same names, tied weights once,
  the same dtype. They are complete on the device before anybody can ask for them, so whoever reads them on another
  stream, or in another process, needs to wait for nothing.
* In a bucket the tensors lie one after another without gaps, wider types first, so that each is aligned to its type.
* The shelf holds the newest :data:`KEPT` versions, and besides them only versions that somebody has leased.
* What is leased is held: it is freed when its last lease ends, by release or by time.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from gristmill.errors import GristmillError
from grpo_trainer.tensorfile import saved_dtype

KEPT = 2
"""Newest versions that are held."""


class NotHeld(GristmillError):
    """The version is not on the shelf, or the lease has ended."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies in its bucket."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some tensors of a version, as one flat uint8 tensor."""

    flat: torch.Tensor
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        assert self.flat.dtype == torch.uint8
        assert self.flat.dim() == 1
        end = 0
        for entry in self.entries:
            assert entry.start == end, f"{entry.name} begins at {entry.start}, not at {end}"
            assert entry.start % entry.dtype.itemsize == 0, f"{entry.name} is not aligned"
            assert entry.end - entry.start == entry.shape.numel() * entry.dtype.itemsize
            end = entry.end
        assert end == self.flat.numel()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by name, as views of the bucket."""
        return {e.name: self.flat[e.start : e.end].view(e.dtype).view(e.shape) for e in self.entries}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights of one version."""

    version: int
    name: str
    buckets: tuple[Bucket, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(bucket.flat.numel() for bucket in self.buckets)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by name, as views."""
        return {name: tensor for bucket in self.buckets for name, tensor in bucket.tensors().items()}

    @classmethod
    def take(
        cls, version: int, name: str, weights: Mapping[str, torch.Tensor], dtype: torch.dtype, *, bucket_bytes: int
    ) -> Snapshot:
        """Copy ``weights``, each tensor once, cast to ``dtype`` where it is a floating-point one.

        The copy is made on the device of the weights and is complete on return.
        """
        buckets = []
        for group in divide(weights, dtype, bucket_bytes):
            device = weights[group[0].name].device
            flat = torch.empty(group[-1].end, dtype=torch.uint8, device=device)
            bucket = Bucket(flat, group)
            with torch.no_grad():
                for key, view in bucket.tensors().items():
                    view.copy_(weights[key])
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            buckets.append(bucket)
        return cls(version, name, tuple(buckets))


def divide(weights: Mapping[str, torch.Tensor], dtype: torch.dtype, bucket_bytes: int) -> Iterator[tuple[Entry, ...]]:
    """Lay tensors out in buckets of at most ``bucket_bytes``; a larger tensor has one of its own."""
    kinds = {name: saved_dtype(tensor, dtype) for name, tensor in weights.items()}
    group: list[Entry] = []
    for name in sorted(weights, key=lambda name: -kinds[name].itemsize):
        kind = kinds[name]
        size = weights[name].numel() * kind.itemsize
        start = group[-1].end if group else 0
        if group and start + size > bucket_bytes:
            yield tuple(group)
            group, start = [], 0
        group.append(Entry(name, kind, weights[name].shape, start, start + size))
    if group:
        yield tuple(group)


@dataclass(slots=True)
class _Lease:
    version: int
    ends_at: float


class Shelf:
    """The snapshots that are held. Threads may share it."""

    def __init__(
        self,
        *,
        lease_timeout_s: float,
        on_free: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            lease_timeout_s: a lease that nobody renews for so long ends by itself: its holder is gone.
            on_free: told of each version that is let go of, before its memory is.
        """
        self._lock = threading.Lock()
        self._held: dict[int, Snapshot] = {}
        self._leases: dict[str, _Lease] = {}
        self._lease_timeout_s = lease_timeout_s
        self._on_free = on_free
        self._clock = clock

    def held(self) -> list[Snapshot]:
        """What is held, oldest first."""
        with self._lock:
            self._tidy(KEPT)
            return [self._held[version] for version in sorted(self._held)]

    def make_room(self) -> None:
        """Free what gives way to the next version now, so that memory never holds one more than it must."""
        with self._lock:
            self._tidy(KEPT - 1)

    def hold(self, snapshot: Snapshot) -> None:
        """Put the newest version on the shelf. A version once held is never replaced."""
        with self._lock:
            assert all(version < snapshot.version for version in self._held), "versions only grow"
            self._held[snapshot.version] = snapshot
            self._tidy(KEPT)

    def get(self, version: int) -> Snapshot:
        """The snapshot of a version.

        Raises:
            NotHeld: it is not on the shelf.
        """
        with self._lock:
            self._tidy(KEPT)
            return self._get(version)

    def lease(self, version: int) -> str:
        """Keep a version until :meth:`release`.

        Raises:
            NotHeld: it is not on the shelf.
        """
        with self._lock:
            self._tidy(KEPT)
            self._get(version)
            lease = uuid.uuid4().hex
            self._leases[lease] = _Lease(version, self._clock() + self._lease_timeout_s)
            return lease

    def renew(self, lease: str) -> Snapshot:
        """The leased snapshot; its time begins anew.

        Raises:
            NotHeld: the lease has ended.
        """
        with self._lock:
            self._tidy(KEPT)
            found = self._leases.get(lease)
            if found is None:
                raise NotHeld(f"lease {lease} has ended: it was released, or not renewed in time")
            found.ends_at = self._clock() + self._lease_timeout_s
            return self._get(found.version)

    def release(self, lease: str) -> None:
        """End a lease; one that has ended already is none of anybody's business."""
        with self._lock:
            self._leases.pop(lease, None)
            self._tidy(KEPT)

    @contextmanager
    def leased(self, version: int) -> Iterator[Snapshot]:
        """Lease a version for the time of a block."""
        lease = self.lease(version)
        try:
            yield self.renew(lease)
        finally:
            self.release(lease)

    def clear(self) -> None:
        """Let go of everything: the trainer ends."""
        with self._lock:
            self._leases.clear()
            self._tidy(0)

    def _get(self, version: int) -> Snapshot:
        try:
            return self._held[version]
        except KeyError:
            held = ", ".join(str(number) for number in sorted(self._held)) or "none"
            raise NotHeld(f"version {version} is not held; held are: {held}") from None

    def _tidy(self, kept: int) -> None:
        now = self._clock()
        for lease in [key for key, value in self._leases.items() if value.ends_at <= now]:
            del self._leases[lease]
        leased = {lease.version for lease in self._leases.values()}
        versions = sorted(self._held)
        for version in versions[: max(0, len(versions) - kept)]:
            if version not in leased:
                self._on_free(version)
                del self._held[version]
        assert leased <= self._held.keys(), "what is leased is held"
        assert len(self._held.keys() - leased) <= KEPT, "no more than the newest are held without a lease"
