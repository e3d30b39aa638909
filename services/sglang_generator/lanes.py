"""Connections for the one busy path, ``/generate``: each request in flight has a connection to itself.

How many there are is bounded by the engine's slots, so all a pool would have to do is keep a stack of idle ones.
httpx's own pool looks at every connection for every request: 9 ms of CPU per request at 64 in flight. Control calls,
which are few, do go through httpx.

Requests and answers are handed over by calls rather than by tasks: when hundreds of answers arrive at once, the
requests that follow them leave within the same turn of the event loop.
"""

from __future__ import annotations

import asyncio
import select
import ssl
import time
from collections.abc import Callable
from typing import TypeAlias, cast
from urllib.parse import urlsplit

import h11

from sglang_generator.errors import EngineError
from sglang_generator.http1 import Response, ResponseReader

KEEPALIVE_S = 2.0
"""Idle connections are dropped before the server drops them (uvicorn: 5 s), else a request may meet a closed one."""
_READ_BYTES = 1 << 18

Outcome: TypeAlias = Response | EngineError
Done: TypeAlias = Callable[[Outcome], None]
"""Called once, from the event loop, unless the request is given up before; it must not raise."""


class Flight:
    """One request on its way."""

    __slots__ = ("_deadline", "_done", "_lane", "_lanes", "_opening")

    def __init__(self, lanes: Lanes, done: Done) -> None:
        self._lanes = lanes
        self._done: Done | None = done
        self._lane: Lane | None = None
        self._opening: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def give_up(self) -> None:
        """Let go of the request and of its connection, which is of no use any more; ``done`` is not called."""
        self._done = None
        self._lanes.flights.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._lane is not None:
            self._lane.close()

    def end(self, outcome: Outcome) -> None:
        """Hand the outcome over."""
        done = self._done
        self._lane = None
        self.give_up()
        if done is not None:
            done(outcome)

    def time_out(self) -> None:
        """End the request for want of an answer."""
        done = self._done
        self.give_up()
        if done is not None:
            done(EngineError("timeout", f"{self._lanes.url}: no response in time, or the engine was given up"))

    def start(self, data: bytes, timeout_s: float) -> None:
        """Send the request; called once."""
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(timeout_s, self.time_out)
        lane = self._lanes.take()
        if lane is None:
            self._opening = loop.create_task(self._open(data), name=f"connect {self._lanes.url}")
        else:
            self._lane = lane
            lane.exchange(self, data)

    async def _open(self, data: bytes) -> None:
        try:
            self._lane = await self._lanes.open()
        except EngineError as error:
            self._opening = None
            self.end(error)
            return
        self._opening = None
        self._lane.exchange(self, data)


