"""One small random model and one embedded engine for all tests of the line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.broker import free_port
from gristmill.local.engines import answers
from gristmill.local.helpers import gristmill_command
from gristmill.local.process import Part, wait_until
from support.engine import make_model


@pytest.fixture(scope="session")
def line_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("line-model"), hidden=32, layers=1)


@pytest.fixture(scope="session")
def line_engine(line_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of an embedded engine in a process of its own."""
    port = free_port()
    command = gristmill_command("engine", "--model", str(line_model), "--port", str(port))
    engine = Part("engine", command, tmp_path_factory.mktemp("line-engine") / "engine.log")
    engine.start()
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: answers(f"{url}/health"), [engine], 90, "the engine")
    yield url
    engine.check()
    engine.stop(20)
