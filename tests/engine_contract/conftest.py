"""The engine under test: one that is started here, or a server that runs already.

Variables, all optional:

- ``GRISTMILL_ENGINE_URL``: address of a running server; without it an embedded engine with a small random model is
  started. SGLang needs ``--enable-lora --max-lora-rank 16 --lora-target-modules all``.
- ``GRISTMILL_ENGINE_MODEL``: folder of the checkpoint that the server serves; taken from its ``/model_info`` when
  absent. The suite reads it too: the reference, the tokenizer and the weights that are put back come from it.
- ``GRISTMILL_ENGINE_SHARED``: folder in which two adapters and a changed checkpoint are made for the server to read;
  a temporary one when absent (the server runs on this machine).
- ``GRISTMILL_ENGINE_API_KEY``: its key.
- ``GRISTMILL_ENGINE_DTYPE``: ``bfloat16`` (default for SGLang) or ``float32``: of the reference, and so the tolerance.
- ``GRISTMILL_ENGINE_RANK0``: device of the trainer's end of an NCCL group, which may not be the server's own GPU;
  default ``cuda:1`` where two GPUs are visible, else those tests are skipped.

The suite needs pytest, httpx, torch, safetensors, transformers and peft, and no other part of the repository than
``tests/``; the tests of the generator's own client need ``services/`` on the path, else they are skipped. It leaves the
server with the weights of ``GRISTMILL_ENGINE_MODEL`` and without the adapters that it loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
# As SGLang sets them for its own processes: both ends of an NCCL group must agree.
os.environ.setdefault("NCCL_CUMEM_ENABLE", "0")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

from support.contract import Target, checksum, from_disk, version
from support.engine import Client, RunningEngine, make_adapter, make_changed, make_model


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder: Path = tmp_path_factory.mktemp("contract")
    url = os.environ.get("GRISTMILL_ENGINE_URL")
    if url:
        yield running_server(url, Path(os.environ.get("GRISTMILL_ENGINE_SHARED") or folder))
        return
    model = make_model(folder / "model")
    with RunningEngine(model, update_timeout_s=30.0) as engine:
        yield describe(engine.url, model, folder, torch.float32, embedded=True, headers={}, rank0="cpu")


def running_server(url: str, folder: Path) -> Target:
    """A server that somebody else started."""
    key = os.environ.get("GRISTMILL_ENGINE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = Client(url, headers=headers)
    info, server = client.get("/model_info")[1], client.get("/server_info")[1]
    client.http.close()
    model = Path(os.environ.get("GRISTMILL_ENGINE_MODEL") or info["model_path"])
    if not (model / "config.json").is_file():
        pytest.exit(f"{model}: no checkpoint there; set GRISTMILL_ENGINE_MODEL to the folder that the server serves", 2)
    folder.mkdir(parents=True, exist_ok=True)
    embedded = server.get("engine") == "gristmill"
    rank0 = os.environ.get("GRISTMILL_ENGINE_RANK0") or ("cuda:1" if torch.cuda.device_count() > 1 else None)
    if embedded and server["device"] == "cpu":
        rank0 = "cpu"
    dtype = getattr(torch, os.environ.get("GRISTMILL_ENGINE_DTYPE") or (server["dtype"] if embedded else "bfloat16"))
    return describe(url, model, folder, dtype, embedded=embedded, headers=headers, rank0=rank0)


def describe(
    url: str,
    model: Path,
    folder: Path,
    dtype: torch.dtype,
    *,
    embedded: bool,
    headers: dict[str, str],
    rank0: str | None,
) -> Target:
    """The target, with its adapters and its other checkpoint."""
    one, two = (str(make_adapter(model, folder / f"adapter-{seed}", seed=seed)) for seed in (1, 2))
    return Target(
        url,
        model,
        (one, two),
        make_changed(model, folder / "changed"),
        dtype,
        embedded=embedded,
        headers=headers,
        rank0=rank0,
        backend="gloo" if rank0 == "cpu" else "nccl",
    )


@pytest.fixture
def client(target: Target) -> Iterator[Client]:
    made = target.client()
    yield made
    made.post("/continue_generation")
    made.http.close()


@pytest.fixture(scope="session")
def original(target: Target) -> str:
    """Checksum of the served checkpoint, before any test has changed the weights."""
    client = target.client()
    found = checksum(client)
    client.http.close()
    return found


@pytest.fixture
def restored(target: Target, client: Client, original: str) -> Iterator[None]:
    """The server has its own weights and version again when the test is over."""
    before = version(client)
    yield
    client.post("/continue_generation")
    from_disk(client, target.model, before)
    assert checksum(client) == original
