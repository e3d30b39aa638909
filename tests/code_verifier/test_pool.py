"""The pool on a real engine: verdicts, replacement, crashes, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import docker.errors
import pytest

from code_verifier.config import CodeConfig
from code_verifier.container import OWNER_LABEL, POOL_LABEL, owner_label
from code_verifier.engine import connect
from code_verifier.gc import collect
from code_verifier.job import AssertTests, Case, Job, StdioTests
from code_verifier.pool import SandboxPool
from gristmill.errors import InfrastructureError
from support.kafka import die_with_parent

pytestmark = pytest.mark.docker

GOOD = Job("def add(a, b):\n    return a + b\n", AssertTests("assert add(2, 3) == 5\n"))
BAD = Job("def add(a, b):\n    return a - b\n", AssertTests("assert add(2, 3) == 5\n"))
SLOW = Job(
    "import time\ndef add(a, b):\n    time.sleep(1.0)\n    return a + b\n", AssertTests("assert add(2, 3) == 5\n")
)


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    with contextlib.closing(docker.from_env(timeout=60)) as client:
        yield client


def wait_for(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def labelled(client: docker.DockerClient, label: str, states: list[str] | None = None) -> list[str]:
    filters: dict[str, object] = {"label": label, **({"status": states} if states else {})}
    return [found["Id"] for found in client.api.containers(all=True, filters=filters)]


def owner_label_of(label: str) -> str:
    return label.partition("=")[2]


def of_pool(client: docker.DockerClient, pool: SandboxPool) -> list[str]:
    assert pool._stock is not None
    return labelled(client, f"{POOL_LABEL}={pool._stock.plan.pool}")


def test_verdicts(shared_pool: SandboxPool) -> None:
    assert shared_pool.run(GOOD).status == "passed"
    assert shared_pool.run(BAD).status == "wrong_answer"
    assert shared_pool.run(Job("print(input()[::-1])", StdioTests((Case("abc", "cba"),)))).status == "passed"


def test_many_askers(shared_pool: SandboxPool) -> None:
    jobs = [GOOD, BAD] * 20
    with ThreadPoolExecutor(16) as threads:
        statuses = [outcome.status for outcome in threads.map(shared_pool.run, jobs)]
    assert statuses == ["passed", "wrong_answer"] * 20
    assert shared_pool.broken() is None


def test_coroutines(shared_pool: SandboxPool) -> None:
    async def ask() -> list[str]:
        return [outcome.status for outcome in await asyncio.gather(*(shared_pool.check(GOOD) for _ in range(20)))]

    assert asyncio.run(ask()) == ["passed"] * 20


def test_retires_after_its_share(code_config: CodeConfig, client: docker.DockerClient) -> None:
    config = code_config.model_copy(update={"workers": 1, "runs_per_sandbox": 2})
    with SandboxPool(config) as pool:
        assert [pool.run(GOOD).status for _ in range(9)] == ["passed"] * 9
        assert pool.counts.retired == 4
        wait_for(lambda: len(of_pool(client, pool)) <= 4, "old sandboxes stay")
    assert of_pool(client, pool) == []


@pytest.fixture
def assassin(client: docker.DockerClient) -> Iterator[Callable[[SandboxPool, str, int], threading.Thread]]:
    """Kills, from outside, one container after the other of a pool's sandbox that runs something."""
    threads = []

    def start(pool: SandboxPool, role: str, count: int) -> threading.Thread:
        def work() -> None:
            killed: set[str] = set()
            deadline = time.monotonic() + 30
            with contextlib.closing(docker.from_env(timeout=60)) as own:
                while len(killed) < count and time.monotonic() < deadline:
                    for sandbox in list(pool._running.values()):
                        target = sandbox.containers[role].id
                        if sandbox.busy and target not in killed:
                            time.sleep(0.1)
                            with contextlib.suppress(docker.errors.APIError):
                                own.api.kill(target)
                            killed.add(target)
                    time.sleep(0.01)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("role", ["candidate", "judge"])
