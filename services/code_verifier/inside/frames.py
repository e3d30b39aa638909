"""Frames: a length, a kind, a payload.

Two layers use the same form. Between host and warden (:data:`CHUNK` bounds a payload): job, data, kill, ping one way;
hello, data, output, errors, ended, pong the other. Inside the data runs the channel of a child (:data:`MESSAGE_LIMIT`):
a stream of messages cut into chunks at will, which the warden does not read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

HEADER = struct.Struct(">IB")
CHUNK = 1 << 16
MESSAGE_LIMIT = 16 << 20
BODY_LIMIT = 256 << 20
FAILED_LIMIT = 1 << 15
"""Bytes of what a child says of its failure, and all that a whole program's child has to say."""

# host to warden
JOB, DATA, KILL, PING = b"J"[0], b"D"[0], b"K"[0], b"P"[0]
# warden to host (and DATA, PING)
HELLO, OUT, ERR, ENDED = b"H"[0], b"o"[0], b"e"[0], b"E"[0]

# messages of a child's channel
BODY = b"B"[0]  # host to child: what to do
GO = b"G"[0]  # host to child: the other side is ready
ASK, ANSWER = b"Q"[0], b"A"[0]  # child to child
OPENING = b"N"[
    0
]  # judge to host, before its READY: a request that goes to the candidate with GO, in place of judge's GO
READY, FAILED, TEST, DONE = b"R"[0], b"F"[0], b"T"[0], b"V"[0]  # child to host


class FrameError(Exception):
    """Bytes that are no frame."""


class Closed(EOFError):
    """The other end of a channel is gone. (A program's own EOFError is none.)"""


class Splitter:
    """Cuts a stream into frames.

    Args:
        limit: largest payload; a larger one raises :class:`FrameError`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[tuple[int, bytes]]:
        """Kind and payload of every frame that ``data`` completes."""
        held = self._held
        held += data
        at = 0
        try:
            while len(held) - at >= HEADER.size:
                size, kind = HEADER.unpack_from(held, at)
                if size > self._limit:
                    raise FrameError(f"a frame of {size} bytes, more than {self._limit}")
                end = at + HEADER.size + size
                if len(held) < end:
                    break
                payload = bytes(memoryview(held)[at + HEADER.size : end])
                at = end
                yield kind, payload
        finally:
            del held[:at]

    @property
    def held(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._held)


def pack(kind: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return HEADER.pack(len(payload), kind) + payload


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write to a blocking descriptor to the last byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Channel:
    """A child's end of its channel: blocking, whole messages."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._splitter = Splitter(BODY_LIMIT)  # the host holds the other child to MESSAGE_LIMIT
        self._ready: list[tuple[int, bytes]] = []
        self._held = bytearray()

    def hold(self, kind: int, payload: bytes) -> None:
        """Send a small message together with the next one."""
        self._held += pack(kind, payload)

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send one message; raises :class:`FrameError` for one that is too large."""
        if len(payload) > MESSAGE_LIMIT:
            raise FrameError(f"a message of {len(payload)} bytes, more than {MESSAGE_LIMIT}")
        write_all(self._fd, self._held + pack(kind, payload))
        self._held.clear()

    def receive(self) -> tuple[int, bytes]:
        """The next message; raises :class:`Closed` when the other end is closed."""
        while not self._ready:
            data = os.read(self._fd, CHUNK)
            if not data:
                raise Closed("the channel is closed")
            self._ready.extend(self._splitter.feed(data))
        return self._ready.pop(0)
