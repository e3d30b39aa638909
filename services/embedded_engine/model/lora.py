"""LoRA adapters: read from PEFT's files or tensors, applied per token, several of them in one batch.

The adapters of a batch are laid side by side: one product with all their A matrices, a mask that keeps for
each token the columns of its own adapter, one product with all their B matrices. A token without an adapter
keeps no column, so it gets exactly the base model. Scaling (alpha / r) is folded into B when an adapter is
read.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from embedded_engine.errors import UnsupportedModel
from embedded_engine.model.checksum import sha256
from embedded_engine.model.spec import ModelSpec

Group = Literal["qkv", "o", "gate_up", "down"]
GROUPS: dict[Group, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
_TENSOR = re.compile(
    r"^(?:base_model\.model\.)?model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])(?:\.default)?\.weight$"
)
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "use_rslora": (False, None),
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "alora_invocation_tokens": (None, []),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": ([], None),
    "layer_replication": (None,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, {}, []),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal", None),
}
"""Settings of PEFT that change the arithmetic, with the values that do not. Others are refused."""

IN_BODY = "__tensor__"
"""Path of an adapter that came in a request body, as SGLang calls it."""

_uids = itertools.count(1)


@dataclass(frozen=True)
class Delta:
    """One adapter at one fused projection: A transposed [in, r'] and scaled B transposed [r', out]."""

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter in memory. ``uid`` is never used again, whatever the name."""

    uid: int
    name: str
    path: str
    rank: int
    pinned: bool
    layers: tuple[dict[Group, Delta], ...]

    def bytes(self) -> int:
        """Bytes of its matrices."""
        return sum(
            tensor.numel() * tensor.dtype.itemsize
            for layer in self.layers
            for delta in layer.values()
            for tensor in (delta.a, delta.b)
        )


@dataclass(frozen=True)
class Placement:
    """What an adapter is to be called, and where and as what it is to be kept."""

    name: str
    dtype: torch.dtype
    device: torch.device
    max_rank: int
    pinned: bool = False


def load_adapter(spec: ModelSpec, place: Placement, path: str) -> Adapter:
    """Read an adapter folder as PEFT saves it.

    Raises:
        UnsupportedModel: missing files, settings that this engine does not apply, or tensors that do not fit.
    """
    folder = Path(path).expanduser()
    config = _read_config(folder)
    try:
        tensors = load_file(str(folder / "adapter_model.safetensors"))
    except (SafetensorError, OSError) as error:
        raise UnsupportedModel(f"{folder}: adapter_model.safetensors cannot be read: {error}") from error
    return build_adapter(spec, place, path, config, tensors)


def check_tensors(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, str]) -> None:
    """Compare the SHA-256 of every tensor's bytes.

    Raises:
        UnsupportedModel: one differs, is missing, or is not expected.
    """
    wrong = [name for name in tensors if name in expected and sha256(tensors[name]) != expected[name].lower()]
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    if wrong or missing or extra:
        raise UnsupportedModel(
            f"adapter sync MISMATCH of {len(expected)} expected: {len(wrong)} value-diff {wrong[:5]}, "
            f"{len(missing)} missing {missing[:5]}, {len(extra)} extra {extra[:5]}"
        )


