"""The engine restarts, or is killed, while programs run: they are run again, and no verdict is wrong."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker
import docker.errors
import pytest

from code_verifier.config import CodeConfig
from code_verifier.engine import EngineAway, connect
from code_verifier.gc import collect
from code_verifier.job import AssertTests, Job
from code_verifier.pool import SandboxPool
from gristmill.errors import InfrastructureError
from support.docker import PrivateDaemon

pytestmark = pytest.mark.docker

GOOD = Job("def add(a, b):\n    return a + b\n", AssertTests("assert add(2, 3) == 5\n"))
BAD = Job("def add(a, b):\n    return a - b\n", AssertTests("assert add(2, 3) == 5\n"))
SLOW = Job(
    "import time\ndef add(a, b):\n    time.sleep(0.3)\n    return a + b\n", AssertTests("assert add(2, 3) == 5\n")
)


@pytest.fixture
def config(code_config: CodeConfig, private_daemon: PrivateDaemon) -> CodeConfig:
    if not private_daemon.answers():
        private_daemon.start()
    return code_config.model_copy(update={"docker_host": private_daemon.address})


def containers(daemon: PrivateDaemon) -> list[str]:
    with contextlib.closing(docker.DockerClient(daemon.address, version="1.41", timeout=30)) as client:
        listed = client.api.containers(all=True)
        return [f"{entry['Id'][:12]} {entry['Status']} {entry['Labels']}" for entry in listed if known(client, entry)]


def known(client: docker.DockerClient, entry: dict[str, Any]) -> bool:
    """Whether there is such a container. An engine that was killed sometimes goes on listing one as dead that
    it has removed: whoever asks for it, or removes it, is told that there is none."""
    try:
        client.api.inspect_container(entry["Id"])
    except docker.errors.NotFound:
        return False
    return True


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_under_load(config: CodeConfig, private_daemon: PrivateDaemon, how: str) -> None:
    """As the line does: a job that the engine could not run is given again, until it is run."""
    given_back = threading.Event()
    stop = threading.Event()

    def ask(job: Job) -> list[str]:
        statuses = []
        while not stop.is_set():
            try:
                statuses.append(pool.run(job).status)
            except InfrastructureError:
                given_back.set()
                time.sleep(0.1)
        return statuses

    with SandboxPool(config) as pool:
        before = set(pool.containers)
        with ThreadPoolExecutor(3) as threads:
            asked = [threads.submit(ask, job) for job in (GOOD, BAD, SLOW)]
            try:
                time.sleep(1.0)
                end: Callable[[], None] = getattr(private_daemon, how)
                end()
                assert given_back.wait(20), "nobody noticed"
                time.sleep(1.0)
                runs = pool.counts.runs
                private_daemon.start()
                deadline = time.monotonic() + 60
                while pool.counts.runs < runs + 20:
                    assert time.monotonic() < deadline, "the pool does not come back"
                    time.sleep(0.1)
            finally:
                stop.set()
            good, bad, slow = (set(future.result()) for future in asked)
        assert (good, bad, slow) == ({"passed"}, {"wrong_answer"}, {"passed"})
        # The stock tries again at intervals of its own, up to ten seconds.
        deadline = time.monotonic() + 60
        while pool.broken() is not None:
            assert time.monotonic() < deadline, pool.broken()
            time.sleep(0.1)
        assert not set(pool.containers) & before
        assert pool.counts.engine_errors > 0
    assert containers(private_daemon) == []


def test_closing_while_the_engine_is_away(config: CodeConfig, private_daemon: PrivateDaemon) -> None:
    with SandboxPool(config) as pool:
        assert pool.run(GOOD).status == "passed"
        private_daemon.kill()
        with pytest.raises(EngineAway):
            pool.run(GOOD)
        started = time.monotonic()
    assert time.monotonic() - started < 30
    private_daemon.start()
    deadline = time.monotonic() + 30
    while containers(private_daemon):
        assert time.monotonic() < deadline, "the engine keeps containers of a pool that is gone"
        time.sleep(0.1)
    with connect(private_daemon.address) as engine:
        assert collect(engine) == []
