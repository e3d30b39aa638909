"""Seeded permutations that need no memory.

A :class:`Permutation` maps a position to an index by a Feistel network over the next power of four, walking on
until it falls inside the range. It is a bijection whatever its round function, and depends on nothing but the key
(BLAKE2b), so that an order can be resumed anywhere, on any machine.
"""

from __future__ import annotations

from hashlib import blake2b

_ROUNDS = 6


class Permutation:
    """A permutation of ``range(size)``, fixed by ``key``."""

    __slots__ = ("_half", "_key", "_mask", "size")

    def __init__(self, size: int, key: str) -> None:
        """``size`` must be at least 1."""
        if size < 1:
            raise ValueError(f"a permutation of {size} elements")
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        self._key = blake2b(key.encode(), digest_size=32).digest()

    def __getitem__(self, position: int) -> int:
        """Index at ``position``.

        Raises:
            IndexError: ``position`` is not in the range.
        """
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} of {self.size}")
        value = self._encrypt(position)
        while value >= self.size:
            value = self._encrypt(value)
        return value

    def _encrypt(self, value: int) -> int:
        left, right = value >> self._half, value & self._mask
        for turn in range(_ROUNDS):
            data = right.to_bytes(8, "little") + bytes((turn,))
            digest = blake2b(data, digest_size=8, key=self._key).digest()
            left, right = right, left ^ (int.from_bytes(digest, "little") & self._mask)
        return left << self._half | right
