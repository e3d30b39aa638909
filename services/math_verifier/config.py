"""Settings of the math verifier: what counts as equal (:class:`MathPolicy`) and what a check may cost."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import Field

from gristmill.config import Section


class MathPolicy(Section):
    """What counts as the same answer where users differ. ``docs/math-verification.md`` explains each choice."""

    extraction: Literal["lenient", "marked", "boxed"] = "lenient"
    """Where an answer may stand. ``boxed``: only in ``\\boxed`` and its kin; ``marked``: also behind ``####``, in
    answer tags, after "the answer is" and in bold; ``lenient``: at last the final formula or number of the text."""
    unfinished_think: bool = False
    """Whether an answer inside a ``<think>`` block that never ends counts."""
    percent: Literal["either", "literal", "fraction"] = "either"
    """``25%`` equals ``25`` and ``0.25`` (``either``), only ``25`` (``literal``) or only ``0.25`` (``fraction``)."""
    units: Literal["known", "ignore", "strict"] = "known"
    """``known``: two known units must agree after conversion, other units are dropped; ``ignore``: all are dropped;
    ``strict``: both sides must have the same unit or none."""
    degrees: Literal["unit", "angle"] = "unit"
    """``unit``: 45 degrees equals 45; ``angle``: 45 degrees equals pi/4 and not 45."""
    list_order: Literal["ignore", "keep"] = "ignore"
    """Whether the order of a list without brackets counts. Sets have none."""
    tuple_order: Literal["keep", "ignore"] = "keep"
    """Whether the order of a tuple in round brackets counts. Vectors and intervals are always ordered."""
    ratio_scaling: bool = True
    """Whether ``6:4`` equals ``3:2``."""
    base_subscript: Literal["required", "optional"] = "required"
    """Whether ``4210`` may stand for ``4210_7``."""
    decimal_digits: int = Field(default=6, ge=0)
    """A decimal that rounds (or cuts) a value with no finite decimal correctly equals it from this many significant
    digits on; 0 turns that off."""
    decimal_tolerance: float = Field(default=0.0, ge=0, lt=1)
    """Relative difference up to which a decimal equals another number: with 0.01, ``33.3`` equals ``100/3``."""
    number_words: bool = True
    """Whether ``seven`` equals ``7``."""
    decimal_comma: bool = True
    """Whether ``3,14`` may be read as a decimal where it is no thousands group."""


class MathConfig(Section):
    """The ``math`` section."""

    policy: MathPolicy = MathPolicy()
    """What counts as the same answer."""
    pool: Literal["processes", "ray"] = "processes"
    """Where checks run: ``processes`` of this machine, or the actors of a ``ray`` cluster (extra ``math-ray``)."""
    workers: int = Field(default_factory=lambda: max(1, os.cpu_count() or 1), ge=1, le=512)
    """Worker processes or actors; one check at a time each. As many as this machine has CPUs unless set."""
    ray_address: str | None = None
    """The cluster: ``auto`` (the one that runs on this machine, or ``RAY_ADDRESS``), ``host:port``, or
    ``ray://host:port`` from a machine outside of it. A cluster of this process alone, on loopback, when absent."""
    ray_cpus: float = Field(default=1.0, ge=0)
    """Ray's logical CPUs that an actor takes of a cluster; a cluster of this process alone does not count them."""
    ray_start_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that an actor may take to come up, more where nodes are started on demand."""
    ray_runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's runtime environment of the actors, for nodes that lack Gristmill: ``{pip: ["gristmill[math]"]}``."""
    time_limit_s: float = Field(default=2.0, gt=0)
    """Wall-clock seconds of one check; then its worker is killed and the status is ``timeout``."""
    memory_limit_mb: int = Field(default=512, ge=192)
    """Address space of a worker in MiB; a check that wants more has status ``timeout``."""
    queue_size: int = Field(default=256, ge=1)
    """Checks that may wait for a worker before the caller is held back."""
    tasks_per_worker: int = Field(default=20_000, ge=1)
    """Checks after which a worker is replaced, so that caches never grow for ever."""
    concurrency: int = Field(default=16, ge=1)
    """Completions in work per partition."""
    reward_correct: float = 1.0
    """Reward of status ``correct``."""
    reward_wrong: float = 0.0
    """Reward of status ``wrong``."""
    unparsable_reward: float | None = 0.0
    """Reward of status ``unparsable``: no answer, or one that is no mathematics; null leaves such samples out of
    training."""
