"""KV cache: one slot per running request, slots dense and left-aligned, so a batch is a view.

Per layer, keys and values are [slots x kv_heads, capacity, head_dim]; position p of a request lies at index p
of its slot. The scheduler keeps running requests in slots 0..n-1. What lies beyond a request's length is
stale but finite; attention masks it. Allocation follows the requests: it stays within ``max_tokens`` (up to
rounding) as long as slots x longest reservation does, which admission sees to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from embedded_engine.model.spec import ModelSpec

GRAIN = 64


@dataclass(frozen=True)
class StoredPrefix:
    """Keys and values of one prefix, apart from any slot: per layer [kv_heads, length, head_dim]."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


class KVCache:
    """Keys and values of the running requests. Grows as needed; :meth:`shrink` gives memory back."""

    def __init__(
        self, spec: ModelSpec, dtype: torch.dtype, device: torch.device, max_slots: int, max_tokens: int
    ) -> None:
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self.max_slots = max_slots
        self.max_tokens = max_tokens
        self.slots = 0
        self.capacity = 0
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.shrink()

    def shrink(self) -> None:
        """Drop everything and start small. Only when no request runs."""
        self._allocate(min(4, self.max_slots), min(256, _rounded(self.spec.context_length)))

    def ensure(self, slots: int, length: int) -> None:
        """Make room for ``slots`` requests of ``length`` tokens, keeping what is there.

        Room to grow is added where ``max_tokens`` leaves some.
        """
        rows, capacity = max(slots, self.slots), max(length, self.capacity)
        if rows == self.slots and capacity == self.capacity:
            return
        if rows > self.slots:
            rows = min(max(rows, 2 * self.slots), self.max_slots)
        if capacity > self.capacity:
            capacity = max(_rounded(length), min(_rounded(capacity * 5 // 4), _rounded(self.spec.context_length)))
        if rows * capacity > self.max_tokens:
            rows, capacity = max(slots, self.slots), max(_rounded(length), self.capacity)
        self._resize(rows, capacity)

    def reserve(self, slots: int, length: int) -> None:
        """Before all of ``slots`` requests run, none of which will outgrow ``length``.

        Gives up room that only earlier, longer or more requests needed, where the cache could exceed
        ``max_tokens`` with it.
        """
        needed = _rounded(length)
        could_be = max(slots, self.slots) * max(needed, self.capacity)
        if could_be > self.max_tokens and (self.slots > slots or self.capacity > needed):
            self._resize(slots, min(self.capacity, needed))

    def _resize(self, slots: int, capacity: int) -> None:
        old = (self.keys, self.values)
        used = min(self.slots, slots) * self.spec.kv_heads
        kept = min(self.capacity, capacity)
        self._allocate(slots, capacity)
        for new_tensors, old_tensors in zip((self.keys, self.values), old, strict=True):
            for target, source in zip(new_tensors, old_tensors, strict=True):
                target[:used, :kept] = source[:used, :kept]

    def bytes(self) -> int:
        """Bytes allocated."""
        return self.slots * self.capacity * self.spec.kv_bytes_per_token(self.dtype)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of slot ``source`` to slot ``target``."""
        heads = self.spec.kv_heads
        a, b = source * heads, target * heads
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[b : b + heads, :length] = tensor[a : a + heads, :length]

    def clear(self, slot: int) -> None:
        """Zero a slot whose content may not be finite."""
        a = slot * self.spec.kv_heads
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[a : a + self.spec.kv_heads].zero_()

    def store(self, slot: int, length: int) -> StoredPrefix:
        """Copy of the first ``length`` positions of a slot."""
        a = slot * self.spec.kv_heads
        cut = slice(a, a + self.spec.kv_heads)
        return StoredPrefix(
            tuple(tensor[cut, :length].clone() for tensor in self.keys),
            tuple(tensor[cut, :length].clone() for tensor in self.values),
        )

    def restore(self, prefix: StoredPrefix, slot: int, length: int) -> None:
        """Put the first ``length`` positions of a stored prefix into a slot."""
        a = slot * self.spec.kv_heads
        cut = slice(a, a + self.spec.kv_heads)
        for tensors, stored in ((self.keys, prefix.keys), (self.values, prefix.values)):
            for tensor, source in zip(tensors, stored, strict=True):
                tensor[cut, :length] = source[:, :length]

    def _allocate(self, slots: int, capacity: int) -> None:
        shape = (slots * self.spec.kv_heads, capacity, self.spec.head_dim)
        self.slots, self.capacity = slots, capacity
        self.keys = [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(self.spec.layers)]
        self.values = [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(self.spec.layers)]


def _rounded(length: int) -> int:
    return -(-length // GRAIN) * GRAIN
