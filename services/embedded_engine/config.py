"""Settings of the embedded engine. Imports nothing heavy: the CLI reads this on every start."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from gristmill.config import Section


class EngineConfig(Section):
    """The embedded engine: an SGLang-compatible server for laptops and tests."""

    model_path: str | None = None
    """Folder (or hub id) of the base model: `config.json`, safetensors, tokenizer."""
    tokenizer_path: str | None = None
    """Folder (or hub id) of the tokenizer; the model's own when absent."""
    served_name: str | None = None
    """Model name in metrics; the model path when absent."""
    host: str = "127.0.0.1"
    """Address to listen on. The weight endpoints trust their callers: keep it on loopback or set `api_key`."""
    port: int = Field(default=30000, ge=0, le=65535)
    """Port to listen on; 0 picks a free one, which the ready line names."""
    api_key: SecretStr | None = None
    """When set, every endpoint but health and metrics demands `Authorization: Bearer <key>`."""
    device: str = "auto"
    """`auto` (CUDA when there is one), `cpu`, `cuda` or `cuda:N`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and cache; `auto` is float32 on CPU and bfloat16 on GPU."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the model; absent: 1 for models below 30 million parameters, else all cores."""
    seed: int | None = None
    """Seed of sampling without a `sampling_seed`; absent: taken from the system."""
    weight_version: str = "default"
    """Version reported until an update names another."""
    context_length: int | None = Field(default=None, ge=2)
    """Longest prompt plus completion in tokens; absent: the model's own limit, at most 32768."""
    max_running_requests: int = Field(default=32, ge=1, le=1024)
    """Requests decoded together."""
    max_queued_requests: int = Field(default=1024, ge=0)
    """Requests waiting beyond those; more are answered 503."""
    max_total_tokens: int | None = Field(default=None, ge=16)
    """Tokens of KV cache; absent: what a quarter of the free memory holds (60 % on GPU)."""
    max_prefill_tokens: int = Field(default=2048, ge=16)
    """Prompt tokens computed in one step; longer prompts are cut into several."""
    prefix_cache_tokens: int | None = Field(default=None, ge=0)
    """Tokens of finished prefixes kept for reuse, beyond those of running requests; absent: a quarter of
    `max_total_tokens`, at most 32768; 0 turns all reuse off."""
    max_loaded_loras: int = Field(default=8, ge=1)
    """Adapters held at once; loading one more unloads the least recently used that is not pinned."""
    max_lora_rank: int = Field(default=256, ge=1)
    """Adapters of a higher rank are refused."""
    update_timeout_s: float = Field(default=120.0, gt=0.0)
    """Seconds that a trainer may take to join a weight update group, or to broadcast one tensor."""
