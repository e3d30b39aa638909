"""The weight source as the trainer runs it: a shelf of versions, process groups, and a server in a thread."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import structlog
import torch
import uvicorn

from gristmill.errors import ConfigError
from grpo_trainer.config import WeightSourceSettings
from grpo_trainer.tensorfile import layout_of, read_layout
from grpo_trainer.weight_source.app import build_app
from grpo_trainer.weight_source.groups import Groups
from grpo_trainer.weight_source.ipc import Ipc
from grpo_trainer.weight_source.snapshot import Shelf, Snapshot

STOP_S = 10.0
KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that it is they who close them."""

Log = structlog.typing.FilteringBoundLogger


class WeightSource:
    """Holds published versions and serves them until :meth:`close`.

    Args:
        settings: where and how to serve.
        run_id: run whose versions are held.
        device: where the trained weights lie.
        dtype: what they are published in.

    Raises:
        ConfigError: the address cannot be served on.
    """

    def __init__(
        self, settings: WeightSourceSettings, *, run_id: str, device: torch.device, dtype: torch.dtype, log: Log
    ) -> None:
        self._dtype = dtype
        self._bucket_bytes = settings.bucket_mb << 20
        self._ipc = Ipc()
        self._shelf = Shelf(lease_timeout_s=settings.lease_timeout_s, on_free=self._ipc.forget)
        self._groups = Groups(
            self._shelf,
            device,
            host=settings.host,
            advertise=settings.advertise or settings.host,
            timeout_s=settings.timeout_s,
        )
        key = settings.key.get_secret_value() if settings.key is not None else None
        listener = bind(settings.host, settings.port)
        self.port: int = listener.getsockname()[1]
        self.url = f"http://{f'[{settings.host}]' if ':' in settings.host else settings.host}:{self.port}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                build_app(run_id, self._shelf, self._groups, self._ipc, key),
                log_config=None,
                log_level="warning",
                access_log=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(STOP_S / 2),
                lifespan="off",
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="weight source", daemon=True
        )
        listener.listen()  # who connects from now on gets an answer, if only when the server's loop runs
        self._thread.start()
        if key is None and not is_loopback(settings.host):
            log.warning(
                "weight_source_open",
                url=self.url,
                hint="whoever reaches this address can read the weights; set trainer.weight_source.key",
            )
        log.info("weight_source_ready", url=self.url, dtype=str(dtype).removeprefix("torch."), device=str(device))

    def hold(self, version: int, name: str, weights: Mapping[str, torch.Tensor]) -> Snapshot:
        """Copy the weights of a version that is durable by now, and serve them."""
        self._shelf.make_room()
        snapshot = Snapshot.take(version, name, weights, self._dtype, bucket_bytes=self._bucket_bytes)
        self._shelf.hold(snapshot)
        return snapshot

    def close(self) -> None:
        """Stop serving, leave all groups, free the memory."""
        self._server.should_exit = True
        self._groups.close()  # so that a broadcast that hangs ends, and with it the request that waits for it
        self._thread.join(STOP_S)
        self._shelf.clear()


def bind(host: str, port: int) -> socket.socket:
    """A socket on the address, not yet listening.

    Raises:
        ConfigError: it cannot be had.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"trainer.weight_source: cannot serve on {host}:{port}: {error.strerror}") from error
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_artifact(snapshot: Snapshot, folder: Path) -> None:
    """Compare a snapshot with the saved artifact of its version: engines must not be told other names on one way.

    Raises:
        ConfigError: names, dtypes or shapes differ, as they do for models whose weights are renamed when saved.
    """
    saved, held = read_layout(folder), layout_of(snapshot.tensors())
    if held != saved:
        first = min(name for name in held.keys() | saved.keys() if held.get(name) != saved.get(name))
        raise ConfigError(
            f"trainer.weight_source cannot serve this model: {first} is {saved.get(first, 'missing')} in {folder} and "
            f"{held.get(first, 'missing')} in memory; turn it off and deliver by disk (generator.delivery)"
        )
