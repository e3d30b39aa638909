"""What the forward pass must know of a checkpoint, read from its config and refused where it would be wrong.

One family is supported: dense decoders with RMSNorm, rotary positions, grouped-query attention and a SwiGLU
MLP. A feature that the forward pass does not have (sliding window, rope variants, quantisation) is an error,
never an approximation.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from embedded_engine.errors import UnsupportedModel
from gristmill.startup import heavy_imports

ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
MAX_DEFAULT_CONTEXT = 32768


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Shapes and constants of one model."""

    path: Path
    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    tied: bool
    context_length: int
    inverse_frequencies: tuple[float, ...]
    eos_token_ids: frozenset[int]

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of KV cache that one token takes."""
        return 2 * self.layers * self.kv_size * int(dtype.itemsize)


def resolve_model(model_path: str) -> Path:
    """Folder of a checkpoint: itself, or a snapshot of a hub repository.

    Raises:
        UnsupportedModel: neither a folder nor a hub id that can be fetched.
    """
    folder = Path(model_path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.is_absolute() or model_path.startswith((".", "~")) or model_path.count("/") > 1:
        raise UnsupportedModel(f"{model_path}: no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
        return Path(snapshot_download(model_path, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UnsupportedModel(f"{model_path}: not a folder, and the hub does not give it: {error}") from error


def read_spec(folder: Path, context_length: int | None) -> ModelSpec:
    """Read ``config.json`` (and ``generation_config.json``).

    Raises:
        UnsupportedModel: an architecture or feature that the forward pass does not have.
    """
    with heavy_imports():
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise UnsupportedModel(f"{folder}: no config.json")
    try:
        config = AutoConfig.from_pretrained(str(folder))
    except (ValueError, OSError, StrictDataclassError) as error:
        raise UnsupportedModel(f"{folder}: config.json cannot be read: {error}") from error
    architecture = (getattr(config, "architectures", None) or ["unknown"])[0]
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{folder}: {architecture} is not supported by the embedded engine "
            f"({', '.join(sorted(ARCHITECTURES))} are); serve it with SGLang"
        )
    _refuse_features(folder, config, context_length)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    limit = int(config.max_position_embeddings)
    if context_length is not None and context_length > limit:
        raise UnsupportedModel(f"{folder}: context_length {context_length} is beyond the model's {limit}")
    return ModelSpec(
        path=folder,
        architecture=architecture,
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=head_dim,
        rms_eps=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
        context_length=context_length or min(limit, MAX_DEFAULT_CONTEXT),
        inverse_frequencies=_inverse_frequencies(folder, config, head_dim),
        eos_token_ids=_eos_token_ids(folder, config),
    )


def _refuse_features(folder: Path, config: Any, context_length: int | None) -> None:
    if getattr(config, "quantization_config", None):
        raise UnsupportedModel(f"{folder}: quantised checkpoints are not supported")
    if config.hidden_act != "silu":
        raise UnsupportedModel(f"{folder}: activation {config.hidden_act!r} is not supported, only silu")
    window = getattr(config, "sliding_window", None)
    if config.model_type != "mistral" and not getattr(config, "use_sliding_window", False):
        window = None
    if window and window < (context_length or config.max_position_embeddings):
        raise UnsupportedModel(
            f"{folder}: sliding window of {window} tokens is not supported; set context_length to at most that"
        )


def _inverse_frequencies(folder: Path, config: Any, head_dim: int) -> tuple[float, ...]:
    """Rotary frequencies [head_dim / 2] in radians per position."""
    rope: dict[str, Any] = dict(config.rope_parameters or {})
    kind = rope.get("rope_type", "default")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{folder}: partial rotary positions are not supported")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base = 1.0 / (float(rope.get("rope_theta", 10000.0)) ** exponents)
    if kind == "default":
        return tuple(base.tolist())
    if kind == "linear":
        return tuple((base / float(rope["factor"])).tolist())
    if kind == "llama3":
        return tuple(_llama3(base, rope).tolist())
    raise UnsupportedModel(f"{folder}: rotary positions of type {kind!r} are not supported (default, linear, llama3)")


def _llama3(base: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Llama 3's scaling: long wavelengths are stretched, short ones kept, those between blended."""
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    original, factor = float(rope["original_max_position_embeddings"]), float(rope["factor"])
    wavelength = 2 * math.pi / base
    stretched = torch.where(wavelength > original / low, base / factor, base)
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * stretched / factor + smooth * stretched
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(between, blended, stretched)


def _eos_token_ids(folder: Path, config: Any) -> frozenset[int]:
    found: set[int] = set()
    sources: list[Any] = [getattr(config, "eos_token_id", None)]
    generation = folder / "generation_config.json"
    if generation.is_file():
        sources.append(json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id"))
    for value in sources:
        if isinstance(value, int):
            found.add(value)
        elif isinstance(value, list):
            found.update(int(item) for item in value)
    return frozenset(found)
