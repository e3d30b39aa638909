"""A model in memory: its spec, weights, cache and forward pass, on one device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from embedded_engine.config import EngineConfig
from embedded_engine.errors import UnsupportedModel
from embedded_engine.model.kv_cache import KVCache
from embedded_engine.model.spec import ModelSpec, read_spec, resolve_model
from embedded_engine.model.transformer import Transformer
from embedded_engine.model.weights import Weights, load_weights

SMALL_MODEL = 30_000_000
"""Parameters below which one CPU thread is faster than several."""


@dataclass
class Model:
    """What the scheduler drives."""

    spec: ModelSpec
    transformer: Transformer
    cache: KVCache
    threads: int
    weight_version: str
    """Written between steps only, so that it holds for whole steps."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.cache.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights and cache."""
        return self.cache.dtype

    def read_update(self, model_path: str) -> Weights:
        """Read weights of the same shape from another checkpoint, changing nothing yet.

        Raises:
            UnsupportedModel: another architecture or shape, or a broken checkpoint.
        """
        folder = resolve_model(model_path)
        spec = read_spec(folder, self.spec.context_length)
        for name in ("architecture", "vocab_size", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "tied",
                     "intermediate_size", "rms_eps", "inverse_frequencies"):  # fmt: skip
            mine, theirs = getattr(self.spec, name), getattr(spec, name)
            if mine != theirs:
                raise UnsupportedModel(f"{folder}: {name} is {theirs}, the running model's is {mine}")
        return load_weights(self.spec, folder, self.dtype, self.device)

    def swap(self, weights: Weights) -> None:
        """Put new weights in place. Scheduler thread only."""
        self.transformer.weights = weights


def load_model(config: EngineConfig) -> Model:
    """Read the model that ``config`` names.

    Raises:
        UnsupportedModel: no model named, or one that this engine cannot run.
    """
    if not config.model_path:
        raise UnsupportedModel("no model: give --model, or engine.model_path")
    device = _device(config.device)
    dtype = _dtype(config.dtype, device)
    folder = resolve_model(config.model_path)
    spec = read_spec(folder, config.context_length)
    weights = load_weights(spec, folder, dtype, device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = config.threads or (1 if weights.parameters < SMALL_MODEL else cores)
    torch.set_num_threads(threads)
    budget = _cache_budget(spec, dtype, device, config)
    cache = KVCache(spec, dtype, device, config.max_running_requests, budget)
    return Model(spec, Transformer(spec, weights, cache), cache, threads, config.weight_version)


def _cache_budget(spec: ModelSpec, dtype: torch.dtype, device: torch.device, config: EngineConfig) -> int:
    """Tokens of KV cache: as configured, or what a share of the memory left by the weights holds.

    Raises:
        UnsupportedModel: less than one request of full length.
    """
    most = config.max_running_requests * spec.context_length
    if config.max_total_tokens is not None:
        return min(config.max_total_tokens, most)
    on_gpu = device.type == "cuda"
    room = int(torch.cuda.mem_get_info(device)[0] * 0.6) if on_gpu else _available_memory() // 4
    budget = min(most, room // spec.kv_bytes_per_token(dtype))
    if budget < spec.context_length:
        raise UnsupportedModel(
            f"{spec.path}: free memory holds {budget} tokens of cache, less than one context of "
            f"{spec.context_length}; lower engine.context_length"
        )
    return budget


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UnsupportedModel(f"device {name!r}: {error}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedModel(f"device {name!r}: this PyTorch sees no CUDA device")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def _available_memory() -> int:
    """Bytes that this machine can still give, 4 GiB where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 << 30
