"""Artifacts on their way into requests: safetensors files read in pieces, and pickled for SGLang.

SGLang unpickles what ``/update_weights_from_tensor`` and ``/load_lora_adapter_from_tensors`` get. A plain pickle
carries the bytes of its tensors, so it works between processes that share nothing, on one host or two. The pickler
writes straight into base64 and keeps no memory of what it wrote: of a chunk there are its tensors, which are mapped
from the file, one of them as bytes, and the base64.

Torch is imported when first used: only these two transfers need it.
"""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.errors import ArtifactError, MissingExtra
from gristmill.startup import heavy_imports

ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
_FOREIGN_PREFIXES = ("base_model.", "module.", "_orig_mod.")
_SIGN_MASKS = {"F32": ("<u4", 0x7FFFFFFF), "F16": ("<u2", 0x7FFF), "BF16": ("<u2", 0x7FFF)}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tensors of one file that travel together."""

    file: Path
    names: tuple[str, ...]
    tensor_bytes: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Payload:
    """A pickle in base64, in parts."""

    parts: list[bytes]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Packed:
    """An adapter ready to be sent: its configuration, and its tensors pickled in base64."""

    config: dict[str, Any]
    parts: list[bytes]
    tensor_bytes: int


def require_torch(feature: str) -> None:
    """Raises MissingExtra unless what sends tensors is installed; imports nothing."""
    for module in ("torch", "safetensors"):
        if find_spec(module) is None:
            raise MissingExtra(feature, "generator-tensors", module)


def import_torch() -> None:
    """Takes seconds: better before an engine waits for it."""
    with heavy_imports():
        import safetensors
        import torch

    assert torch, safetensors


def plan_chunks(folder: Path, chunk_bytes: int) -> list[Chunk]:
    """The tensors of a whole model, in chunks of at most ``chunk_bytes`` or one tensor.

    A tied ``lm_head`` is left out: engines share it with the embedding.

    Raises:
        ArtifactError: the folder is no such model, or its names are not Hugging Face's.
    """
    tied = bool(_read_json(folder / "config.json").get("tie_word_embeddings", False))
    chunks: list[Chunk] = []
    for file in _weight_files(folder):
        names: list[str] = []
        size = 0
        for name, entry in sorted(_header(file).items(), key=lambda item: item[1]["data_offsets"][0]):
            if tied and name == "lm_head.weight":
                continue
            if name.startswith(_FOREIGN_PREFIXES):
                raise ArtifactError(f"{file}: {name!r} is not a Hugging Face name; save the bare model")
            start, end = entry["data_offsets"]
            if names and size + end - start > chunk_bytes:
                chunks.append(Chunk(file, tuple(names), size))
                names, size = [], 0
            names.append(name)
            size += end - start
        if names:
            chunks.append(Chunk(file, tuple(names), size))
    if not chunks:
        raise ArtifactError(f"{folder}: there are no tensors in it")
    return chunks


def pack_chunk(chunk: Chunk) -> Payload:
    """``[(name, tensor), …]``."""
    from safetensors import safe_open

    with safe_open(chunk.file, framework="pt") as file:
        return Payload(_pickle([(name, file.get_tensor(name)) for name in chunk.names]))


def pack_adapter(folder: Path) -> Packed:
    """An adapter as ``/load_lora_adapter_from_tensors`` takes it.

    Raises:
        ArtifactError: the folder is no adapter.
    """
    from safetensors import safe_open

    config = _read_json(folder / ADAPTER_CONFIG)
    if not (folder / ADAPTER).is_file():
        raise ArtifactError(f"{folder}: there is no {ADAPTER}")
    with safe_open(folder / ADAPTER, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return Packed(config, _pickle(tensors), size)


def is_null_adapter(folder: Path) -> bool:
    """Whether an adapter adds nothing: every ``lora_B`` is zero."""
    file = folder / ADAPTER
    if not file.is_file():
        return False
    found = False
    for name, entry in _header(file).items():
        if "lora_B" not in name or entry["dtype"] not in _SIGN_MASKS:
            continue
        kind, mask = _SIGN_MASKS[entry["dtype"]]
        start, end = entry["data_offsets"]
        count = (end - start) // np.dtype(kind).itemsize
        values = np.memmap(file, dtype=kind, mode="r", offset=_data_start(file) + start, shape=(count,))
        if (values & mask).any():
            return False
        found = True
    return found


class _Base64Parts:
    """A file that turns what is written to it into base64."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._rest = b""

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        taken = (3 - len(self._rest)) % 3 if self._rest else 0
        head = self._rest + bytes(view[:taken])
        if len(head) % 3:
            self._rest = head
            return len(view)
        whole = taken + (len(view) - taken) // 3 * 3
        if head:
            self.parts.append(base64.b64encode(head))
        if whole > taken:
            self.parts.append(base64.b64encode(view[taken:whole]))
        self._rest = bytes(view[whole:])
        return len(view)

    def finish(self) -> list[bytes]:
        if self._rest:
            self.parts.append(base64.b64encode(self._rest))
        return self.parts


def _pickle(value: Any) -> list[bytes]:
    sink = _Base64Parts()
    pickler = pickle.Pickler(sink, protocol=4)
    pickler.fast = True  # without a memo, which would keep the bytes of every tensor until the end
    pickler.dump(value)
    return sink.finish()


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(_read_json(index)["weight_map"].values()))]
    return [folder / "model.safetensors"]


def _data_start(file: Path) -> int:
    with file.open("rb") as handle:
        return 8 + int.from_bytes(handle.read(8), "little")


def _header(file: Path) -> dict[str, Any]:
    """Tensors of a safetensors file: type, shape and place of each."""
    try:
        with file.open("rb") as handle:
            header: dict[str, Any] = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
    except (OSError, ValueError, MemoryError, OverflowError) as error:
        raise ArtifactError(f"{file}: cannot be read as safetensors: {error}") from error
    header.pop("__metadata__", None)
    return header


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{file}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{file}: not a JSON object")
    return value
