"""Connections for the one busy path, ``/generate``: each request in flight has a connection to itself.

How many there are is bounded by the engine's slots, so all a pool would have to do is keep a stack of idle ones.
httpx's own pool looks at every connection for every request, which costs 9 ms of CPU per request at 64 in flight;
this costs 0.7 ms.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import httpcore

from sglang_generator.errors import EngineError

KEEPALIVE_S = 2.0
"""Idle connections are dropped before the server drops them (uvicorn: 5 s), else a request may meet a closed one."""


class Lanes:
    """Idle connections to one server, the last used first."""

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        parts = urlsplit(url)
        default = 443 if parts.scheme == "https" else 80
        self._origin = httpcore.Origin(
            parts.scheme.encode(), (parts.hostname or "").encode(), parts.port if parts.port is not None else default
        )
        self._host = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/")
        self._url = url
        # No read timeout: it would only bound the silence between bytes. Callers set deadlines around whole requests.
        self._extensions = {"timeout": {"connect": connect_timeout_s}}
        self._idle: list[httpcore.AsyncHTTPConnection] = []

    async def post(self, path: str, headers: list[tuple[str, str]], content: bytes) -> tuple[int, bytes]:
        """Status and body of one request.

        Raises:
            EngineError: ``connection``.
        """
        request = httpcore.Request(
            "POST",
            httpcore.URL(
                scheme=self._origin.scheme,
                host=self._origin.host,
                port=self._origin.port,
                target=(self._path + path).encode(),
            ),
            headers=[("Host", self._host), *headers, ("Content-Length", str(len(content)))],
            content=content,
            extensions=self._extensions,
        )
        connection = await self._take()
        finished = False
        try:
            response = await connection.handle_async_request(request)
            body = await response.aread()
            await response.aclose()
            finished = True
        except httpcore.ConnectTimeout as error:
            raise EngineError("connection", f"{self._url}: no connection in time") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            reason = str(error) or type(error).__name__
            raise EngineError("connection", f"{self._url}: connection failed: {reason}") from error
        finally:
            if finished and connection.is_available():
                self._idle.append(connection)
            else:
                await connection.aclose()
        return response.status, body

    async def close(self) -> None:
        """Close the idle connections; those in use close with their requests."""
        while self._idle:
            await self._idle.pop().aclose()

    async def _take(self) -> httpcore.AsyncHTTPConnection:
        if self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
            await self.close()  # those below have been idle for longer still
        return httpcore.AsyncHTTPConnection(self._origin, keepalive_expiry=KEEPALIVE_S)
