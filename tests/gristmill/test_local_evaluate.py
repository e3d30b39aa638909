"""What an evaluation is made on: which problems, and which weights."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gristmill.errors import GristmillError
from gristmill.local.evaluate import heldout_split, serve_weights
from gristmill.local.helpers import Helpers, Interrupt
from gristmill.local.line import LocalLine
from gristmill.local.options import LineOptions, resolve
from gristmill.local.plan import make_plan
from gristmill.messages import PolicyVersion
from gristmill.topics import Topics
from support.messages import small_message


@pytest.mark.parametrize(
    ("trained_on", "source", "split"),
    [
        (["gsm8k:data/train.jsonl"], None, "heldout"),
        (["gsm8k:data/train.jsonl"], "gsm8k:data/train.jsonl", "heldout"),
        (["gsm8k:data/train.jsonl"], "jsonl:data/train.jsonl", "heldout"),
        (["gsm8k:data/train.jsonl"], "gsm8k:data/test.jsonl", "all"),
        (["gsm8k:data/train.jsonl"], "gsm8k:data/test.jsonl,split=train", "train"),
        (["gsm8k:data/train.jsonl"], "arithmetic:levels=1", "heldout"),
        (["gsm8k:hf"], "gsm8k:hf", "heldout"),
        (["gsm8k:hf"], "gsm8k:hf/test", "all"),
    ],
)
def test_a_file_that_is_not_trained_on_is_used_whole(trained_on: list[str], source: str | None, split: str) -> None:
    settings: Any = resolve(LineOptions(policy="m", sources=tuple(trained_on)), "run").settings
    assert heldout_split(source, settings.problems.sources) == split


class Engine(ThreadingHTTPServer):
    """Weights by name: what it was given, and what it reports."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.version = "default"
        self.given: list[dict[str, Any]] = []
        self.refuses = False
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        assert self.path == "/model_info"
        self._reply({"weight_version": self.server.version})

    def do_POST(self) -> None:
        assert self.path == "/update_weights_from_disk"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.given.append(body)
        if not self.server.refuses:
            self.server.version = body["weight_version"]
        self._reply({"success": not self.server.refuses, "message": "no such folder"})

    def _reply(self, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine()
    yield found
    found.shutdown()
    found.server_close()


def line_with(engine: Engine, delivery: str) -> LocalLine:
    flags = {"generator": {"delivery": delivery}}
    resolved = resolve(LineOptions(policy="m", engines=(engine.url,), flags=flags), "run")
    plan = make_plan(resolved, lambda: ((), ""))
    return LocalLine(
        resolved, resolved.settings.common, Topics(""), Path("/base"), Path("c.yaml"), plan, Helpers(Interrupt())
    )


def test_whole_weights_are_given_where_an_engine_has_others(engine: Engine) -> None:
    line = line_with(engine, "disk")
    policy = msgspec.structs.replace(
        small_message(PolicyVersion), run_id="run", name="run-v7", uri="file:///policies/7"
    )
    assert serve_weights(line, engine.url, None) == "default"
    assert engine.given == []
    assert serve_weights(line, engine.url, policy) == "run-v7"
    assert engine.given == [{"model_path": "/policies/7", "weight_version": "run-v7"}]
    assert serve_weights(line, engine.url, policy) == "run-v7"
    assert len(engine.given) == 1
    assert serve_weights(line, engine.url, None) == "run-base", "a running engine that served another run"
    assert engine.given[1] == {"model_path": "/base", "weight_version": "run-base"}
    engine.refuses = True
    with pytest.raises(GristmillError, match="does not take the weights in /policies/7: no such folder"):
        serve_weights(line, engine.url, policy)


def test_adapters_leave_the_weights_alone(engine: Engine) -> None:
    engine.version = "whatever"
    assert serve_weights(line_with(engine, "lora"), engine.url, None) is None
    assert engine.given == []
