"""Rank 0 of process groups, one per engine, through which versions are broadcast.

An engine joins as rank 1 and up, the way SGLang does: a ``tcp://`` rendezvous, a store prefixed with the group's name,
and a process group made outside of torch's default one. A group belongs to one admission of one engine, so that an
engine that dies costs its own group and nothing else.

Nothing here may stall or end the trainer: joining and sending happen on threads of their own and are given up after a
time, a broadcast runs on a CUDA stream of its own, and NCCL's watchdog is told not to end the process when a peer is
gone. What is sent is immutable (see :mod:`grpo_trainer.weight_source.snapshot`), so training needs no pause.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Literal, TypeAlias, TypeVar

import torch
from torch.distributed import Backend, PrefixStore, ProcessGroup, TCPStore, destroy_process_group
from torch.distributed.distributed_c10d import (
    BroadcastOptions,
    _abort_process_group,
    _new_process_group_helper,
    _world,
)

from gristmill.errors import GristmillError
from grpo_trainer.weight_source.snapshot import NotHeld, Shelf

T = TypeVar("T")

GroupBackend: TypeAlias = Literal["nccl", "gloo"]
GroupState: TypeAlias = Literal["joining", "ready", "failed"]

POLL_S = 0.0005
DISCARD_S = 10.0
NCCL_ENVIRONMENT = {
    # The watchdog would end the trainer when an engine dies in a broadcast; such failures are dealt with here.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # Both ends of a communicator must agree, and SGLang sets these for itself.
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
}
"""Set where the environment says nothing else."""


class GroupError(GristmillError):
    """A process group cannot do what was asked of it."""


class Group:
    """One process group, its own side of it."""

    def __init__(self, name: str, world_size: int, backend: GroupBackend, store: TCPStore) -> None:
        self.name = name
        self.world_size = world_size
        self.backend = backend
        self.store = store
        self.process_group: ProcessGroup | None = None
        self.state: GroupState = "joining"
        self.error: str | None = None
        self.lock = threading.Lock()
        """Guards the fields."""
        self.sending = threading.Lock()
        """Held for the time of a broadcast."""
        self.stream: torch.cuda.Stream | None = None
        self.version: int | None = None
        self.lease: str | None = None
        """On the version whose buckets are being sent."""

    def fail(self, error: str) -> ProcessGroup | None:
        """Mark the group as failed; what is returned is to be discarded."""
        with self.lock:
            if self.state != "failed":
                self.state, self.error = "failed", error
            found, self.process_group = self.process_group, None
            return found


class Groups:
    """All process groups of a trainer. Threads may share it."""

    def __init__(self, shelf: Shelf, device: torch.device, *, host: str, advertise: str, timeout_s: float) -> None:
        """
        Args:
            shelf: where versions are taken from.
            device: where they lie.
            host: address that the rendezvous listens on.
            advertise: address that engines are told.
            timeout_s: how long engines may take to join, and to receive one bucket.
        """
        self._shelf = shelf
        self._device = device
        self._host = host
        self._advertise = advertise
        self._timeout_s = timeout_s
        self._groups: dict[str, Group] = {}
        self._lock = threading.Lock()

    def create(self, name: str, world_size: int, backend: GroupBackend) -> tuple[str, int]:
        """Begin to join a new group as rank 0; address and port of its rendezvous.

        Raises:
            GroupError: the name is taken, the backend does not fit, or no port can be had.
        """
        if backend == "nccl" and self._device.type != "cuda":
            raise GroupError("the trainer's weights lie on the CPU: ask for the backend gloo")
        if backend == "gloo" and self._device.type == "cuda":
            raise GroupError("the trainer's weights lie on a GPU: ask for the backend nccl")
        if backend == "nccl":
            for variable, value in NCCL_ENVIRONMENT.items():
                os.environ.setdefault(variable, value)
        with self._lock:
            if name in self._groups:
                raise GroupError(f"group {name} exists: every admission of an engine needs a name of its own")
            store = self._listen(world_size)
            group = self._groups[name] = Group(name, world_size, backend, store)
        threading.Thread(target=self._join, args=(group,), name=f"join {name}", daemon=True).start()
        return self._advertise, store.port

    def state(self, name: str) -> tuple[GroupState, str | None]:
        """State of a group, and why it failed.

        Raises:
            GroupError: there is none of this name.
        """
        group = self._find(name)
        with group.lock:
            return group.state, group.error

    def send(self, name: str, version: int, index: int) -> float:
        """Broadcast one bucket; seconds that it took. The version stays leased until its last bucket is out.

        Raises:
            GroupError: no such group, it is not ready, or the broadcast failed, which fails the group for good.
            NotHeld: no such version or bucket.
        """
        group = self._find(name)
        if not group.sending.acquire(timeout=self._timeout_s):
            raise GroupError(f"group {name} is busy with another broadcast")
        try:
            with group.lock:
                process_group = group.process_group
                if process_group is None:
                    raise GroupError(f"group {name} is {group.state}" + (f": {group.error}" if group.error else ""))
            lease = self._lease(group, version)
            snapshot = self._shelf.renew(lease)
            if not 0 <= index < len(snapshot.buckets):
                raise NotHeld(f"version {version} has buckets 0 to {len(snapshot.buckets) - 1}, not {index}")
            flat = snapshot.buckets[index].flat
            began = time.perf_counter()
            try:
                within(self._timeout_s, lambda: self._broadcast(group, process_group, flat), f"send {name}")
            except (RuntimeError, TimeoutError) as error:
                reason = f"bucket {index} of version {version} was not received: {first_line(error)}"
                self._discard(group, reason)
                raise GroupError(f"group {name}: {reason}") from error
            if index == len(snapshot.buckets) - 1:
                self._end_lease(group)
            return time.perf_counter() - began
        finally:
            group.sending.release()

    def destroy(self, name: str) -> None:
        """Leave a group; one that is not there has been left."""
        with self._lock:
            group = self._groups.pop(name, None)
        if group is not None:
            self._discard(group, "the group was destroyed")

    def close(self) -> None:
        """Leave all groups."""
        for name in list(self._groups):
            self.destroy(name)

    def _find(self, name: str) -> Group:
        with self._lock:
            group = self._groups.get(name)
        if group is None:
            raise GroupError(f"there is no group {name}")
        return group

    def _listen(self, world_size: int) -> TCPStore:
        """A rendezvous on a free port. The socket is bound here, since torch would listen on every address."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind((self._host, 0))
            listener.listen()
            port = listener.getsockname()[1]
        except OSError as error:
            listener.close()
            raise GroupError(f"no rendezvous on {self._host}: {error.strerror}") from error
        return TCPStore(
            self._host,
            port,
            world_size=world_size,
            is_master=True,
            timeout=timedelta(seconds=self._timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def _join(self, group: Group) -> None:
        try:
            with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
                found, _ = _new_process_group_helper(
                    group.world_size,
                    0,
                    [],
                    Backend(group.backend),
                    PrefixStore(group.name, group.store),
                    group_name=group.name,
                    timeout=timedelta(seconds=self._timeout_s),
                )
                _world.pg_group_ranks[found] = {rank: rank for rank in range(group.world_size)}
                if self._device.type == "cuda":
                    group.stream = torch.cuda.Stream(self._device)
        except (RuntimeError, ValueError) as error:
            group.fail(f"the engine did not join: {first_line(error)}")
            return
        with group.lock:
            if group.state == "joining":
                group.process_group, group.state = found, "ready"
                return
        leave(group.backend, found)  # destroyed while it was joining

    def _broadcast(self, group: Group, process_group: ProcessGroup, flat: torch.Tensor) -> None:
        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = timedelta(seconds=self._timeout_s)
        options.asyncOp = True
        if group.stream is None:
            process_group.broadcast([flat], options).wait(timedelta(seconds=self._timeout_s))
            return
        with torch.cuda.device(self._device), torch.cuda.stream(group.stream):
            work = process_group.broadcast([flat], options)
            work.wait()  # makes the stream wait, not this thread
            done = torch.cuda.Event()
            done.record()
            deadline = time.monotonic() + self._timeout_s
            while not done.query():
                # Torch calls a broadcast complete when it is done and when it failed. Only the former ends its kernel.
                if work.is_completed() and not _soon(done.query):
                    raise RuntimeError("NCCL reports an error: the engine is gone")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no end within {self._timeout_s:g} s")
                time.sleep(POLL_S)

    def _lease(self, group: Group, version: int) -> str:
        with group.lock:
            if group.lease is not None and group.version == version:
                try:
                    self._shelf.renew(group.lease)
                except NotHeld:
                    group.lease = None
                else:
                    return group.lease
        self._end_lease(group)
        lease = self._shelf.lease(version)
        with group.lock:
            group.version, group.lease = version, lease
        return lease

    def _end_lease(self, group: Group) -> None:
        with group.lock:
            lease, group.lease = group.lease, None
        if lease is not None:
            self._shelf.release(lease)

    def _discard(self, group: Group, reason: str) -> None:
        found = group.fail(reason)
        self._end_lease(group)
        if found is None:
            return
        # A dead peer can hold this up; then the thread is left behind, and the group is out of use either way.
        thread = threading.Thread(target=leave, args=(group.backend, found), name=f"leave {group.name}", daemon=True)
        thread.start()
        thread.join(DISCARD_S)


def leave(backend: GroupBackend, process_group: ProcessGroup) -> None:
    """Give a process group up without asking its peers."""
    if backend == "nccl":
        _abort_process_group(process_group)
    else:
        destroy_process_group(process_group)


def within(timeout_s: float, work: Callable[[], T], name: str) -> T:
    """Run ``work`` on a thread and wait for at most ``timeout_s``; the thread of one that hangs is left behind.

    Raises:
        TimeoutError: it did not end in time.
        RuntimeError: what it raised.
    """
    results: list[T] = []
    errors: list[RuntimeError | TimeoutError] = []

    def run() -> None:
        try:
            results.append(work())
        except (RuntimeError, TimeoutError) as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(timeout_s + 1)  # what has a time limit of its own may use it up
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no end within {timeout_s:g} s")
    return results[0]


def first_line(error: BaseException) -> str:
    """Torch puts C++ stack traces into its messages; the first line says it all."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _soon(condition: Callable[[], bool], seconds: float = 1.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
