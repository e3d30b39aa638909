"""What the unpickler of tensors takes, and what it refuses before anything of it has run."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embedded_engine.errors import RefusedRequest
from embedded_engine.tensor_payload import dtype_of, read_named_tensors, unflatten
from support.weights import base64_pickle, bucket, flat


def tensors() -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(6, 8, generator=generator)
    return [
        ("float32", torch.randn(3, 5, generator=generator)),
        ("bfloat16", torch.randn(7, generator=generator).to(torch.bfloat16)),
        ("float16", torch.randn(1, 2, 3, generator=generator).to(torch.float16)),
        ("odd bytes", torch.randn(3, generator=generator).to(torch.bfloat16)),
        ("after odd bytes", torch.randn(2, generator=generator)),
        ("transposed", wide.T),
        ("part", wide[2:4, 1:3]),
        ("scalar", torch.tensor(2.5)),
        ("parameter", torch.nn.Parameter(torch.ones(2))),
        ("empty", torch.empty(0, 4)),
    ]


def same(found: list[tuple[str, torch.Tensor]], expected: list[tuple[str, torch.Tensor]]) -> bool:
    return [name for name, _ in found] == [name for name, _ in expected] and all(
        one.dtype == other.dtype and torch.equal(one, other)
        for (_, one), (_, other) in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_come_back(protocol: int) -> None:
    payload = base64.b64encode(pickle.dumps(tensors(), protocol=protocol)).decode()
    assert same(read_named_tensors(payload, None), tensors())


def test_a_dict_and_a_bucket_come_back() -> None:
    assert same(read_named_tensors(base64_pickle(dict(tensors())), None), tensors())
    found = read_named_tensors(base64_pickle(bucket(tensors())), "flattened_bucket")
    assert same(found, tensors())


def test_sglangs_own_metadata_class_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has SGLang pickles its dataclass by name."""
    import sys
    from types import ModuleType

    name = "sglang.srt.weight_sync.tensor_bucket"
    module = ModuleType(name)
    kind = type("FlattenedTensorMetadata", (), {"__module__": name})
    module.FlattenedTensorMetadata = kind  # type: ignore[attr-defined]
    parts = name.split(".")
    for end in range(1, len(parts)):
        parent = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, name, module)
    content = bucket(tensors())
    for index, item in enumerate(content["metadata"]):
        made = kind()
        made.__dict__.update(item.__dict__)
        content["metadata"][index] = made
    assert same(read_named_tensors(base64_pickle(content), "flattened_bucket"), tensors())


class Call:
    """Pickles to a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize(
    "function", [os.system, os.mkdir, eval, exec, subprocess.check_call, getattr, torch.load, torch.hub.load]
)
def test_a_call_is_refused_and_not_made(function: Any, tmp_path: Path) -> None:
    target = tmp_path / "made"
    payload = base64_pickle([("a", Call(function, str(target) if function is os.mkdir else f"touch {target}"))])
    with pytest.raises(RefusedRequest, match="no part of a tensor"):
        read_named_tensors(payload, None)
    assert not target.exists()


def test_a_call_inside_of_a_storage_is_refused_too(tmp_path: Path) -> None:
    """torch reads the storage's bytes with a pickle of their own."""
    target = tmp_path / "made"
    inner = pickle.dumps(Call(os.mkdir, str(target)))
    payload = base64_pickle([("a", Call(torch.storage._load_from_bytes, inner))])
    with pytest.raises(RefusedRequest):
        read_named_tensors(payload, None)
    assert not target.exists()


def test_a_view_beyond_its_storage_is_refused() -> None:
    storage = torch.ones(4)._typed_storage()
    for offset, size, stride in ((2, (3,), (1,)), (0, (5,), (1,)), (0, (2, 2), (4, 1)), (-1, (1,), (1,))):
        payload = base64_pickle(
            [("a", Call(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, {}))]
        )
        with pytest.raises(RefusedRequest, match="beyond its storage"):
            read_named_tensors(payload, None)


def test_handles_of_shared_memory_are_refused() -> None:
    """torch.multiprocessing's pickler sends handles, which mean nothing to another process."""
    payload = base64.b64encode(bytes(ForkingPickler.dumps([("a", torch.ones(3))]))).decode()
    with pytest.raises(RefusedRequest, match="no part of a tensor"):
        read_named_tensors(payload, None)


def test_handles_of_gpu_memory_need_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    payload = base64_pickle([("a", Call(rebuild_cuda_tensor, *range(16)))])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RefusedRequest, match="no GPU"):
        read_named_tensors(payload, None)


@pytest.mark.parametrize(
    ("value", "load_format", "named"),
    [
        (torch.ones(2), None, "not a list"),
        ([("a", 1)], None, "name, tensor"),
        ([(1, torch.ones(1))], None, "name, tensor"),
        ([["a", torch.ones(1), 3]], None, "name, tensor"),
        ([("a", torch.ones(1))], "flattened_bucket", "flattened bucket"),
        ({"flattened_tensor": torch.ones(4), "metadata": []}, "flattened_bucket", "uint8"),
        ({"flattened_tensor": torch.ones(4, dtype=torch.uint8), "metadata": [{}]}, "flattened_bucket", "record"),
    ],
)
def test_other_shapes_are_refused(value: Any, load_format: str | None, named: str) -> None:
    with pytest.raises(RefusedRequest, match=named):
        read_named_tensors(base64_pickle(value), load_format)


@pytest.mark.parametrize("change", [{"end_idx": 9999}, {"start_idx": -4}, {"shape": (99,)}, {"name": None}])
def test_a_bucket_that_does_not_add_up_is_refused(change: dict[str, Any]) -> None:
    content = bucket([("a", torch.ones(4))])
    content["metadata"][0].__dict__.update(change)
    with pytest.raises(RefusedRequest):
        read_named_tensors(base64_pickle(content), "flattened_bucket")


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.integers(0, 10_000), st.integers(0, 255), st.booleans())
def test_broken_bytes_are_refused_and_nothing_else_happens(at: int, byte: int, cut: bool) -> None:
    """Whatever byte is broken: either the tensors are still readable, or the request is refused."""
    content = bytearray(pickle.dumps([("a", torch.ones(3)), ("b", torch.zeros(2, 2))], protocol=4))
    at %= len(content)
    content[at] = byte
    payload = base64.b64encode(bytes(content[:at] if cut else content)).decode()
    try:
        found = read_named_tensors(payload, None)
    except RefusedRequest:
        return
    assert all(isinstance(tensor, torch.Tensor) for _, tensor in found)


def test_not_base64() -> None:
    with pytest.raises(RefusedRequest, match="base64"):
        read_named_tensors("???", None)


def test_unflatten_is_the_inverse_of_flat() -> None:
    expected = tensors()
    shapes = [list(tensor.shape) for _, tensor in expected]
    found = unflatten(flat(expected), [name for name, _ in expected], [t.dtype for _, t in expected], shapes)
    assert same(found, expected)
    with pytest.raises(RefusedRequest, match="bucket"):
        unflatten(torch.zeros(3, dtype=torch.uint8), ["a"], [torch.float32], [[1]])


def test_types_are_floating_point() -> None:
    assert dtype_of("bfloat16") == dtype_of("torch.bfloat16") == torch.bfloat16
    for name in ("int64", "nn", "load", "uint8"):
        with pytest.raises(RefusedRequest, match=name):
            dtype_of(name)
