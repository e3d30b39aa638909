"""One generation, from admission to its last token: what the scheduler works on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from embedded_engine.model.lora import Adapter
from embedded_engine.model.sampling import Draw

FinishReason = dict[str, Any]

_order = itertools.count()


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """Sampling parameters after checking."""

    draw: Draw
    max_new_tokens: int
    min_new_tokens: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    """Ids that end the completion, the model's own end tokens included; empty with ``ignore_eos``."""
    stop: tuple[str, ...] = ()
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    stream_interval: int = 1


@dataclass(eq=False, kw_only=True)
class Generation:
    """State of one request.

    The scheduler thread alone writes it after submission, and appends only to the lists, so the server thread
    may read a prefix of known length while decoding goes on.
    """

    rid: str
    prompt_ids: list[int]
    plan: SamplingPlan
    adapter: Adapter | None
    notify: Callable[[Generation], None]
    """Called on the scheduler thread at the end, and after each token when ``stream`` is set."""
    input_logprobs_from: int | None = None
    """First prompt position whose log-probability is wanted."""
    stream: bool = False
    priority: int = 0
    order: int = field(default_factory=lambda: next(_order))
    created: float = field(default_factory=time.perf_counter)
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    input_logprobs: list[float | None] = field(default_factory=list)
    cached_tokens: int = 0
    retractions: int = 0
    weight_version: str = ""
    """Version of the base weights at its end."""
    finish: FinishReason | None = None
    tokens: list[int] = field(init=False)
    """Prompt and output in one list."""
    slot: int = -1
    computed: int = 0
    """Leading tokens whose keys and values are in the cache."""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt_ids)

    def __lt__(self, other: Generation) -> bool:
        """Order of the waiting queue: higher priority first, then first come."""
        return (-self.priority, self.order) < (-other.priority, other.order)

    @property
    def adapter_uid(self) -> int:
        """Identity of its adapter, 0 for the base model."""
        return 0 if self.adapter is None else self.adapter.uid

    @property
    def reserved(self) -> int:
        """Tokens of cache that it may come to need."""
        return len(self.prompt_ids) + self.plan.max_new_tokens

    def append(self, token: int, logprob: float) -> None:
        """Add one sampled token."""
        self.output_logprobs.append(logprob)
        self.tokens.append(token)
        self.output_ids.append(token)


def abort_reason(message: str, status_code: int | None = None, err_type: str | None = None) -> FinishReason:
    """SGLang's finish reason of an aborted request."""
    return {"type": "abort", "message": message, "status_code": status_code, "err_type": err_type}
