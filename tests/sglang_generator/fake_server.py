"""The least of an HTTP server, in the running event loop: for fakes that must also be able to die."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self


class FakeServer:
    """Subclasses answer requests."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.crash()

    async def start(self) -> None:
        """Listen; after :meth:`crash` on the same port."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def crash(self) -> None:
        """Die: every connection is cut, every request lost."""
        if self._server is not None:
            self._server.close()
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def answer(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        """Status and body; status 0 closes the connection without an answer."""
        raise NotImplementedError

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
                method, path, _ = first.split(" ")
                headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
                raw = await reader.readexactly(int(headers.get("content-length", "0")))
                status, body = await self.answer(method, path.split("?")[0], json.loads(raw) if raw else {}, headers)
                if status == 0:
                    return
                payload = body if isinstance(body, bytes) else json.dumps(body).encode()
                head = (
                    f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
                )
                writer.write(head.encode() + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
