"""Connections for the one busy path, ``/generate``: each request in flight has a connection to itself.

How many there are is bounded by the engine's slots, so all a pool would have to do is keep a stack of idle ones.
httpx's own pool looks at every connection for every request: 9 ms of CPU per request at 64 in flight, where h11
over asyncio streams takes 0.4 ms. Control calls, which are few, do go through httpx.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from urllib.parse import urlsplit

import h11

from sglang_generator.errors import EngineError

KEEPALIVE_S = 2.0
"""Idle connections are dropped before the server drops them (uvicorn: 5 s), else a request may meet a closed one."""
_READ_BYTES = 1 << 18


class Lanes:
    """Idle connections to one server, the last used first."""

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        parts = urlsplit(url)
        self._url = url
        self._hostname = parts.hostname or ""
        self._port = parts.port if parts.port is not None else {"http": 80, "https": 443}[parts.scheme]
        self._host = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[_Connection] = []

    async def post(self, path: str, headers: list[tuple[str, str]], content: bytes) -> tuple[int, bytes]:
        """Status and body of one request. Callers set a deadline around it.

        Raises:
            EngineError: ``connection``.
        """
        request = h11.Request(
            method="POST",
            target=self._path + path,
            headers=[("Host", self._host), *headers, ("Content-Length", str(len(content)))],
        )
        connection = self._take() or await self._open()
        try:
            status, body = await connection.exchange(request, content)
        except (OSError, h11.ProtocolError) as error:
            raise EngineError("connection", f"{self._url}: connection failed: {_reason(error)}") from error
        finally:
            # Whatever cut the exchange short, a deadline or a cancellation, the connection is of no use any more.
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()
        return status, body

    def close(self) -> None:
        """Close the idle connections; those in use close with their requests."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> _Connection | None:
        if not self._idle:
            return None
        connection = self._idle.pop()
        if not connection.expired:
            return connection
        connection.close()
        self.close()  # those below have been idle for longer still
        return None

    async def _open(self) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                reader, writer = await asyncio.open_connection(self._hostname, self._port, ssl=self._tls)
        except TimeoutError:
            raise EngineError("connection", f"{self._url}: no connection in time") from None
        except OSError as error:
            raise EngineError("connection", f"{self._url}: no connection: {_reason(error)}") from error
        return _Connection(reader, writer)


class _Connection:
    """One HTTP/1.1 connection; ``reusable`` between exchanges only."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.CLIENT)
        self._idle_since = 0.0
        self.reusable = False

    @property
    def expired(self) -> bool:
        """Whether the server may have closed it, or has."""
        return time.monotonic() - self._idle_since > KEEPALIVE_S or self._reader.at_eof()

    async def exchange(self, request: h11.Request, content: bytes) -> tuple[int, bytes]:
        """Send a request and read its response."""
        self.reusable = False
        protocol = self._protocol
        parts = (protocol.send(request), protocol.send(h11.Data(data=content)), protocol.send(h11.EndOfMessage()))
        self._writer.write(b"".join(part for part in parts if part))
        await self._writer.drain()
        status = 0
        body: list[bytes] = []
        while True:
            event = protocol.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                if not data and not status:
                    raise ConnectionResetError("the server closed the connection without a response")
                protocol.receive_data(data)
            elif isinstance(event, h11.Data):
                body.append(bytes(event.data))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.EndOfMessage):
                break
        if protocol.our_state is h11.DONE and protocol.their_state is h11.DONE:
            protocol.start_next_cycle()
            self._idle_since = time.monotonic()
            self.reusable = True
        return status, b"".join(body)

    def close(self) -> None:
        self._writer.transport.abort()


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
