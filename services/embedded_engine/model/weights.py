"""Checkpoint to weights: every tensor of a safetensors checkpoint read once, checked and fused.

A set of weights is immutable: an update builds a whole new set, so a failed update has changed nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from embedded_engine.errors import UnsupportedModel
from embedded_engine.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Projections that share an input are fused along their output."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class Weights:
    """All parameters of one model."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor
    parameters: int


class Checkpoint:
    """Tensors by name over the shards of one folder; remembers what was read.

    Raises:
        UnsupportedModel: no safetensors, or a file that cannot be read.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.folder = folder
        self.dtype = dtype
        self.device = device
        self.read = 0
        self._files = ExitStack()
        self._index: dict[str, Any] = {}
        self._unread: set[str] = set()
        try:
            for path in _shards(folder):
                handle = self._files.enter_context(safe_open(str(path), framework="pt"))
                self._index.update(dict.fromkeys(handle.keys(), handle))
        except (SafetensorError, OSError) as error:
            self._files.close()
            raise UnsupportedModel(f"{folder}: weights cannot be read: {error}") from error
        self._unread = set(self._index)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def get(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor ``name``, of exactly ``shape``, in this engine's type and on its device."""
        if name not in self._index:
            raise UnsupportedModel(f"{self.folder}: the checkpoint has no tensor {name}")
        try:
            tensor = self._index[name].get_tensor(name)
        except SafetensorError as error:
            raise UnsupportedModel(f"{self.folder}: {name} cannot be read: {error}") from error
        if tuple(tensor.shape) != shape:
            raise UnsupportedModel(f"{self.folder}: {name} has shape {tuple(tensor.shape)}, expected {shape}")
        if not bool(torch.isfinite(tensor).all()):
            raise UnsupportedModel(f"{self.folder}: {name} holds values that are not finite")
        self._unread.discard(name)
        self.read += tensor.numel()
        return tensor.to(device=self.device, dtype=self.dtype)

    def fused(self, names: Iterable[tuple[str, int]], *rest: int) -> torch.Tensor:
        """Tensors of shapes (size, *rest) joined along their first dimension."""
        return torch.cat([self.get(name, size, *rest) for name, size in names])

    def fused_bias(self, names: Iterable[tuple[str, int]]) -> torch.Tensor | None:
        """Bias vectors joined; None when there is none. Some but not all of them is an error."""
        parts = list(names)
        return self.fused(parts) if any(name in self for name, _ in parts) else None

    def unread(self) -> set[str]:
        """Names that nothing asked for."""
        return {name for name in self._unread if not name.endswith("rotary_emb.inv_freq")}


def load_weights(spec: ModelSpec, folder: Path, dtype: torch.dtype, device: torch.device) -> Weights:
    """Read the checkpoint in ``folder`` as a model of shape ``spec``.

    Raises:
        UnsupportedModel: missing, surplus, misshapen or non-finite tensors.
    """
    with torch.inference_mode(), Checkpoint(folder, dtype, device) as checkpoint:
        embedding = checkpoint.get("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
        layers = tuple(_layer(checkpoint, spec, f"model.layers.{number}.") for number in range(spec.layers))
        norm = checkpoint.get("model.norm.weight", spec.hidden_size)
        head = embedding
        if not spec.tied:
            head = checkpoint.get("lm_head.weight", spec.vocab_size, spec.hidden_size)
        surplus = checkpoint.unread() - ({"lm_head.weight"} if spec.tied else set())
        if surplus:
            shown = ", ".join(sorted(surplus)[:3])
            raise UnsupportedModel(f"{folder}: {len(surplus)} tensors that a {spec.architecture} has not: {shown}")
        return Weights(embedding=embedding, layers=layers, norm=norm, head=head, parameters=checkpoint.read)


def _layer(checkpoint: Checkpoint, spec: ModelSpec, prefix: str) -> LayerWeights:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    hidden = spec.hidden_size

    def named(base: str, kind: str, **sizes: int) -> list[tuple[str, int]]:
        return [(f"{base}{name}_proj.{kind}", size) for name, size in sizes.items()]

    qkv = {"q": spec.query_size, "k": spec.kv_size, "v": spec.kv_size}
    gate_up = {"gate": spec.intermediate_size, "up": spec.intermediate_size}
    normed = attention + "q_norm.weight" in checkpoint
    return LayerWeights(
        input_norm=checkpoint.get(prefix + "input_layernorm.weight", hidden),
        qkv=checkpoint.fused(named(attention, "weight", **qkv), hidden),
        qkv_bias=checkpoint.fused_bias(named(attention, "bias", **qkv)),
        query_norm=checkpoint.get(attention + "q_norm.weight", spec.head_dim) if normed else None,
        key_norm=checkpoint.get(attention + "k_norm.weight", spec.head_dim) if normed else None,
        output=checkpoint.fused(named(attention, "weight", o=hidden), spec.query_size),
        output_bias=checkpoint.fused_bias(named(attention, "bias", o=hidden)),
        post_norm=checkpoint.get(prefix + "post_attention_layernorm.weight", hidden),
        gate_up=checkpoint.fused(named(mlp, "weight", **gate_up), hidden),
        gate_up_bias=checkpoint.fused_bias(named(mlp, "bias", **gate_up)),
        down=checkpoint.fused(named(mlp, "weight", down=hidden), spec.intermediate_size),
        down_bias=checkpoint.fused_bias(named(mlp, "bias", down=hidden)),
    )


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [folder / name for name in sorted(names)]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    raise UnsupportedModel(f"{folder}: no model.safetensors (other weight formats are not read)")
