"""KV cache: one slot per running request, slots dense and left-aligned, so a batch is a view.

Per layer, keys and values are [slots x kv_heads, capacity, head_dim]; position p of a request lies at index p
of its slot. The scheduler keeps running requests in slots 0..n-1. What lies beyond a request's length is
stale but finite; attention masks it.
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

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device, max_slots: int) -> None:
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self.max_slots = max_slots
        self.slots = 0
        self.capacity = 0
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.shrink()

    def shrink(self) -> None:
        """Drop everything and start small. Only when no request runs."""
        self._allocate(min(4, self.max_slots), min(256, self._round(self.spec.context_length)))

    def ensure(self, slots: int, length: int) -> None:
        """Make room for ``slots`` requests of ``length`` tokens, keeping what is there."""
        if slots <= self.slots and length <= self.capacity:
            return
        rows, capacity = self.slots, self.capacity
        while rows < slots:
            rows = min(rows * 2, self.max_slots)
        if length > capacity:
            limit = self._round(self.spec.context_length)
            capacity = min(max(self._round(length), self._round(capacity * 5 // 4)), max(limit, length))
        old_keys, old_values, old_rows, old_capacity = self.keys, self.values, self.slots, self.capacity
        self._allocate(rows, capacity)
        used = old_rows * self.spec.kv_heads
        for new, old in ((self.keys, old_keys), (self.values, old_values)):
            for target, source in zip(new, old, strict=True):
                target[:used, :old_capacity] = source

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

    @staticmethod
    def _round(length: int) -> int:
        return -(-length // GRAIN) * GRAIN

    def _allocate(self, slots: int, capacity: int) -> None:
        shape = (slots * self.spec.kv_heads, capacity, self.spec.head_dim)
        self.slots, self.capacity = slots, capacity
        self.keys = [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(self.spec.layers)]
        self.values = [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(self.spec.layers)]
