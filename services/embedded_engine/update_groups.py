"""Process groups with a trainer, over which it broadcasts weights.

The engine joins as SGLang does: a TCP store at the trainer, under the group's name, and the trainer is rank 0.
It makes the communicator itself instead of registering it with ``torch.distributed``, whose names are global to
the process: so a trainer in the same process (tests, a notebook) may use the same name.

All methods block, for ``timeout_s`` at most; call them from a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, rendezvous

from embedded_engine.errors import RefusedRequest, UnsupportedModel

DEVICE_OF = {"gloo": "cpu", "nccl": "cuda"}


@dataclass(eq=False)
class _Group:
    communicator: Any
    device: torch.device
    busy: threading.Lock = field(default_factory=threading.Lock)


class UpdateGroups:
    """The groups that this engine is in, by name.

    Args:
        device: where received tensors are wanted.
        timeout_s: longest that a trainer may take to join, or to send one tensor.
    """

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        self._device = device
        self._timeout = timedelta(seconds=timeout_s)
        self._groups: dict[str, _Group] = {}
        self._joining: set[str] = set()
        self._lock = threading.Lock()

    def join(self, name: str, address: str, port: int, rank: int, world_size: int, backend: str) -> None:
        """Join a group; returns when every rank has.

        Raises:
            RefusedRequest: the name is taken, ranks or backend that make no sense.
            UnsupportedModel: the others did not come in time.
        """
        if not name:
            raise RefusedRequest("Group name cannot be empty")
        if not 0 < rank < world_size:
            raise RefusedRequest(f"rank {rank} of {world_size}: the trainer is rank 0, the engine one above")
        if backend not in DEVICE_OF or (backend == "nccl" and self._device.type != "cuda"):
            raise RefusedRequest(f"backend {backend!r}: this engine runs on {self._device.type}, use gloo there")
        with self._lock:
            if name in self._groups or name in self._joining:
                raise RefusedRequest(f"group {name} exists: destroy it first, or use another name")
            self._joining.add(name)
        try:
            group = self._connect(name, address, port, rank, world_size, backend)
            with self._lock:
                self._groups[name] = group
        except (RuntimeError, ValueError, OSError) as error:
            raise UnsupportedModel(f"{address}:{port}, rank {rank} of {world_size}: {error}") from error
        finally:
            with self._lock:
                self._joining.discard(name)

    def receive(self, name: str, like: Sequence[tuple[torch.dtype, Sequence[int]]]) -> list[torch.Tensor]:
        """The tensors that rank 0 broadcasts next, one after the other.

        Raises:
            RefusedRequest: no such group.
            UnsupportedModel: they did not come in time, or the connection broke.
        """
        with self._lock:
            group = self._groups.get(name)
            names = sorted(self._groups)
        if group is None:
            raise RefusedRequest(f"Group {name} not in {names}. Please call `init_weights_update_group` first.")
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        tensors = [torch.empty(list(shape), dtype=dtype, device=group.device) for dtype, shape in like]
        with group.busy:
            try:
                for tensor in tensors:
                    group.communicator.broadcast([tensor], options).wait(self._timeout)
                if group.device.type == "cuda":
                    torch.cuda.synchronize(group.device)
            except RuntimeError as error:
                raise UnsupportedModel(f"group {name}: nothing came from rank 0: {error}") from error
        return tensors

    def leave(self, name: str) -> None:
        """Leave a group and close its connections.

        Raises:
            RefusedRequest: no such group.
        """
        with self._lock:
            group = self._groups.pop(name, None)
        if group is None:
            raise RefusedRequest("The group to be destroyed does not exist.")
        if group.device.type == "cuda":
            group.communicator.abort()

    def _connect(self, name: str, address: str, port: int, rank: int, world_size: int, backend: str) -> _Group:
        host = f"[{address}]" if ":" in address else address
        store, rank, world_size = next(rendezvous(f"tcp://{host}:{port}", rank, world_size, timeout=self._timeout))
        store.set_timeout(self._timeout)
        # The prefixes that torch's _new_process_group_helper puts before the keys of a group of this name.
        where = DEVICE_OF[backend]
        keys = PrefixStore(f"{where}/", PrefixStore(f"{name}/", PrefixStore(name, store)))
        if backend == "gloo":
            return _Group(dist.ProcessGroupGloo(keys, rank, world_size, self._timeout), torch.device("cpu"))
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return _Group(dist.ProcessGroupNCCL(keys, rank, world_size, options), self._device)
