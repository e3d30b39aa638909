"""Snapshots as CUDA IPC payloads, for engines on the same host.

A payload is what SGLang reads for ``load_format: flattened_bucket``: a pickle of the flat tensor and of where each
tensor lies in it. The pickle holds no weights but a handle to the trainer's memory. Torch names the device in it by
its index, which means another card in a process that sees other cards; SGLang patches the function that the pickle
refers to so that it takes the card's UUID instead, and so the UUID is what is put there.
"""

from __future__ import annotations

import base64
import io
import pickle
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.multiprocessing import reductions

from gristmill.errors import GristmillError
from grpo_trainer.weight_source.snapshot import Bucket, Shelf, Snapshot

DEVICE_ARGUMENT = 6
"""Place of the device index among the arguments of torch's ``rebuild_cuda_tensor``."""
COUNTER_ARGUMENTS = (11, 12)
"""Places of the handle and the offset of the reference count that the receiver lowers."""

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


class IpcUnavailable(GristmillError):
    """The weights do not lie on a GPU."""


def reduce_by_uuid(tensor: torch.Tensor) -> Reduced:
    """Torch's reduction of a CUDA tensor, with the card named by UUID."""
    rebuild, arguments = reductions.reduce_tensor(tensor)
    device = torch.cuda.get_device_properties(arguments[DEVICE_ARGUMENT]).uuid
    return rebuild, (*arguments[:DEVICE_ARGUMENT], str(device), *arguments[DEVICE_ARGUMENT + 1 :])


class Payloads:
    """The payloads of one snapshot: handles are made once, however many engines ask.

    Torch keeps sent memory until its receiver has lowered a count. :meth:`close` lowers it in the receiver's place, so
    that an engine that died with an unread payload does not pin the memory for ever. By then no lease is left.
    """

    def __init__(self, snapshot: Snapshot, *, reduce: Callable[[torch.Tensor], Reduced] | None = None) -> None:
        """
        Raises:
            IpcUnavailable: the snapshot does not lie on a GPU.
        """
        device = snapshot.buckets[0].flat.device
        if device.type != "cuda":
            raise IpcUnavailable(
                f"the trainer's weights lie on the {device.type}: CUDA IPC needs trainer.device cuda; "
                "set generator.tensor_transfer to inline"
            )
        self._counters: list[tuple[Any, Any, torch.device]] = []
        try:
            self.encoded = [self._encode(bucket, reduce or reduce_by_uuid) for bucket in snapshot.buckets]
        except RuntimeError as error:
            self.close()
            raise IpcUnavailable(f"the trainer's memory cannot be shared: {error}") from error

    def _encode(self, bucket: Bucket, reduce: Callable[[torch.Tensor], Reduced]) -> str:
        rebuild, arguments = reduce(bucket.flat)
        handle, offset = (arguments[place] for place in COUNTER_ARGUMENTS)
        self._counters.append((handle, offset, bucket.flat.device))
        return base64.b64encode(dump(bucket, rebuild, arguments)).decode("ascii")

    def close(self) -> None:
        """Give the memory free, whether or not the payloads were read."""
        for handle, offset, device in self._counters:
            torch.UntypedStorage._release_ipc_counter(handle, offset, device=device)
        self._counters.clear()


class Ipc:
    """Leases with payloads. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._payloads: dict[int, Payloads] = {}

    def open(self, shelf: Shelf, version: int) -> tuple[str, list[str]]:
        """Lease a version; the lease, and a payload for each of its buckets.

        Raises:
            NotHeld: it is not on the shelf.
            IpcUnavailable: it does not lie on a GPU, or its memory cannot be shared.
        """
        lease = shelf.lease(version)
        try:
            snapshot = shelf.renew(lease)
            with self._lock:
                payloads = self._payloads.get(version)
                if payloads is None:
                    payloads = self._payloads[version] = Payloads(snapshot)
        except BaseException:
            shelf.release(lease)
            raise
        return lease, payloads.encoded

    def forget(self, version: int) -> None:
        """The shelf lets go of a version."""
        with self._lock:
            payloads = self._payloads.pop(version, None)
        if payloads is not None:
            payloads.close()


def dump(bucket: Bucket, rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Pickle a bucket whose flat tensor is rebuilt by ``rebuild(*arguments)``."""

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            return (rebuild, arguments) if value is bucket.flat else NotImplemented

    metadata = [
        SimpleNamespace(
            name=entry.name,
            shape=entry.shape,
            dtype=entry.dtype,
            start_idx=entry.start,
            end_idx=entry.end,
            numel=entry.end - entry.start,
        )
        for entry in bucket.entries
    ]
    buffer = io.BytesIO()
    Pickler(buffer).dump({"flattened_tensor": bucket.flat, "metadata": metadata})
    return buffer.getvalue()
