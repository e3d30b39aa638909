"""Engines that answer, that answer no longer, and what they say to the runner."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gristmill.errors import GristmillError, InfrastructureError
from gristmill.local import engines
from gristmill.local.engines import EngineWatch, answers, call
from gristmill.local.process import Part, wait_until


class Server(ThreadingHTTPServer):
    """Answers /health until it is told to hang, and echoes what is posted."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hang = threading.Event()
        self.asked = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked += 1
        if self.server.hang.is_set():
            time.sleep(1)
            return
        self._reply(200 if self.path == "/health" else 404, b"[]")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/refuse":
            self._reply(400, b'{"error": "no such weights"}')
        else:
            self._reply(200, json.dumps({"got": body, "key": self.headers.get("Authorization")}).encode())

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.shutdown()
    found.server_close()


def test_a_server_that_goes_silent_is_named_with_the_end_of_its_log(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "WATCH_INTERVAL_S", 0.02)
    monkeypatch.setattr(engines, "ANSWER_TIMEOUT_S", 0.1)
    log = tmp_path / "engine.log"
    log.write_text("decoding\nlast words\n")
    watch = EngineWatch({server.url: (Part("engine-1", ["true"], log), 0.6)})
    watch.start()
    try:
        while server.asked < 3:
            time.sleep(0.01)
        watch.check()
        server.hang.set()
        with pytest.raises(GristmillError, match=r"(?s)engine-1 hangs: no answer from .*/health .*last words"):
            wait_until(lambda: watch.check() is not None, [], 30, "the hang")
    finally:
        watch.stop()


def test_calls_carry_the_key_and_errors_say_what_the_server_said(server: Server) -> None:
    assert answers(f"{server.url}/health")
    assert not answers(f"{server.url}/nothing")
    found = call(f"{server.url}/echo", {"model_path": "/m"}, "secret", 5)
    assert found == {"got": {"model_path": "/m"}, "key": "Bearer secret"}
    with pytest.raises(InfrastructureError, match="answers 400.*no such weights"):
        call(f"{server.url}/refuse", {}, None, 5)
    with pytest.raises(InfrastructureError, match="no JSON object"):
        call(f"{server.url}/health", None, None, 5)
    with pytest.raises(InfrastructureError, match="does not answer"):
        call("http://127.0.0.1:1/health", None, None, 5)
