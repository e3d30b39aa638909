"""Tensors that came in a request body: base64 of a pickle, read by an unpickler that knows tensors and nothing else.

SGLang's clients pickle CPU tensors whole, or, on one host, CUDA tensors as handles. A pickle may name any
function of any module; here every name outside a short list is refused before anything is called.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import pickle
import struct
from collections import OrderedDict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from embedded_engine.errors import RefusedRequest

Named = tuple[str, torch.Tensor]

_MALFORMED = (
    pickle.UnpicklingError,
    EOFError,
    AssertionError,
    AttributeError,
    ImportError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""What the pickle machinery and torch raise for bytes that are no pickle of tensors."""


def read_named_tensors(payload: str, load_format: str | None) -> list[Named]:
    """Named tensors of an update.

    Args:
        payload: base64 of a pickle.
        load_format: None for a list of (name, tensor), ``flattened_bucket`` for one byte tensor and its metadata.

    Raises:
        RefusedRequest: not such a pickle, or one that names anything but tensors.
    """
    found = _unpickle(payload)
    if load_format == "flattened_bucket":
        return _from_bucket(found)
    pairs = list(found.items()) if isinstance(found, dict) else found
    if not isinstance(pairs, list | tuple):
        raise RefusedRequest(f"the payload is a {type(found).__name__}, not a list of (name, tensor)")
    for pair in pairs:
        good = isinstance(pair, list | tuple) and len(pair) == 2
        if not (good and isinstance(pair[0], str) and isinstance(pair[1], torch.Tensor)):
            raise RefusedRequest("the payload is not a list of (name, tensor)")
    return [(name, tensor) for name, tensor in pairs]


def unflatten(
    flat: torch.Tensor, names: Sequence[str], dtypes: Sequence[torch.dtype], shapes: Sequence[Sequence[int]]
) -> list[Named]:
    """Tensors that lie one behind the other in ``flat`` (uint8)."""
    tensors = []
    start = 0
    for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
        end = start + bytes_of(dtype, shape)
        tensors.append((name, _slice(flat, name, start, end, dtype, shape)))
        start = end
    return tensors


def bytes_of(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """Bytes of a tensor."""
    return int(dtype.itemsize) * math.prod(shape)


def dtype_of(name: str) -> torch.dtype:
    """The floating point type called ``name``, as in ``bfloat16``.

    Raises:
        RefusedRequest: there is no such type.
    """
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise RefusedRequest(f"dtype {name!r} is no floating point type of torch")
    return found


def _from_bucket(found: Any) -> list[Named]:
    if not isinstance(found, dict) or set(found) != {"flattened_tensor", "metadata"}:
        raise RefusedRequest("the payload is not a flattened bucket: {'flattened_tensor', 'metadata'}")
    flat, metadata = found["flattened_tensor"], found["metadata"]
    if not isinstance(flat, torch.Tensor) or flat.dtype != torch.uint8 or flat.dim() != 1:
        raise RefusedRequest("flattened_tensor is not a flat uint8 tensor")
    if not isinstance(metadata, list | tuple):
        raise RefusedRequest("metadata is not a list")
    tensors = []
    for item in metadata:
        if not isinstance(item, SimpleNamespace):
            raise RefusedRequest("metadata holds what is no record of a tensor")
        known = {"name": str, "dtype": torch.dtype, "shape": (list, tuple), "start_idx": int, "end_idx": int}
        wrong = [key for key, kind in known.items() if not isinstance(getattr(item, key, None), kind)]
        if wrong:
            raise RefusedRequest(f"metadata of a tensor: {', '.join(wrong)} missing or of a wrong type")
        part = _slice(flat, item.name, item.start_idx, item.end_idx, item.dtype, item.shape)
        tensors.append((item.name, part))
    return tensors


def _slice(
    flat: torch.Tensor, name: str, start: int, end: int, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor:
    sizes_ok = all(isinstance(size, int) and size >= 0 for size in shape)
    if not sizes_ok or not 0 <= start <= end <= flat.numel() or end - start != bytes_of(dtype, shape):
        raise RefusedRequest(
            f"{name}: bytes {start} to {end} of a bucket of {flat.numel()} are not a {dtype} of shape {list(shape)}"
        )
    part = flat[start:end]
    if part.data_ptr() % dtype.itemsize:
        part = part.clone()
    return part.view(dtype).reshape(list(shape))


def _unpickle(payload: str) -> Any:
    try:
        content = base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedRequest(f"the payload is not base64: {error}") from error
    try:
        return _TensorUnpickler(io.BytesIO(content)).load()
    except _MALFORMED as error:
        raise RefusedRequest(f"the payload is not a pickle of tensors: {error}") from error


def _storage(content: bytes) -> Any:
    """A storage as torch pickles it: again a pickle inside, read by torch's own restricted reader."""
    return torch.load(io.BytesIO(content), weights_only=True)


def _tensor(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> torch.Tensor:
    """A view of a storage that lies inside of it (torch itself would make the storage larger)."""
    length = storage._untyped_storage.nbytes() // storage.dtype.itemsize
    reach = offset + 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if offset < 0 or min((*size, *stride), default=0) < 0 or (0 not in size and reach > length):
        raise ValueError(f"a tensor of size {list(size)} reaches beyond its storage of {length}")
    rebuilt: torch.Tensor = torch._utils._rebuild_tensor(storage, offset, size, stride)
    return rebuilt


def _parameter(data: torch.Tensor, *_: Any) -> torch.Tensor:
    return data


def _latin1(text: str, encoding: str) -> bytes:
    """How pickle protocol 2 writes bytes."""
    if encoding != "latin1":
        raise ValueError(f"bytes encoded as {encoding!r}")
    return text.encode("latin1")


def _cuda_tensor(*arguments: Any) -> torch.Tensor:
    """A tensor in another process's GPU memory; the device may be named by its UUID, as SGLang's clients do."""
    if not torch.cuda.is_available():
        raise ValueError("it holds handles of GPU memory, and this engine has no GPU: send the tensors themselves")
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    values = list(arguments)
    if isinstance(values[6], str):
        uuids = [str(torch.cuda.get_device_properties(n).uuid) for n in range(torch.cuda.device_count())]
        if values[6] not in uuids:
            raise ValueError(f"it lies on the GPU {values[6]}, which this engine does not see ({', '.join(uuids)})")
        values[6] = uuids.index(values[6])
    rebuilt: torch.Tensor = rebuild_cuda_tensor(*values)
    return rebuilt


_KNOWN: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"): _cuda_tensor,
    ("torch.storage", "UntypedStorage"): torch.UntypedStorage,
    ("torch.storage", "TypedStorage"): torch.TypedStorage,
    ("torch", "UntypedStorage"): torch.UntypedStorage,
    ("torch", "Tensor"): torch.Tensor,
    ("torch._tensor", "Tensor"): torch.Tensor,
    ("torch.nn.parameter", "Parameter"): torch.nn.Parameter,
    ("torch", "Size"): torch.Size,
    ("collections", "OrderedDict"): OrderedDict,
    ("types", "SimpleNamespace"): SimpleNamespace,
    ("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata"): SimpleNamespace,
    ("_codecs", "encode"): _latin1,
}


class _TensorUnpickler(pickle.Unpickler):
    """Finds what tensors are made of; never imports."""

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            known = getattr(torch, name)
        if known is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of a tensor")
        return known
