"""The host's end of a container's attach socket.

Unpacks Docker's multiplexed stream, the warden's frames inside it, and the messages of a child's channel inside those.
Nothing here blocks: :func:`wait` does, until a deadline, for any of several links, and sends what is queued meanwhile,
so two links cannot wait for each other.
"""

from __future__ import annotations

import json
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from code_verifier.inside import frames

_DOCKER = 8
_READ = 1 << 18


class SandboxBroken(Exception):
    """A container cannot be used any more.

    Attributes:
        which: ``candidate`` or ``judge``.
        why: what it did.
    """

    def __init__(self, which: str, why: str) -> None:
        super().__init__(f"the {which}'s container: {why}")
        self.which = which
        self.why = why


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the child."""

    kind: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of the child's standard output or error (``kind``)."""

    kind: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The warden's account of a run; see :mod:`code_verifier.inside.supervisor`."""

    why: str
    code: int | None
    left: int
    peak: int
    oom: bool
    unclean: str | None


@dataclass(frozen=True, slots=True)
class Note:
    """Hello or pong."""

    kind: int
    what: dict[str, Any]


Event = Message | Output | Ended | Note


class Link:
    """A socket to one container.

    Args:
        sock: attached to standard input, output and error of PID 1; made non-blocking here.
        which: ``candidate`` or ``judge``, for error messages.

    Attributes:
        suspicion: why the container should be retired, if it should.
        running: whether a run was begun that has not ended.
    """

    def __init__(self, sock: socket.socket, which: str) -> None:
        sock.setblocking(False)
        self._sock = sock
        self.which = which
        self.suspicion: str | None = None
        self.running = False
        self._docker = bytearray()
        self._warden = frames.Splitter(frames.CHUNK)
        self._child = frames.Splitter(frames.MESSAGE_LIMIT)
        self._events: deque[Event] = deque()
        self._unsent: deque[memoryview] = deque()
        self._diagnostics = bytearray()
        self._closed: str | None = None
        self._deaf = False
        self._nonce: str | None = None

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether something is queued."""
        return bool(self._unsent)

    @property
    def has_event(self) -> bool:
        """Whether :meth:`next` gives something, or raises."""
        return bool(self._events) or self._closed is not None

    def next(self) -> Event:
        """The next event; raises :class:`SandboxBroken` when the container is gone."""
        if self._events:
            return self._events.popleft()
        raise self.broken(self._closed or "nothing was said")

    def broken(self, why: str) -> SandboxBroken:
        """The error to raise, with what the warden said last on its standard error."""
        said = self._diagnostics.decode(errors="replace").strip()
        return SandboxBroken(self.which, f"{why} ({said})" if said else why)

    def begin(self, role: str, body: dict[str, Any], settings: dict[str, Any]) -> None:
        """Start a run and give its child the body."""
        if self.running:
            raise self.broken("a run was begun before the last had ended")
        self.running = True
        self._child = frames.Splitter(frames.MESSAGE_LIMIT)
        self._deaf = False
        # Nothing is taken for this run's until the warden says that it was idle before it.
        self._nonce = secrets.token_hex(16)
        self._queue(frames.JOB, json.dumps({"role": role, "nonce": self._nonce, **settings}).encode())
        self.tell(frames.BODY, json.dumps(body).encode())

    def tell(self, kind: int, payload: bytes) -> None:
        """Send the child a message."""
        data = memoryview(frames.pack(kind, payload))
        for at in range(0, len(data), frames.CHUNK):
            self._queue(frames.DATA, data[at : at + frames.CHUNK])

    def kill(self) -> None:
        """End the run: what its child says from here on is not read."""
        self._deaf = True
        self._queue(frames.KILL, b"")

    def ping(self) -> None:
        """Ask for a sign of life, where no run is on."""
        self._queue(frames.PING, b"")

    def await_note(self, kind: int, seconds: float) -> dict[str, Any]:
        """What hello or a pong says; raises :class:`SandboxBroken` when it does not come."""
        deadline = time.monotonic() + seconds
        while True:
            wait((self,), deadline)
            if not self.has_event:
                raise self.broken(f"no sign of life in {seconds:g} s")
            event = self.next()
            if isinstance(event, Note) and event.kind == kind:
                return event.what

    def hello(self, seconds: float) -> dict[str, Any]:
        """The warden's first words."""
        return self.await_note(frames.HELLO, seconds)

    def close(self) -> None:
        """Close the socket: the warden ends with it."""
        self._closed = self._closed or "closed"
        self._sock.close()

    def _queue(self, kind: int, payload: bytes | memoryview) -> None:
        self._unsent.append(memoryview(frames.HEADER.pack(len(payload), kind)))
        if payload:
            self._unsent.append(memoryview(payload))

    def flush(self) -> None:
        """Send what the socket takes."""
        try:
            while self._unsent:
                parts = [self._unsent[n] for n in range(min(16, len(self._unsent)))]
                sent = self._sock.sendmsg(parts) if len(parts) > 1 else self._sock.send(parts[0])
                while sent and self._unsent:
                    first = self._unsent[0]
                    if sent < len(first):
                        self._unsent[0] = first[sent:]
                        break
                    sent -= len(first)
                    self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            # It has ended: what it said before that is still to be read.
            while self._closed is None and select.select([self._sock], [], [], 0)[0]:
                self.pump()
            self._end(f"cannot be written to: {error}")

    def pump(self) -> None:
        """Read what is there."""
        try:
            data = self._sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"cannot be read: {error}")
            return
        if not data:
            self._end("has ended")
            return
        try:
            self._unpack(data)
        except (frames.FrameError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
            self._end(f"spoke nonsense: {error}")

    def _end(self, why: str) -> None:
        self._unsent.clear()
        if self._closed is None:
            self._closed = why

    def _unpack(self, data: bytes) -> None:
        held = self._docker
        held += data
        at = 0
        while len(held) - at >= _DOCKER:
            stream = held[at]
            size = int.from_bytes(held[at + 4 : at + _DOCKER], "big")
            end = at + _DOCKER + size
            if size > frames.MESSAGE_LIMIT or stream > 2:
                raise ValueError("no Docker stream")
            if len(held) < end:
                break
            part = bytes(memoryview(held)[at + _DOCKER : end])
            at = end
            if stream == 2:
                self._diagnostics += part
                del self._diagnostics[:-4096]
            else:
                for kind, payload in self._warden.feed(part):
                    self._frame(kind, payload)
        del held[:at]

    def _frame(self, kind: int, payload: bytes) -> None:
        if self._nonce is not None:
            if kind != frames.PING or json.loads(payload) != {"nonce": self._nonce, "idle": True}:
                raise ValueError("not idle before a run")
            self._nonce = None
            return
        if kind == frames.DATA:
            if self._deaf:
                return
            try:
                self._events.extend(Message(k, p) for k, p in self._child.feed(payload))
            except frames.FrameError:
                # The child's own fault, not the warden's: a message that nobody expects.
                self._child = frames.Splitter(frames.MESSAGE_LIMIT)
                self._events.append(Message(0, b""))
        elif kind in {frames.OUT, frames.ERR}:
            self._events.append(Output(kind, payload))
        elif kind == frames.ENDED:
            what = json.loads(payload)
            unclean, code = what["unclean"], what["code"]
            if code is not None and type(code) is not int:
                raise ValueError("an exit code")
            if unclean is not None:
                self.suspicion = str(unclean)
            self.running = False
            self._events.append(
                Ended(str(what["why"]), code, int(what["left"]), int(what["peak"]), bool(what["oom"]), unclean)
            )
        else:
            self._events.append(Note(kind, json.loads(payload)))


def wait(links: Sequence[Link], deadline: float) -> None:
    """Send and read until a link has an event, or the deadline (monotonic) has passed."""
    while True:
        for link in links:
            if link.wants_write:
                link.flush()
        if any(link.has_event for link in links):
            return
        left = deadline - time.monotonic()
        if left <= 0:
            return
        poll = select.poll()
        for link in links:
            poll.register(link.fileno(), select.POLLIN | (select.POLLOUT if link.wants_write else 0))
        ready = dict(poll.poll(left * 1000 + 1))
        for link in links:
            if ready.get(link.fileno(), 0) & ~select.POLLOUT:
                link.pump()
