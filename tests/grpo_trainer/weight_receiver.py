"""The receiving side of a process group, as SGLang has it, in a process of its own.

Run as a program: takes the arguments of :func:`join` from the first line of standard input, then receives buckets
whose manifest entries come on further lines, and answers each with the digest of every tensor. ``die`` ends it at once,
``stall`` lets a broadcast wait for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroup


def join(address: str, port: int, world_size: int, rank: int, group: str, backend: str = "gloo") -> ProcessGroup:
    """A process group outside of torch's default one: ``tcp://`` rendezvous, store prefixed with the group's name."""
    from torch.distributed.distributed_c10d import (
        Backend,
        PrefixStore,
        _new_process_group_helper,
        _world,
        rendezvous,
    )

    timeout = timedelta(seconds=60)
    store, rank, world_size = next(rendezvous(f"tcp://{address}:{port}", rank, world_size, timeout=timeout))
    store.set_timeout(timeout)
    process_group, _ = _new_process_group_helper(
        world_size, rank, [], Backend(backend), PrefixStore(group, store), group_name=group, timeout=timeout
    )
    _world.pg_group_ranks[process_group] = {i: i for i in range(world_size)}
    return process_group


def receive(process_group: ProcessGroup, bucket: dict[str, Any]) -> dict[str, torch.Tensor]:
    """One bucket of a manifest: allocated as its metadata says, broadcast from rank 0, cut into tensors."""
    spots = list(zip(bucket["names"], bucket["dtypes"], bucket["shapes"], strict=True))
    empty = [torch.empty(shape, dtype=getattr(torch, dtype)) for _, dtype, shape in spots]
    flat = torch.cat([tensor.flatten().view(torch.uint8) for tensor in empty])
    torch.distributed.broadcast(flat, src=0, group=process_group)
    tensors, start = {}, 0
    for (name, dtype, shape), tensor in zip(spots, empty, strict=True):
        end = start + tensor.numel() * tensor.element_size()
        tensors[name] = flat[start:end].view(getattr(torch, dtype)).reshape(shape)
        start = end
    return tensors


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's bytes."""
    return hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def main() -> None:
    say({"imported": "torch"})
    arguments = json.loads(sys.stdin.readline())
    process_group = join(**arguments)
    say({"joined": arguments["group"]})
    for line in sys.stdin:
        request = json.loads(line)
        if request == "die":
            os._exit(9)
        if request != "stall":
            say({name: digest(tensor) for name, tensor in receive(process_group, request).items()})


def say(answer: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
