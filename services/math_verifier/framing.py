"""Pickled messages over a socket pair, each behind its length; between a worker and the process that owns it only."""

from __future__ import annotations

import pickle
import socket
import time
from typing import Any, Final

_HEAD: Final = 4
_READ: Final = 1 << 16


class Channel:
    """One end. Not safe for threads."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray()

    def send(self, message: object, timeout_s: float | None = None) -> None:
        """Send a message.

        Raises:
            OSError: the other end is gone, or does not read for ``timeout_s`` seconds.
        """
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(len(body).to_bytes(_HEAD, "big") + body)

    def receive(self, deadline: float | None = None) -> Any:
        """The next message; ``deadline`` is by :func:`time.monotonic`.

        Raises:
            TimeoutError: it did not come in time.
            EOFError: the other end is closed.
            OSError: the connection broke.
        """
        wanted = _HEAD
        while True:
            if len(self._buffer) >= wanted:
                if wanted == _HEAD:
                    wanted += int.from_bytes(self._buffer[:_HEAD], "big")
                    continue
                message = pickle.loads(memoryview(self._buffer)[_HEAD:wanted])  # noqa: S301 - from our own process
                self._buffer = self._buffer[wanted:]
                return message
            # A deadline that has passed still finds what has arrived: this process may have been the slow one.
            self._socket.settimeout(None if deadline is None else max(1e-4, deadline - time.monotonic()))
            part = self._socket.recv(_READ)
            if not part:
                raise EOFError
            self._buffer += part

    def close(self) -> None:
        self._socket.close()
