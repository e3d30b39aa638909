"""The parameters of a set of weights by name: what checkpoints and updates call them, and where they lie.

Projections that share an input are fused along their output, so a name stands for rows of a fused tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from embedded_engine.errors import UnsupportedModel
from embedded_engine.model.checksum import sha256
from embedded_engine.model.spec import ModelSpec
from embedded_engine.model.weights import LayerWeights, Weights

Named = tuple[str, torch.Tensor]

_LAYER: dict[str, tuple[str, tuple[str, ...]]] = {
    "input_norm": ("input_layernorm.weight", ()),
    "qkv": ("self_attn.qkv_proj.weight", ("q_proj", "k_proj", "v_proj")),
    "qkv_bias": ("self_attn.qkv_proj.bias", ("q_proj", "k_proj", "v_proj")),
    "query_norm": ("self_attn.q_norm.weight", ()),
    "key_norm": ("self_attn.k_norm.weight", ()),
    "output": ("self_attn.o_proj.weight", ()),
    "output_bias": ("self_attn.o_proj.bias", ()),
    "post_norm": ("post_attention_layernorm.weight", ()),
    "gate_up": ("mlp.gate_up_proj.weight", ("gate_proj", "up_proj")),
    "gate_up_bias": ("mlp.gate_up_proj.bias", ("gate_proj", "up_proj")),
    "down": ("mlp.down_proj.weight", ()),
    "down_bias": ("mlp.down_proj.bias", ()),
}
"""Field of a layer: its name with SGLang, and the projections that are fused in it, in order."""
_TOP = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}


@dataclass(frozen=True)
class Place:
    """Rows of one tensor of a set of weights; ``layer`` is None for those outside the layers."""

    layer: int | None
    field: str
    start: int
    rows: int


def fused_parameters(spec: ModelSpec, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor under SGLang's name for it; a tied head is the embedding and is left out."""
    for field, name in _TOP.items():
        if not (field == "head" and spec.tied):
            yield name, getattr(weights, field)
    for number, layer in enumerate(weights.layers):
        for field, (name, _) in _LAYER.items():
            tensor = getattr(layer, field)
            if tensor is not None:
                yield f"model.layers.{number}.{name}", tensor


def checksums(spec: ModelSpec, weights: Weights) -> dict[str, str]:
    """SHA-256 of each tensor's bytes, its first 16 hexadecimal digits, by SGLang's name."""
    return {name: sha256(tensor)[:16] for name, tensor in fused_parameters(spec, weights)}


def replaced(spec: ModelSpec, weights: Weights, tensors: Iterable[Named]) -> Weights:
    """A new set with some parameters replaced; the old one stays as it is.

    Args:
        spec: shape of the model.
        weights: what holds everywhere else.
        tensors: Hugging Face names and values; a tied ``lm_head.weight`` is ignored, as in checkpoints.

    Raises:
        UnsupportedModel: an unknown or repeated name, a wrong shape, or a value that is not finite.
    """
    places = _places(spec, weights)
    copies: dict[tuple[int | None, str], torch.Tensor] = {}
    seen: set[str] = set()
    with torch.inference_mode():
        for name, value in tensors:
            if name.endswith("rotary_emb.inv_freq") or (spec.tied and name == "lm_head.weight"):
                continue
            place = places.get(name)
            if place is None:
                raise UnsupportedModel(f"{name} is not a parameter of this {spec.architecture}")
            if name in seen:
                raise UnsupportedModel(f"{name} comes twice in one update")
            seen.add(name)
            holder = weights if place.layer is None else weights.layers[place.layer]
            old = getattr(holder, place.field)
            expected = (place.rows, *old.shape[1:])
            if tuple(value.shape) != expected:
                raise UnsupportedModel(f"{name} has shape {tuple(value.shape)}, expected {expected}")
            if not value.is_floating_point():
                raise UnsupportedModel(f"{name} has dtype {value.dtype}, which is no floating point type")
            if not bool(torch.isfinite(value).all()):
                raise UnsupportedModel(f"{name} holds values that are not finite")
            key = (place.layer, place.field)
            if key not in copies:
                copies[key] = old.clone()
            copies[key][place.start : place.start + place.rows].copy_(value)
        if not seen:
            raise UnsupportedModel("the update holds no parameter")
        return _with(spec, weights, copies)


def _with(spec: ModelSpec, weights: Weights, copies: dict[tuple[int | None, str], torch.Tensor]) -> Weights:
    layers = list(weights.layers)
    for number, layer in enumerate(layers):
        fields = {field: copies[number, field] for field in _LAYER if (number, field) in copies}
        if fields:
            layers[number] = replace(layer, **fields)
    top = {field: copies[None, field] for field in _TOP if (None, field) in copies}
    if spec.tied and "embedding" in top:
        top["head"] = top["embedding"]
    return replace(weights, layers=tuple(layers), **top)


def _places(spec: ModelSpec, weights: Weights) -> dict[str, Place]:
    """Hugging Face's name of every parameter, and where it lies."""
    places = {
        name: Place(None, field, 0, getattr(weights, field).shape[0])
        for field, name in _TOP.items()
        if not (field == "head" and spec.tied)
    }
    for number, layer in enumerate(weights.layers):
        places.update(_layer_places(spec, number, layer))
    return places


def _layer_places(spec: ModelSpec, number: int, layer: LayerWeights) -> dict[str, Place]:
    sizes = {
        "q_proj": spec.query_size,
        "k_proj": spec.kv_size,
        "v_proj": spec.kv_size,
        "gate_proj": spec.intermediate_size,
        "up_proj": spec.intermediate_size,
    }
    places: dict[str, Place] = {}
    for field, (name, parts) in _LAYER.items():
        tensor = getattr(layer, field)
        if tensor is None:
            continue
        prefix = f"model.layers.{number}."
        if not parts:
            places[prefix + name] = Place(number, field, 0, tensor.shape[0])
            continue
        block, _, kind = name.split(".")
        start = 0
        for part in parts:
            places[f"{prefix}{block}.{part}.{kind}"] = Place(number, field, start, sizes[part])
            start += sizes[part]
    return places
