"""Safetensors files written tensor by tensor.

The library's own writer first makes a copy of everything in CPU memory, and then another one; for gigabytes that costs
more time than the disk does. Files are read with the library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""How the format calls the types; what is not here cannot be written."""

Layout = dict[str, tuple[str, list[int]]]
"""Type and shape by name."""


def saved_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """What a tensor is saved as: ``dtype`` where it is a floating-point one, else what it is."""
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


def layout_of(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> Layout:
    """The layout that ``tensors`` have once they are saved as ``dtype``."""
    return {
        name: (NAMES.get(kind := saved_dtype(tensor, dtype), str(kind)), list(tensor.shape))
        for name, tensor in tensors.items()
    }


def read_layout(folder: Path) -> Layout:
    """The layout of all safetensors files of a folder; empty when there is none."""
    found: Layout = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                part = file.get_slice(name)
                found[name] = (part.get_dtype(), list(part.get_shape()))
    return found


def write_file(path: Path, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> None:
    """Write ``tensors``, floating-point ones as ``dtype``. Only one at a time is cast, and lies in CPU memory."""
    kinds = {name: saved_dtype(tensor, dtype) for name, tensor in tensors.items()}
    order = sorted(tensors, key=lambda name: (-kinds[name].itemsize, name))  # so that each is aligned
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].numel() * kinds[name].itemsize
        shape = list(tensors[name].shape)
        header[name] = {"dtype": NAMES[kinds[name]], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in order:
            tensor = tensors[name].detach().to(kinds[name]).cpu().contiguous()
            file.write(tensor.flatten().view(torch.uint8).numpy().data)
