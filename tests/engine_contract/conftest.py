"""The engine under test: ``GRISTMILL_ENGINE_URL``, or an embedded engine started here.

Against a real SGLang server start it with ``--enable-lora --max-lora-rank 16 --lora-target-modules all`` and give

- ``GRISTMILL_ENGINE_URL``: its address; ``GRISTMILL_ENGINE_API_KEY`` when it wants one;
- ``GRISTMILL_ENGINE_ADAPTERS``: two adapter folders, separated by a colon, that the server can read;
- ``GRISTMILL_ENGINE_CHECKPOINT``: a checkpoint of the served shape, for the weight updates (the model itself will do).

Tests whose variable is missing are skipped. The suite leaves the server with the weights of that checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine import Client, RunningEngine, Target, make_adapter, make_model


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    url = os.environ.get("GRISTMILL_ENGINE_URL")
    if url:
        adapters = tuple(filter(None, os.environ.get("GRISTMILL_ENGINE_ADAPTERS", "").split(":")))
        yield Target(url, adapters, os.environ.get("GRISTMILL_ENGINE_CHECKPOINT"))
        return
    folder: Path = tmp_path_factory.mktemp("contract")
    model = make_model(folder / "model")
    adapters = tuple(str(make_adapter(model, folder / f"adapter-{seed}", seed=seed)) for seed in (1, 2))
    checkpoint = make_model(folder / "next", seed=5)
    with RunningEngine(model) as engine:
        yield Target(engine.url, adapters, str(checkpoint))


@pytest.fixture
def client(target: Target) -> Iterator[Client]:
    key = os.environ.get("GRISTMILL_ENGINE_API_KEY")
    made = Client(target.url, headers={"Authorization": f"Bearer {key}"} if key else {})
    yield made
    made.post("/continue_generation")
    made.http.close()
