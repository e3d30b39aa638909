"""The sandbox's image, built once for all tests, and pools of it."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import docker
import docker.errors
import pytest

from code_verifier.config import CodeConfig
from code_verifier.engine import connect
from code_verifier.image import build_image, image_digest
from code_verifier.pool import SandboxPool
from support.docker import PrivateDaemon, missing_for_docker, missing_for_private_daemon, sandbox_base


def _forget_old_images(client: docker.DockerClient) -> None:
    """Images of earlier days' code; today's may be in use by tests beside these."""
    for image in client.images.list("gristmill-sandbox-test"):
        if time.time() - datetime.fromisoformat(image.attrs["Created"][:19] + "+00:00").timestamp() > 86_400:
            with contextlib.suppress(docker.errors.APIError):
                client.images.remove(image.id, force=True)


@pytest.fixture(scope="session")
def sandbox_image() -> str:
    """Name of an image of the present code. Its layers are cached by the engine, and the name is that of the content:
    tests that run side by side build the same thing."""
    missing = missing_for_docker()
    if missing:
        pytest.skip(missing)
    name = f"gristmill-sandbox-test:{image_digest()[:16]}"
    with contextlib.closing(docker.from_env(timeout=60)) as client:
        base = sandbox_base(client)
        _forget_old_images(client)
    with connect() as engine:
        build_image(engine, tag=name, base=str(base))
    return name


@pytest.fixture(scope="session")
def code_config(sandbox_image: str) -> CodeConfig:
    """Two sandboxes with short limits."""
    return CodeConfig(workers=2, image=sandbox_image, time_limit_s=3.0)


@pytest.fixture(scope="session")
def shared_pool(code_config: CodeConfig) -> Iterator[SandboxPool]:
    """A pool for tests that leave it as it was."""
    with SandboxPool(code_config) as pool:
        yield pool


@pytest.fixture(scope="module")
def private_daemon(sandbox_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateDaemon]:
    """An engine that a test may stop: with the sandbox's image, and gVisor registered where it is installed."""
    missing = missing_for_private_daemon()
    if missing:
        pytest.skip(missing)
    # Not below pytest's folder: the engine's socket needs a short path.
    folder = Path("/tmp") / f"gristmill-docker-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    folder.mkdir()
    runsc = {"path": "runsc", "runtimeArgs": ["--network=none", "--oci-seccomp"]}
    with PrivateDaemon(folder, {"runsc": runsc}) as daemon:
        daemon.copy_image(sandbox_image)
        yield daemon
