"""What a trainer sends to an engine: pickled tensors, flattened buckets, and its end of a process group."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import socket
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file

Named = tuple[str, torch.Tensor]


def base64_pickle(value: Any) -> str:
    """Plain pickle (not torch.multiprocessing's), so that the bytes of the tensors are in it."""
    return base64.b64encode(pickle.dumps(value, protocol=4)).decode()


def checkpoint_tensors(folder: str | Path, dtype: torch.dtype | None = None) -> list[Named]:
    """The tensors of a checkpoint by Hugging Face's names, a tied head left out."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        found.update(load_file(str(path)))
    if "model.embed_tokens.weight" in found and _tied(Path(folder)):
        found.pop("lm_head.weight", None)
    return [(name, tensor if dtype is None else tensor.to(dtype)) for name, tensor in sorted(found.items())]


def chunks(tensors: Sequence[Named], count: int) -> list[list[Named]]:
    """Cut into ``count`` lists that are about equally long."""
    step = -(-len(tensors) // count)
    return [list(tensors[start : start + step]) for start in range(0, len(tensors), step)]


def flat(tensors: Iterable[Named]) -> torch.Tensor:
    """The bytes of all tensors, one behind the other."""
    return torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for _, tensor in tensors])


def bucket(tensors: Sequence[Named]) -> dict[str, Any]:
    """SGLang's flattened bucket, in types that every unpickler of it takes."""
    metadata = []
    start = 0
    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        metadata.append(
            SimpleNamespace(
                name=name, shape=tensor.shape, dtype=tensor.dtype, start_idx=start, end_idx=start + size, numel=size
            )
        )
        start += size
    return {"flattened_tensor": flat(tensors), "metadata": metadata}


def announced(tensors: Sequence[Named]) -> dict[str, Any]:
    """names, dtypes and shapes of /update_weights_from_distributed."""
    return {
        "names": [name for name, _ in tensors],
        "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
        "shapes": [list(tensor.shape) for _, tensor in tensors],
    }


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Rank0:
    """The trainer's end of a weight update group; joins as SGLang's ``init_custom_process_group`` does.

    Blocks until the engine has joined too, so make it while the engine's call is under way.
    """

    def __init__(
        self, name: str, port: int, *, backend: str = "gloo", world_size: int = 2, timeout_s: float = 60
    ) -> None:
        from torch.distributed.distributed_c10d import (
            Backend,
            PrefixStore,
            _new_process_group_helper,
            _world,
            rendezvous,
        )

        timeout = timedelta(seconds=timeout_s)
        address = f"tcp://127.0.0.1:{port}"
        store, rank, size = next(rendezvous(address, 0, world_size, timeout=timeout))
        store.set_timeout(timeout)
        self._group, _ = _new_process_group_helper(
            size,
            rank,
            [],
            Backend(backend),
            PrefixStore(name, store),
            group_name=name,
            backend_options=None,
            timeout=timeout,
        )
        _world.pg_group_ranks[self._group] = {number: number for number in range(size)}

    def send(self, tensor: torch.Tensor) -> None:
        """Broadcast one tensor."""
        torch.distributed.broadcast(tensor, src=0, group=self._group)
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)

    def close(self) -> None:
        """Leave the group."""
        torch.distributed.destroy_process_group(self._group)


def _tied(folder: Path) -> bool:
    return bool(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("tie_word_embeddings", False))


def adapter_body(folder: str | Path, *, checksums: bool = False) -> dict[str, Any]:
    """Body of /load_lora_adapter_from_tensors for an adapter folder, all but the name.

    ``checksums`` end SGLang 0.5.16, even the right ones: its worker names an attribute that it has not.
    """
    tensors = load_file(str(Path(folder) / "adapter_model.safetensors"))
    body = {
        "config_dict": json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8")),
        "serialized_tensors": base64_pickle(tensors),
    }
    if checksums:
        body["expected_checksums"] = {name: sha256(tensor) for name, tensor in tensors.items()}
    return body


def sha256(tensor: torch.Tensor) -> str:
    """Digest of a tensor's bytes."""
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
