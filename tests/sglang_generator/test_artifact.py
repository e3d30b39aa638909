"""Artifacts in requests: what is read, how it is divided, and what the other side unpacks."""

from __future__ import annotations

import base64
import importlib.util
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from gristmill.errors import ArtifactError, MissingExtra
from sglang_generator.config import GeneratorConfig
from sglang_generator.delivery import make_delivery
from sglang_generator.delivery.artifact import (
    _Base64Parts,
    is_null_adapter,
    pack_adapter,
    pack_chunk,
    plan_chunks,
)


def model(folder: Path, tensors: dict[str, torch.Tensor], tied: bool = False, files: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    if files == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    places = {}
    for number in range(files):
        part = {name: tensors[name] for name in list(tensors)[number::files]}
        save_file(part, folder / f"model-{number}.safetensors")
        places |= dict.fromkeys(part, f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def unpacked(folder: Path, chunk_bytes: int) -> list[tuple[str, torch.Tensor]]:
    """All chunks, as an engine unpickles them."""
    return [
        pair
        for chunk in plan_chunks(folder, chunk_bytes)
        for pair in pickle.loads(base64.b64decode(b"".join(pack_chunk(chunk).parts)))
    ]


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_tensors_arrive_as_they_were(tmp_path: Path, files: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = {f"model.layers.{n}.w": torch.randn(3 + n, 5).to(dtype) for n in range(7)}
    folder = model(tmp_path, tensors, files=files)
    found = dict(unpacked(folder, 100))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12), limit=st.integers(1, 300))
def test_chunks_keep_to_the_limit_and_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int
) -> None:
    tensors = {f"w{number:02}": torch.full((size,), float(number)) for number, size in enumerate(sizes)}
    folder = model(tmp_path_factory.mktemp("model"), tensors)
    chunks = plan_chunks(folder, limit)
    assert sorted(name for chunk in chunks for name in chunk.names) == sorted(tensors)
    assert sum(chunk.tensor_bytes for chunk in chunks) == 4 * sum(sizes)
    assert all(chunk.tensor_bytes <= limit or len(chunk.names) == 1 for chunk in chunks)


def test_a_tied_head_stays_at_home(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": torch.ones(2), "lm_head.weight": torch.ones(2)}
    assert [name for name, _ in unpacked(model(tmp_path / "tied", tensors, tied=True), 100)] == list(tensors)[:1]
    free = unpacked(model(tmp_path / "free", tensors), 100)
    assert sorted(name for name, _ in free) == sorted(tensors)


@pytest.mark.parametrize("name", ["base_model.model.w", "module.model.w", "_orig_mod.model.w"])
def test_names_must_be_hugging_faces(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="not a Hugging Face name"):
        plan_chunks(model(tmp_path, {name: torch.ones(1)}), 100)


def test_what_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"config\.json"):
        plan_chunks(tmp_path, 100)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"model\.safetensors"):
        plan_chunks(tmp_path, 100)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ArtifactError, match="cannot be read as safetensors"):
        plan_chunks(tmp_path, 100)
    with pytest.raises(ArtifactError, match=r"adapter_config\.json"):
        pack_adapter(tmp_path)


@given(parts=st.lists(st.binary(max_size=20), max_size=12))
def test_base64_in_parts_is_base64(parts: list[bytes]) -> None:
    sink = _Base64Parts()
    for part in parts:
        assert sink.write(part) == len(part)
    assert b"".join(sink.finish()) == base64.b64encode(b"".join(parts))


def adapter(folder: Path, b: torch.Tensor) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text('{"r": 2}')
    tensors = {"q.lora_A.weight": torch.ones(2, 3), "q.lora_B.weight": b, "v.lora_B.weight": torch.zeros(2)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_is_packed_whole(tmp_path: Path) -> None:
    b = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2)
    packed = pack_adapter(adapter(tmp_path, b))
    tensors = pickle.loads(base64.b64decode(b"".join(packed.parts)))
    assert packed.config == {"r": 2}
    assert packed.tensor_bytes == 24 + 12 + 8
    assert tensors.keys() == {"q.lora_A.weight", "q.lora_B.weight", "v.lora_B.weight"}
    assert torch.equal(tensors["q.lora_B.weight"], b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_null_adapters_are_told_by_their_b_matrices(tmp_path: Path, dtype: torch.dtype) -> None:
    zero = torch.zeros(3, 2, dtype=dtype)
    assert is_null_adapter(adapter(tmp_path / "zero", zero))
    assert is_null_adapter(adapter(tmp_path / "minus", -zero))
    last = zero.clone()
    last[-1, -1] = 1e-6
    assert not is_null_adapter(adapter(tmp_path / "last", last))
    assert not is_null_adapter(tmp_path)


@pytest.mark.parametrize(
    "values", [{"delivery": "tensor"}, {"delivery": "lora", "lora_transfer": "tensors"}], ids=["tensor", "lora"]
)
@pytest.mark.parametrize("missing", ["torch", "safetensors"])
def test_a_missing_extra_is_named_before_anything_starts(
    values: dict[str, Any], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "sglang_generator.delivery.artifact.find_spec", lambda name: None if name == missing else real(name)
    )
    with pytest.raises(MissingExtra, match=rf"{missing}.*gristmill\[generator-tensors\]"):
        make_delivery(GeneratorConfig(**values), "run")
    for other in ({"delivery": "disk"}, {"delivery": "nccl", "weight_source": "http://127.0.0.1:1"}, {}):
        make_delivery(GeneratorConfig(**other), "run")