def test_a_sandbox_that_dies_is_replaced(code_config: CodeConfig, assassin: Callable[..., object], role: str) -> None:
    with SandboxPool(code_config.model_copy(update={"workers": 1})) as pool:
        assassin(pool, role, 1)
        assert pool.run(SLOW).status == "passed"
        assert pool.counts.broken == 1
        assert pool.run(GOOD).status == "passed"


def test_a_program_that_breaks_every_sandbox_fails(code_config: CodeConfig, assassin: Callable[..., object]) -> None:
    """The control program runs too fast to be killed: it passes, so it was the program."""
    with SandboxPool(code_config.model_copy(update={"workers": 1})) as pool:
        assassin(pool, "candidate", 3)
        outcome = pool.run(SLOW)
        assert outcome.status == "runtime_error"
        assert outcome.reason.startswith("brought its sandbox down 3 times: the candidate's container")
        assert pool.run(GOOD).status == "passed"


def test_a_sandbox_under_suspicion_is_thrown_away(code_config: CodeConfig, client: docker.DockerClient) -> None:
    """A process that the warden may not kill, put there from outside, is what a program could not do."""
    with SandboxPool(code_config.model_copy(update={"workers": 1})) as pool:
        assert pool.run(GOOD).status == "passed"
        (sandbox,) = pool._running.values()
        container = client.containers.get(sandbox.containers["candidate"].id)
        container.exec_run(["/opt/gristmill/python", "-c", "import time; time.sleep(60)"], user="0", detach=True)
        wait_for(lambda: len(container.top()["Processes"]) > 1, "the stray process does not start")
        assert pool.run(GOOD).status == "passed"
        assert pool.counts.suspected == 1
        assert pool.run(GOOD).status == "passed"
        (fresh,) = pool._running.values()
        assert fresh is not sandbox


def test_closing_ends_what_runs(code_config: CodeConfig, client: docker.DockerClient) -> None:
    pool = SandboxPool(code_config.model_copy(update={"workers": 1})).start()
    running, waiting = (
        pool.submit(Job("import time\ntime.sleep(60)\n", AssertTests("pass\n"), time_s=60.0)),
        pool.submit(GOOD),
    )
    wait_for(lambda: any(sandbox.busy for sandbox in pool._running.values()), "nothing runs")
    pool.close()
    for future in (running, waiting):
        with pytest.raises(InfrastructureError, match="closed"):
            future.result(0)
    assert of_pool(client, pool) == []
    with pytest.raises(InfrastructureError, match="closed"):
        pool.run(GOOD)


def test_an_exception_leaves_no_container(code_config: CodeConfig, client: docker.DockerClient) -> None:
    pool = SandboxPool(code_config)
    with pytest.raises(KeyError), pool:  # noqa: PT012
        pool.run(GOOD)
        raise KeyError
    assert of_pool(client, pool) == []
    assert not [thread for thread in threading.enumerate() if thread in pool._threads]


OWNER = """
import sys
from code_verifier.config import CodeConfig
from code_verifier.job import AssertTests, Job
from code_verifier.pool import SandboxPool
pool = SandboxPool(CodeConfig(workers=2, image=sys.argv[1])).start()
for _ in range(2):
    pool.submit(Job("while True: pass", AssertTests("pass"), time_s=60.0))
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_owner_leaves_no_container(
    sandbox_image: str, client: docker.DockerClient, tmp_path: Path, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, sandbox_image],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        label = f"{OWNER_LABEL}={owner_label(owner.pid)}"
        assert len(labelled(client, label)) >= 4
        owner.send_signal(number)
        owner.wait(10)
    states = ["running", "paused", "restarting", "exited", "dead", "removing"]
    wait_for(lambda: not labelled(client, label, states), "containers are left")
    # One that was created and not yet started when the owner died is nobody's to end; the next owner removes it.
    with connect() as engine:
        assert all(entry.state == "created" for entry in collect(engine) if entry.owner == owner_label_of(label))
    assert not labelled(client, label)


def test_threads_of_a_failed_start_end(code_config: CodeConfig) -> None:
    before = set(threading.enumerate())
    with pytest.raises(InfrastructureError):
        SandboxPool(code_config).submit(GOOD)
    assert set(threading.enumerate()) <= before
    assert os.getpid()
