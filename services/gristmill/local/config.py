"""Settings of the local runner."""

from __future__ import annotations

import shlex
from typing import Any, Literal

from pydantic import Field, field_validator

from gristmill.config import Section


def _words(value: Any) -> Any:
    """A text becomes the list of its words, as a shell would split it."""
    return tuple(shlex.split(value)) if isinstance(value, str) else value


class GpusConfig(Section):
    """Which GPUs the trainer and the engines get; see docs/placement.md."""

    trainer: tuple[str, ...] | None = None
    """GPU of the trainer, an index or UUID of `nvidia-smi -L`; by default the first that no engine is given."""
    engine: tuple[str, ...] | None = None
    """GPUs of the engines, as a list or `1,2`; by default all but the trainer's."""
    share: bool = False
    """Whether trainer and engines may be given the same GPU."""

    @field_validator("trainer", "engine", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, int | str) and not isinstance(value, bool):
            value = [item.strip() for item in str(value).split(",")]
        return tuple(str(item) for item in value) if isinstance(value, list | tuple) else value

    @field_validator("trainer", "engine")
    @classmethod
    def _named(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (not value or not all(value)):
            raise ValueError("name at least one GPU, as an index or UUID of nvidia-smi -L")
        return value


class SglangConfig(Section):
    """SGLang servers that the runner starts itself (`--engine sglang`)."""

    command: tuple[str, ...] | None = None
    """Command that starts a server, to which flags are appended: a list, or a text that is split as in a shell. By
    default this interpreter with `-m sglang.launch_server`. A wrapper script should end in `exec`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of the servers, on top of the runner's own: PYTHONPATH for an installation of their own, say."""
    args: tuple[str, ...] = ()
    """Further flags of every server, a list or a text; they come last, so they win over the runner's."""
    tp: int = Field(default=1, ge=1)
    """GPUs of one server (tensor parallelism); the engines' GPUs are dealt out in groups of so many."""
    mem_fraction: float | None = Field(default=None, gt=0, lt=1)
    """Share of a GPU's memory for weights and KV cache (SGLang's `--mem-fraction-static`). SGLang's own choice by
    default; 0.45 where trainer and engine share a GPU and `trainer.gpu_memory_fraction` is absent, too."""
    port_base: int | None = Field(default=None, ge=1, le=65000)
    """Port of the first server; the others follow it. Free ports by default."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds from its start until a server must be healthy."""
    hang_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds without an answer to a health check after which a server counts as hung and the run ends."""

    _split = field_validator("command", "args", mode="before")(_words)

    @field_validator("command")
    @classmethod
    def _some(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not value:
            raise ValueError("an empty command starts nothing; leave it out for this interpreter's SGLang")
        return value


class LocalConfig(Section):
    """The local runner (`gristmill up` and `gristmill demo`)."""

    engine: Literal["embedded", "sglang"] = "embedded"
    """Engine that the runner starts, unless `generator.engines` names running ones; `--engine sglang` sets it."""
    gpus: GpusConfig = GpusConfig()
    """Which GPUs trainer and engines get; `--gpus trainer=0 --gpus engine=1,2` sets it."""
    sglang: SglangConfig = SglangConfig()
    """How SGLang is started."""
    eval_problems: int = Field(default=100, ge=0)
    """Held-out problems that the demo samples before and after training; 0 leaves evaluation out."""
    eval_samples: int = Field(default=2, ge=1)
    """Completions sampled per held-out problem; pass@1 is the mean over all of them."""
    eval_source: str | None = None
    """Source of the held-out problems, by default the held-out split of the training sources. A file that is not
    trained on is not split."""
    warmup_problems: int = Field(default=4000, ge=1)
    """Problems that the tiny policy's supervised warm-up may draw from."""
    verifiers: tuple[Literal["math", "code"], ...] | None = None
    """Verifiers to start; those that the sources of problems need by default. ``code`` needs a Docker engine."""
    status_interval_s: float = Field(default=10.0, gt=0)
    """Seconds between status lines when the output is not a terminal."""
