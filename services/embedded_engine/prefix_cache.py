"""Reuse of computed prefixes: between the requests of a group, and when prompt + partial comes back.

A source is a running request (its slot is copied) or a stored prefix of a finished one. Sources are found by
a chain of hashes over blocks of tokens; a hash only proposes, equality of the tokens decides. Prefixes never
cross adapters, and a change of weights drops all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from embedded_engine.model.kv_cache import KVCache, StoredPrefix
from embedded_engine.request import Generation

BLOCK = 8


@dataclass(eq=False)
class Source:
    """Something that holds the keys and values of ``tokens[:length]``."""

    adapter_uid: int
    tokens: Sequence[int]
    hashes: list[int]
    running: Generation | None = None
    stored: StoredPrefix | None = None
    stored_length: int = 0

    @property
    def length(self) -> int:
        """Leading tokens that can be copied."""
        return self.running.computed if self.running is not None else self.stored_length


@dataclass(eq=False)
class PrefixCache:
    """Index of prefixes over one KV cache.

    Args:
        cache: where prefixes are copied from and to.
        budget: tokens of finished prefixes kept; with 0 nothing is reused at all.
    """

    cache: KVCache
    budget: int
    stored_tokens: int = 0
    _index: dict[int, OrderedDict[Source, None]] = field(default_factory=dict)
    _stored: OrderedDict[Source, None] = field(default_factory=OrderedDict)
    _running: dict[Generation, Source] = field(default_factory=dict)

    def fill(self, request: Generation, limit: int) -> int:
        """Copy the longest known prefix of at most ``limit`` tokens into the request's slot; return its length."""
        source, length = self._match(request.adapter_uid, request.tokens, limit)
        if source is None:
            return 0
        if source.running is not None:
            self.cache.copy(source.running.slot, request.slot, length)
        elif source.stored is not None:
            self._stored.move_to_end(source)
            self.cache.restore(source.stored, request.slot, length)
        return length

    def add_running(self, request: Generation) -> None:
        """Offer what a running request has computed so far, and will compute."""
        if self.budget and request not in self._running:
            hashes = list(_hashes(request.adapter_uid, request.tokens))
            source = Source(request.adapter_uid, request.tokens, hashes, running=request)
            self._running[request] = source
            self._enter(source)

    def remove_running(self, request: Generation, keep: int) -> None:
        """Withdraw a request; store its first ``keep`` tokens unless they are known already."""
        source = self._running.pop(request, None)
        if source is None:
            return
        self._leave(source)
        if keep < BLOCK or keep > self.budget:
            return
        tokens = tuple(request.tokens[:keep])
        _, known = self._match(request.adapter_uid, tokens, keep, stored_only=True)
        if known == keep:
            return
        stored = Source(
            request.adapter_uid,
            tokens,
            list(_hashes(request.adapter_uid, tokens)),
            stored=self.cache.store(request.slot, keep),
            stored_length=keep,
        )
        self._stored[stored] = None
        self.stored_tokens += keep
        self._enter(stored)
        while self.stored_tokens > self.budget:
            self._drop(next(iter(self._stored)))

    def forget_adapter(self, uid: int) -> None:
        """Drop the stored prefixes of an adapter that is gone."""
        for source in [source for source in self._stored if source.adapter_uid == uid]:
            self._drop(source)

    def clear(self) -> None:
        """Drop everything, running requests' offers included."""
        self._index.clear()
        self._stored.clear()
        self._running.clear()
        self.stored_tokens = 0

    def _match(
        self, adapter_uid: int, tokens: Sequence[int], limit: int, *, stored_only: bool = False
    ) -> tuple[Source | None, int]:
        candidate: Source | None = None
        for value in _hashes(adapter_uid, tokens):
            holders = self._index.get(value)
            if not holders:
                break
            for source in reversed(holders):
                if not (stored_only and source.stored is None):
                    candidate = source
                    break
        if candidate is None or candidate.adapter_uid != adapter_uid:
            return None, 0
        length = _common(candidate.tokens, tokens, min(limit, candidate.length))
        return (candidate, length) if length >= BLOCK else (None, 0)

    def _enter(self, source: Source) -> None:
        for value in source.hashes:
            self._index.setdefault(value, OrderedDict())[source] = None

    def _leave(self, source: Source) -> None:
        for value in source.hashes:
            holders = self._index.get(value)
            if holders is not None:
                holders.pop(source, None)
                if not holders:
                    del self._index[value]

    def _drop(self, source: Source) -> None:
        del self._stored[source]
        self.stored_tokens -= source.stored_length
        self._leave(source)


def _hashes(adapter_uid: int, tokens: Sequence[int]) -> Iterator[int]:
    """Hash of each whole number of blocks from the start."""
    value = hash((adapter_uid, BLOCK))
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        value = hash((value, tuple(tokens[start : start + BLOCK])))
        yield value


def _common(left: Sequence[int], right: Sequence[int], limit: int) -> int:
    """Length of the common prefix, at most ``limit``."""
    limit = min(limit, len(left), len(right))
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if list(left[low:middle]) == list(right[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
