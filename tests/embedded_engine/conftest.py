"""One random model, two adapters, and one engine for the tests that leave no trace on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine import Client, Reference, RunningEngine, make_adapter, make_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine-models")


@pytest.fixture(scope="session")
def model(models: Path) -> Path:
    return make_model(models / "base")


@pytest.fixture(scope="session")
def adapter_one(models: Path, model: Path) -> Path:
    return make_adapter(model, models / "one", seed=1)


@pytest.fixture(scope="session")
def adapter_two(models: Path, model: Path) -> Path:
    return make_adapter(model, models / "two", r=3, alpha=5, targets=("q_proj", "v_proj", "down_proj"), seed=2)


@pytest.fixture(scope="session")
def references(model: Path, adapter_one: Path, adapter_two: Path) -> dict[str | None, Reference]:
    return {None: Reference(model), "one": Reference(model, adapter_one), "two": Reference(model, adapter_two)}


@pytest.fixture(scope="session")
def engine(model: Path, adapter_one: Path, adapter_two: Path) -> Iterator[RunningEngine]:
    with RunningEngine(model, max_running_requests=16, context_length=512) as running:
        client = Client(running.url)
        for name, path in (("one", adapter_one), ("two", adapter_two)):
            status, answer = client.post("/load_lora_adapter", lora_name=name, lora_path=str(path))
            assert status == 200, answer
        client.http.close()
        yield running


@pytest.fixture
def client(engine: RunningEngine) -> Iterator[Client]:
    made = Client(engine.url)
    yield made
    made.http.close()