def build_adapter(
    spec: ModelSpec, place: Placement, path: str, config: dict[str, Any], tensors: Mapping[str, torch.Tensor]
) -> Adapter:
    """An adapter of PEFT's configuration and tensors; ``path`` is what it says of its origin.

    Raises:
        UnsupportedModel: settings that this engine does not apply, or tensors that do not fit.
    """
    _check_config(path, config, place.max_rank)
    rank = int(config["r"])
    scaling = float(config["lora_alpha"]) / rank
    pairs = _pairs(path, spec, tensors, rank)
    with torch.inference_mode():
        layers = tuple(
            _fuse_layer(spec, {module: pair for (at, module), pair in pairs.items() if at == number}, scaling)
            for number in range(spec.layers)
        )
        placed = tuple(
            {
                group: Delta(
                    delta.a.to(device=place.device, dtype=place.dtype).contiguous(),
                    delta.b.to(device=place.device, dtype=place.dtype).contiguous(),
                )
                for group, delta in layer.items()
            }
            for layer in layers
        )
    return Adapter(next(_uids), place.name, path, rank, place.pinned, placed)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise UnsupportedModel(f"{folder}: adapter_config.json cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise UnsupportedModel(f"{folder}: adapter_config.json is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UnsupportedModel(f"{folder}: adapter_config.json is not an object")
    return config


def _check_config(source: str, config: dict[str, Any], max_rank: int) -> None:
    if config.get("peft_type") != "LORA":
        raise UnsupportedModel(f"{source}: peft_type {config.get('peft_type')!r} is not supported, only LORA")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise UnsupportedModel(f"{source}: r={rank!r} and lora_alpha={alpha!r} are not a rank and a scale")
    if rank > max_rank:
        raise UnsupportedModel(f"{source}: rank {rank} is above max_lora_rank {max_rank}")
    for key, neutral in _NEUTRAL.items():
        if key in config and config[key] not in neutral:
            raise UnsupportedModel(f"{source}: {key}={config[key]!r} is not supported by the embedded engine")


def _pairs(
    source: str, spec: ModelSpec, tensors: Mapping[str, torch.Tensor], rank: int
) -> dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]:
    """(layer, module) to its checked (A [r, in], B [out, r])."""
    halves: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    sizes = _module_sizes(spec)
    for name, tensor in tensors.items():
        match = _TENSOR.match(name)
        if match is None or match[2] not in sizes or int(match[1]) >= spec.layers:
            raise UnsupportedModel(
                f"{source}: tensor {name} is not a LoRA matrix of this model "
                f"(targets may be {', '.join(sizes)}; {spec.layers} layers)"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise UnsupportedModel(f"{source}: {name} holds values that are not finite")
        inputs, outputs = sizes[match[2]]
        expected = (rank, inputs) if match[3] == "A" else (outputs, rank)
        if tuple(tensor.shape) != expected:
            raise UnsupportedModel(f"{source}: {name} has shape {tuple(tensor.shape)}, expected {expected}")
        halves.setdefault((int(match[1]), match[2]), {})[match[3]] = tensor
    if not halves:
        raise UnsupportedModel(f"{source}: the adapter holds no tensor")
    for (layer, module), pair in halves.items():
        if set(pair) != {"A", "B"}:
            raise UnsupportedModel(f"{source}: layer {layer} {module} has only one of lora_A and lora_B")
    return {key: (pair["A"].cpu(), pair["B"].cpu()) for key, pair in halves.items()}


def _module_sizes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """Module to (inputs, outputs)."""
    return {
        "q_proj": (spec.hidden_size, spec.query_size),
        "k_proj": (spec.hidden_size, spec.kv_size),
        "v_proj": (spec.hidden_size, spec.kv_size),
        "o_proj": (spec.query_size, spec.hidden_size),
        "gate_proj": (spec.hidden_size, spec.intermediate_size),
        "up_proj": (spec.hidden_size, spec.intermediate_size),
        "down_proj": (spec.intermediate_size, spec.hidden_size),
    }


def _fuse_layer(
    spec: ModelSpec, pairs: dict[str, tuple[torch.Tensor, torch.Tensor]], scaling: float
) -> dict[Group, Delta]:
    """Deltas of one layer: the A's of a fused projection side by side, its B's in their own output range."""
    sizes = _module_sizes(spec)
    fused: dict[Group, Delta] = {}
    for group, modules in GROUPS.items():
        present = [module for module in modules if module in pairs]
        if not present:
            continue
        width = sum(sizes[module][1] for module in modules)
        blocks = []
        offset = 0
        for module in modules:
            outputs = sizes[module][1]
            if module in pairs:
                b = pairs[module][1].float() * scaling
                block = torch.zeros(b.shape[1], width)
                block[:, offset : offset + outputs] = b.T
                blocks.append(block)
            offset += outputs
        fused[group] = Delta(torch.cat([pairs[module][0].float().T for module in present], dim=1), torch.cat(blocks))
    return fused


class AdapterStack:
    """A set of distinct adapters laid side by side, ready for any batch that uses only these."""

    def __init__(self, adapters: Sequence[Adapter], layers: int) -> None:
        self.adapters = tuple(adapters)
        self._deltas: list[dict[Group, tuple[Delta, tuple[int, ...]]]] = []
        for number in range(layers):
            joined: dict[Group, tuple[Delta, tuple[int, ...]]] = {}
            for group in GROUPS:
                parts = [adapter.layers[number].get(group) for adapter in self.adapters]
                found = [part for part in parts if part is not None]
                if not found:
                    continue
                delta = found[0]
                if len(found) > 1:
                    delta = Delta(torch.cat([p.a for p in found], dim=1), torch.cat([p.b for p in found]))
                joined[group] = (delta, tuple(0 if part is None else part.a.shape[1] for part in parts))
            self._deltas.append(joined)

    def get(self, layer: int, group: Group) -> tuple[Delta, tuple[int, ...]] | None:
        """Joined matrices and the columns of each adapter, or None when no adapter touches the projection."""
        return self._deltas[layer].get(group)


class BatchAdapters:
    """An :class:`AdapterStack` bound to the tokens of one forward pass.

    Args:
        stack: the adapters in use.
        owners: for each token the index of its adapter in the stack, -1 for none; None when every token uses
            the only adapter of the stack.
        device: the model's device.
    """

    def __init__(self, stack: AdapterStack, owners: Sequence[int] | None, device: torch.device) -> None:
        self._stack = stack
        self._owners = None if owners is None else torch.tensor(owners, device=device)
        self._masks: dict[tuple[int, ...], torch.Tensor] = {}

    def add(self, layer: int, group: Group, inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """``outputs`` plus each token's delta: inputs [tokens, in], outputs [tokens, out]."""
        found = self._stack.get(layer, group)
        if found is None:
            return outputs
        delta, columns = found
        low = inputs @ delta.a
        if self._owners is not None:
            low = low * self._mask(columns, low.dtype)
        return torch.addmm(outputs, low, delta.b)

    def _mask(self, columns: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """[tokens, all columns], 1 where the column is of the token's own adapter."""
        mask = self._masks.get(columns)
        if mask is None:
            assert self._owners is not None
            owner = [index for index, count in enumerate(columns) for _ in range(count)]
            of_column = torch.tensor(owner, device=self._owners.device)
            mask = (self._owners[:, None] == of_column[None]).to(dtype)
            self._masks[columns] = mask
        return mask
