"""Reading one HTTP/1.1 response out of the pieces in which it arrives.

An engine's answers are all of one shape: a head that gives the length, then as many bytes. That shape is read here
in a few microseconds; any other (chunks, interim responses, a connection that ends) goes through h11, which takes
a hundred and knows them all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

_HEAD_BYTES = 1 << 16
_END = b"\r\n\r\n"
_BARE_END = re.compile(rb"\n\r?\n")
_PLAIN = re.compile(rb"HTTP/1\.1 ([2-5]\d\d)[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*(?=\r\n)", re.IGNORECASE)
_ODD = re.compile(rb"\r\n(?:transfer-encoding|connection|content-length)[ \t]*:|\n[ \t]", re.IGNORECASE)
_NO_BODY = (b"204", b"304")


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response; ``reusable``: the connection may carry another request."""

    status: int
    body: bytes
    reusable: bool


class ResponseReader:
    """Takes the bytes of one response."""

    __slots__ = ("_body_at", "_events", "_have", "_parts", "_total")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0
        self._body_at = 0
        self._total = 0
        self._events: _Events | None = None

    @property
    def begun(self) -> bool:
        """Whether anything of it has come."""
        return self._have > 0

    def feed(self, data: bytes) -> Response | None:
        """Take bytes, or none at the end of the stream; gives the response once it is whole.

        Raises:
            h11.RemoteProtocolError: this is no HTTP, or it is cut off.
        """
        self._have += len(data)
        if self._events is not None:
            return self._events.feed(data)
        if not data:
            return self._hand_over(b"".join(self._parts)) or self._hand_over(b"")
        self._parts.append(data)
        if not self._total:
            joined = data if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = [joined]
            end = joined.find(_END)
            if end < 0 and self._have <= _HEAD_BYTES and not _BARE_END.search(joined):
                return None
            if end < 0 or not self._read_head(joined[: end + 2], end + len(_END)):
                return self._hand_over(joined)
        if self._have < self._total:
            return None
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        status = int(whole[9:12])
        # More than was announced belongs to no request: such a connection is not used again.
        return Response(status, whole[self._body_at : self._total], self._have == self._total)

    def _read_head(self, head: bytes, body_at: int) -> bool:
        """Whether the head, with its last line's end, is of the one shape."""
        status = _PLAIN.match(head)
        length = _LENGTH.search(head)
        if status is None or length is None or status[1] in _NO_BODY or len(_ODD.findall(head)) != 1:
            return False
        self._body_at = body_at
        self._total = body_at + int(length[1])
        return True

    def _hand_over(self, data: bytes) -> Response | None:
        if self._events is None:
            self._events = _Events()
        return self._events.feed(data)


class _Events:
    """h11 on the client's side, after a request."""

    def __init__(self) -> None:
        self._connection = h11.Connection(h11.CLIENT)
        request = h11.Request(method="POST", target="/", headers=[("Host", "engine"), ("Content-Length", "0")])
        self._connection.send(request)
        self._connection.send(h11.EndOfMessage())
        self._status = 0
        self._body: list[bytes] = []

    def feed(self, data: bytes) -> Response | None:
        connection = self._connection
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return None
            if isinstance(event, h11.Data):
                self._body.append(bytes(event.data))
            elif isinstance(event, h11.Response):
                self._status = event.status_code
            elif isinstance(event, h11.EndOfMessage):
                done = connection.our_state is h11.DONE and connection.their_state is h11.DONE
                return Response(self._status, b"".join(self._body), done and not any(connection.trailing_data))
            elif isinstance(event, h11.ConnectionClosed):
                raise h11.RemoteProtocolError("the server closed the connection without a response")
