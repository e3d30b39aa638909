"""Nothing is left behind, whatever programs do; and garbage collection of what a dead verifier could leave."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import docker.errors
import psutil
import pytest

from code_verifier.config import CodeConfig
from code_verifier.container import OWNER_LABEL, POOL_LABEL, SANDBOX_LABEL, owner_label, owner_state
from code_verifier.engine import connect
from code_verifier.gc import collect
from code_verifier.job import AssertTests, Job
from code_verifier.pool import SandboxPool

pytestmark = pytest.mark.docker

GOOD = Job("def add(a, b):\n    return a + b\n", AssertTests("assert add(2, 3) == 5\n"))
HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "memory bomb": "x = []\nwhile True: x.append(bytearray(1 << 20))\n",
    "many hogs": "import os\nfor _ in range(8): os.fork()\nx = bytearray(200 << 20)\nimport time; time.sleep(9)\n",
    "descriptors": "import os\nx = [os.open('/dev/null', 0) for _ in range(10**6)]\n",
    "full disk": "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'wb').write(b'x' * (1 << 20)); n += 1\n",
    "many files": "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'wb').close(); n += 1\n",
    "deep folders": "import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')\n",
    "shared memory": "n = 0\nwhile True:\n    open(f'/dev/shm/{n}', 'wb').write(b'x' * (1 << 20)); n += 1\n",
    "flood": "while True: print('x' * 65536)\n",
    "kill all": "import os\nos.kill(-1, 9)\n",
    "stop all": "import os, signal\nos.kill(-1, signal.SIGSTOP)\nos.kill(1, signal.SIGKILL)\n",
    "daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(600)\n    os._exit(0)\n"
        "def add(a, b):\n    return a + b\n"
    ),
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(600,)).start()\n",
    "loop": "while True: pass\n",
    "exit": "import os\nos._exit(0)\n",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()\n",
    "pipes": "import os\nwhile True: os.pipe()\n",
    "links": "import os\nos.symlink('/', '/tmp/root'); os.chmod('/tmp/work', 0)\n",
}
PASSING = {"daemon"}


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def processes_of(containers: set[str]) -> set[int]:
    """Processes on this machine that belong to containers, living or not."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            groups = Path(f"/proc/{process.pid}/cgroup").read_text()
            if any(container in groups for container in containers):
                found.add(process.pid)
    return found


def test_hostile_programs_leave_nothing(code_config: CodeConfig) -> None:
    config = code_config.model_copy(update={"time_limit_s": 1.0, "output_limit_mb": 1, "memory_limit_mb": 256})
    seen: set[str] = set()
    with SandboxPool(config) as pool, contextlib.closing(docker.from_env(timeout=60)) as client:
        assert pool._stock is not None
        label = f"{POOL_LABEL}={pool._stock.plan.pool}"
        volumes = len(client.volumes.list())
        threads = fds = 0
        for _ in range(3):
            # The first rounds fill what is kept for later: each client keeps a few connections to the engine.
            threads, fds = psutil.Process().num_threads(), descriptors()
            jobs = {name: Job(source, GOOD.tests) for name, source in HOSTILE.items()}
            futures = {name: [pool.submit(job), pool.submit(GOOD)] for name, job in jobs.items()}
            for name, (hostile, good) in futures.items():
                outcome = hostile.result(60)
                assert (outcome.status == "passed") == (name in PASSING), f"{name}: {outcome}"
                assert outcome.status != "sandbox_error", f"{name}: {outcome}"
                assert good.result(60).status == "passed", f"after {name}"
                seen |= set(pool.containers)
        assert pool.broken() is None
        assert len(client.api.containers(all=True, filters={"label": label})) <= 8
        assert len(client.volumes.list()) == volumes
        assert psutil.Process().num_threads() <= threads
        assert descriptors() <= fds + 8
        assert processes_of(seen)
    assert processes_of(seen) == set()


@pytest.fixture
def orphan(sandbox_image: str) -> Iterator[str]:
    """A container whose owner has ended, with its first process kept alive by nobody."""
    with (
        contextlib.closing(docker.from_env(timeout=60)) as client,
        subprocess.Popen([sys.executable, "-c", "pass"]) as owner,
    ):
        label = owner_label(owner.pid)
        owner.wait()
        container = client.containers.create(
            sandbox_image,
            entrypoint=["/opt/gristmill/python", "-c", "import time; time.sleep(600)"],
            network_mode="none",
            labels={SANDBOX_LABEL: "1", OWNER_LABEL: label},
        )
        container.start()
        yield container.id
        with contextlib.suppress(docker.errors.NotFound):
            container.remove(force=True)


def test_gc_removes_what_is_of_the_dead_only(orphan: str, shared_pool: SandboxPool) -> None:
    mine = set(shared_pool.containers)
    with connect() as engine:
        planned = {entry.id: entry for entry in collect(engine, dry_run=True)}
        assert planned[orphan].removed
        assert planned[orphan].owner_state == "dead"
        found = {entry.id: entry for entry in collect(engine)}
        assert found[orphan].removed
        assert mine
        assert all(found[container].owner_state == "alive" and not found[container].removed for container in mine)
        assert orphan not in {entry.id for entry in collect(engine)}
    assert shared_pool.run(GOOD).status == "passed"


def test_an_owner_elsewhere_is_nobody_to_judge() -> None:
    own = owner_label()
    assert owner_state(own) == "alive"
    machine, _, rest = own.partition("/")
    assert owner_state(f"not-{machine}/{rest}") == "unknown"
    assert owner_state(own.rpartition(":")[0] + ":1") == "dead"
    assert owner_state("") == "unknown"
    assert Path("/proc/self/stat").exists()