class Lanes:
    """Connections to one server; of the idle ones the last used comes first."""

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        parts = urlsplit(url)
        self.url = url
        self.flights: set[Flight] = set()
        """Requests that wait for their response."""
        self.buffer = memoryview(bytearray(_READ_BYTES))
        """Where bytes arrive; whoever gets them takes a copy at once."""
        self.host = parts.netloc.rpartition("@")[2]
        self.path = parts.path.rstrip("/")
        self._hostname = parts.hostname or ""
        self._port = parts.port if parts.port is not None else {"http": 80, "https": 443}[parts.scheme]
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[Lane] = []

    def head(self, path: str, headers: list[tuple[str, str]]) -> bytes:
        """Head of a POST, but for the length at its end.

        Raises:
            h11.LocalProtocolError: a header is not one.
        """
        request = h11.Request(method="POST", target=self.path + path, headers=[("Host", self.host), *headers])
        data = h11.Connection(h11.CLIENT).send(request)
        assert data is not None
        return data.removesuffix(b"\r\n") + b"Content-Length: "

    def send(self, head: bytes, content: bytes, timeout_s: float, done: Done) -> Flight:
        """Send a request: at once where a connection is idle, else as soon as there is one."""
        flight = Flight(self, done)
        self.flights.add(flight)
        flight.start(b"%b%d\r\n\r\n%b" % (head, len(content), content), timeout_s)
        return flight

    def time_out(self) -> None:
        """End every request that is in flight, for a server that answers no more."""
        for flight in list(self.flights):
            flight.time_out()

    def close(self) -> None:
        """Close the idle connections; those in use close with their requests."""
        while self._idle:
            self._idle.pop().close()

    def give(self, lane: Lane) -> None:
        """Take a connection back."""
        if self._tls is None:
            self._idle.append(lane)
        else:
            # What ends a TLS connection may be decrypted already and lie behind the answer: the lane hears of it next.
            asyncio.get_running_loop().call_soon(self._idle.append, lane)

    def take(self) -> Lane | None:
        """An idle connection that the server has not closed."""
        while self._idle:
            lane = self._idle.pop()
            if lane.gone:
                lane.close()
                continue
            if not lane.expired:
                return lane
            lane.close()
            self.close()  # those below have been idle for longer still
        return None

    async def open(self) -> Lane:
        """Another connection.

        Raises:
            EngineError: ``connection``.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, lane = await loop.create_connection(lambda: Lane(self), self._hostname, self._port, ssl=self._tls)
        except TimeoutError:
            raise EngineError("connection", f"{self.url}: no connection in time") from None
        except OSError as error:
            raise EngineError("connection", f"{self.url}: no connection: {_reason(error)}") from error
        return lane


class Lane(asyncio.BufferedProtocol):
    """One connection, which carries one request at a time."""

    def __init__(self, lanes: Lanes) -> None:
        self.closed = False
        self._lanes = lanes
        self._transport: asyncio.Transport
        self._poll = select.poll()
        self._flight: Flight | None = None
        self._reader = ResponseReader()
        self._idle_since = 0.0

    @property
    def gone(self) -> bool:
        """Whether the server has closed it, even where the event loop has not come to hear of it: an idle connection
        on which something has arrived, its end or bytes that nobody asked for, is of no use."""
        return self.closed or self._transport.is_closing() or bool(self._poll.poll(0))

    @property
    def expired(self) -> bool:
        """Whether the server may close it soon."""
        return time.monotonic() - self._idle_since > KEEPALIVE_S

    def exchange(self, flight: Flight, data: bytes) -> None:
        """Send a request; its flight ends with the response."""
        self._flight = flight
        self._reader = ResponseReader()
        if self.closed:
            self._fail(ConnectionResetError("the server closed the connection"))
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Cut the connection; a flight that it carries hears nothing of it."""
        self.closed = True
        self._flight = None
        self._reader = ResponseReader()
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio passes it)
        return self._lanes.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._feed(bytes(self._lanes.buffer[:nbytes]))

    def eof_received(self) -> None:
        self.closed = True
        if self._flight is not None:
            if self._reader.begun:
                self._feed(b"")
            else:
                self._fail(ConnectionResetError("the server closed the connection without a response"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._fail(exc or ConnectionResetError("the connection was closed"))

    def _feed(self, data: bytes) -> None:
        flight = self._flight
        if flight is None:
            self.close()  # nobody asked for anything
            return
        try:
            response = self._reader.feed(data)
        except h11.ProtocolError as error:
            self._fail(error)
            return
        if response is None:
            if not data:
                self._fail(ConnectionResetError("the server closed the connection within a response"))
            return
        self._flight = None
        self._reader = ResponseReader()  # the old one holds the answer
        # An answer that came before its request had left: the rest of that would go in front of the next one.
        sent = not self._transport.get_write_buffer_size()
        if response.reusable and sent and not self.closed:
            self._idle_since = time.monotonic()
            self._lanes.give(self)  # first: what follows the answer takes this connection
        else:
            self.close()
        flight.end(response)

    def _fail(self, error: Exception) -> None:
        flight = self._flight
        self.close()
        if flight is not None:
            flight.end(EngineError("connection", f"{self._lanes.url}: connection failed: {_reason(error)}"))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
