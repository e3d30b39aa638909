"""Both ends of a run without containers: scripts play the wardens of the candidate and of the judge."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from code_verifier.conduct import run_job
from code_verifier.inside import frames
from code_verifier.job import AssertTests, Case, Job, Limits, Outcome, StdioTests
from code_verifier.link import Link

JOB = Job("def add(a, b): return a + b", AssertTests("assert add(2, 3) == 5"), time_s=1.0)
SUM = Job("print(5)", StdioTests((Case("2 3", "5"),)), time_s=1.0)
CALL = b'["t","call",["w",0],["t",2,3],["d"]]'


class Warden:
    """One end of an attach socket, as a warden and its child would speak."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._warden = frames.Splitter(frames.CHUNK)
        self._child = frames.Splitter(frames.BODY_LIMIT)
        self._heard: list[tuple[str, int, bytes]] = []
        self.idle = True

    def raw(self, data: bytes, stream: int = 1) -> None:
        self._sock.sendall(struct.pack(">B3xI", stream, len(data)) + data)

    def frame(self, kind: int, payload: bytes = b"") -> None:
        self.raw(frames.pack(kind, payload))

    def say(self, kind: int, payload: bytes = b"") -> None:
        data = frames.pack(kind, payload)
        for at in range(0, len(data), frames.CHUNK):
            self.frame(frames.DATA, data[at : at + frames.CHUNK])

    def ended(self, why: str = "kill", **what: Any) -> None:
        account = {
            "why": why,
            "code": None,
            "left": 0,
            "peak": 1,
            "cpu": 0,
            "seconds": 0,
            "oom": False,
            "unclean": None,
        }
        self.frame(frames.ENDED, json.dumps(account | what).encode())

    def hear(self) -> tuple[str, int, bytes]:
        """Next thing from the host: ("frame", kind, payload) or ("message", kind, payload)."""
        while not self._heard:
            data = self._sock.recv(1 << 16)
            if not data:
                raise EOFError
            for kind, payload in self._warden.feed(data):
                if kind == frames.DATA:
                    self._heard += [("message", k, p) for k, p in self._child.feed(payload)]
                else:
                    if kind == frames.JOB:
                        begun = {"nonce": json.loads(payload)["nonce"], "idle": self.idle}
                        self.frame(frames.PING, json.dumps(begun).encode())
                    self._heard.append(("frame", kind, payload))
        return self._heard.pop(0)

    def until(self, kind: int) -> bytes:
        """The payload of the next message or frame of a kind."""
        while True:
            _, found, payload = self.hear()
            if found == kind:
                return payload

    def obey(self) -> None:
        """End when told to."""
        self.until(frames.KILL)
        self.ended()


Script = Callable[[Warden], None]


class Stage:
    """Two links whose other ends are played by scripts in threads."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def link(self, which: str, script: Script) -> Link:
        ours, theirs = socket.socketpair()
        self._sockets += [ours, theirs]

        def play() -> None:
            try:
                script(Warden(theirs))
            except (EOFError, OSError):
                return

        thread = threading.Thread(target=play, daemon=True)
        thread.start()
        self._threads.append(thread)
        return Link(ours, which)

    def run(self, candidate: Script, judge: Script, job: Job = JOB, limits: Limits | None = None) -> Outcome:
        pair = self.link("candidate", candidate), self.link("judge", judge)
        outcome = run_job(*pair, job, limits or Limits(time_s=1.0))
        assert not any(link.running for link in pair)
        self.links = pair
        return outcome

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        for thread in self._threads:
            thread.join(5)


def loaded(warden: Warden, told: bytes = b"") -> None:
    """A part that has loaded and is told to go; a judge says ``ready`` with what it found, ``[]`` for nothing."""
    warden.until(frames.BODY)
    warden.say(frames.READY, told)
    warden.until(frames.GO)


def honest(warden: Warden) -> None:
    loaded(warden)
    warden.until(frames.ASK)
    warden.say(frames.ANSWER, b'["ok",5,[],null]')
    warden.obey()


def judging(warden: Warden) -> None:
    loaded(warden, b"[]")
    warden.say(frames.ASK, CALL)
    warden.until(frames.ANSWER)
    warden.say(frames.TEST, b'[0,"passed","",0.1]')
    warden.say(frames.DONE, b'[null,""]')
    warden.ended("exit", code=0)


def waiting(warden: Warden) -> None:
    warden.until(frames.BODY)
    warden.say(frames.READY, b"[]")
    warden.obey()


def asking(warden: Warden) -> None:
    """A judge that asks, and takes what comes."""
    loaded(warden, b"[]")
    warden.say(frames.ASK, CALL)
    warden.obey()
