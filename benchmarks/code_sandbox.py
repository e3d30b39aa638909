r"""Rate of the sandbox pool beside one `docker run` per program, and a soak that counts what is left behind.

    python benchmarks/code_sandbox.py [--workers 2] [--runs 1640] [--reference 40] [--image gristmill-sandbox]
    python benchmarks/code_sandbox.py --mixed 5000

The rate is measured on the 164 reference programs of HumanEval with their tests. The reference arm starts a container
per program as one would by hand, with the same image and limits, `--workers` of them at a time; it trusts the exit
code, which the pool does not. Both arms run in turns, and both must pass every program.

The soak runs a mix, a tenth of it hostile, and counts before and after: containers, volumes, images, processes of the
sandboxes' users, descriptors and threads of this process, bytes under Docker's root and in /tmp, resident memory of
this process and of the largest warden.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import docker
import psutil
from rich.console import Console
from rich.table import Table

# This script's own folder must not be searched for the packages that it measures.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

from code_verifier.config import CodeConfig, limits_from  # noqa: E402
from code_verifier.container import FIRST_UID, OVERHEAD_BYTES, UIDS, WRITABLE  # noqa: E402
from code_verifier.job import AssertTests, Case, Job, Outcome, StdioTests  # noqa: E402
from code_verifier.pool import SandboxPool  # noqa: E402
from code_verifier.seccomp import profile_json  # noqa: E402

SHARED: Final = Path(os.environ.get("GRISTMILL_SHARED", Path(__file__).resolve().parents[2] / "shared"))
ROUNDS: Final = 4
# Kind: program; short limits keep the soak short, and none of these may pass.
HOSTILE: Final = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "memory bomb": "x = []\nwhile True: x.append(bytearray(1 << 20))\n",
    "memory in children": "import os, time\nfor _ in range(4): os.fork()\nx = bytearray(100 << 20)\ntime.sleep(60)\n",
    "descriptors": "import os\nx = []\nwhile True: x.append(os.open('/dev/null', 0))\n",
    "pipes": "import os\nx = []\nwhile True: x.append(os.pipe())\n",
    "full tmpfs": "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'wb').write(b'x' * (1 << 20)); n += 1\n",
    "full shared memory": "n = 0\nwhile True:\n    open(f'/dev/shm/{n}', 'wb').write(b'x' * (1 << 20)); n += 1\n",
    "many files": "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'wb').close(); n += 1\n",
    "deep folders": "import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')\n",
    "output flood": "while True: print('x' * 65536)\n",
    "error flood": "import sys\nwhile True: sys.stderr.write('x' * 65536)\n",
    "kill -1": "import os\nos.kill(-1, 9)\n",
    "stop all": "import os, signal\nos.kill(-1, signal.SIGSTOP)\nos.kill(os.getpid(), signal.SIGSTOP)\n",
    "daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(99)\n    os._exit(0)\n"
        "raise SystemExit(1)\n"
    ),
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()\n",
    "endless loop": "while True: pass\n",
    "sleep": "import time\ntime.sleep(600)\n",
    "early exit": "import os\nos._exit(0)\n",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()\n",
    "segfault": "import ctypes\nctypes.string_at(0)\n",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A reference program."""

    name: str
    source: str
    tests: str
    entry_point: str
    prompt: str

    @property
    def job(self) -> Job:
        """What the service makes of a completion and its problem."""
        return Job(self.source, AssertTests(self.tests, self.entry_point, self.prompt))

    @property
    def script(self) -> str:
        """Program and tests as one file, as the reference arm runs them."""
        return f"{self.source}\n{self.tests}"


def humaneval() -> list[Program]:
    """The 164 reference programs."""
    programs = []
    with gzip.open(SHARED / "datasets" / "humaneval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            tests = f"{row['test']}\ncheck({row['entry_point']})\n"
            source = row["prompt"] + row["canonical_solution"]
            programs.append(Program(row["task_id"], source, tests, row["entry_point"], row["prompt"]))
    return programs


@dataclass(slots=True)
class Arm:
    """What was measured of one way to run programs."""

    name: str
    runs: int = 0
    wall_s: float = 0.0
    failed: int = 0
    seconds: list[float] | None = None

    def rate(self) -> float:
        return self.runs / self.wall_s if self.wall_s else 0.0

    def add(self, wall_s: float, seconds: Sequence[float], failed: int) -> None:
        self.runs += len(seconds)
        self.wall_s += wall_s
        self.failed += failed
        self.seconds = [*(self.seconds or ()), *seconds]

    def row(self) -> list[str]:
        ordered = sorted(self.seconds or [0.0])
        at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99)]
        return [self.name, str(self.runs), str(self.failed), f"{self.rate():.1f}", *(f"{x * 1000:.1f}" for x in at)]


def run_pool(pool: SandboxPool, programs: Sequence[Program], arm: Arm, workers: int) -> None:
    """Run programs in the pool, one asker per sandbox, so that a time is a program's and not the queue's."""

    def one(program: Program) -> tuple[float, bool]:
        start = time.perf_counter()
        outcome = pool.run(program.job)
        if outcome.status != "passed":
            print(f"{program.name}: {outcome.status} {outcome.reason}", file=sys.stderr)
        return time.perf_counter() - start, outcome.status == "passed"

    _timed(one, programs, arm, workers)


def run_docker(config: CodeConfig, programs: Sequence[Program], arm: Arm, workers: int, profile: Path) -> None:
    """Run each program in a container of its own."""
    limits = limits_from(config)
    memory = str(limits.memory_bytes + OVERHEAD_BYTES)
    command = [
        *(
            "docker",
            "run",
            "--rm",
            "-i",
            "--network",
            "none",
            "--read-only",
            "--cap-drop",
            "ALL",
            "--log-driver",
            "none",
        ),
        *("--tmpfs", f"{WRITABLE}:rw,nosuid,nodev,noexec,size={limits.tmpfs_bytes}", "--memory", memory),
        *("--memory-swap", memory, "--cpus", "1", "--pids-limit", str(limits.processes)),
        *("--security-opt", "no-new-privileges", "--security-opt", f"seccomp={profile}"),
        *("--entrypoint", "/opt/gristmill/python", config.image, "-"),
    ]

    def one(program: Program) -> tuple[float, bool]:
        start = time.perf_counter()
        done = subprocess.run(command, input=program.script.encode(), capture_output=True, check=False, timeout=120)
        if done.returncode:
            print(f"{program.name}: {done.stderr.decode(errors='replace')[-300:]}", file=sys.stderr)
        return time.perf_counter() - start, done.returncode == 0

    _timed(one, programs, arm, workers)


def _timed(one: Callable[[Program], tuple[float, bool]], programs: Sequence[Program], arm: Arm, workers: int) -> None:
    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as threads:
        results = list(threads.map(one, programs))
    wall = time.perf_counter() - start
    arm.add(wall, [seconds for seconds, _ in results], sum(not passed for _, passed in results))


def measure_rate(config: CodeConfig, runs: int, reference: int, console: Console) -> None:
    """The table of both arms."""
    programs = humaneval()
    pool_arm = Arm(f"pool of {config.workers}")
    docker_arm = Arm(f"docker run, {config.workers} at a time")
    profile = Path(f"/tmp/gristmill-seccomp-{os.getpid()}.json")
    profile.write_text(profile_json())
    ratios = []
    try:
        with SandboxPool(config) as pool:
            run_pool(pool, programs[: 4 * config.workers], Arm("warm-up"), config.workers)
            for number in range(ROUNDS):
                ours = [
                    programs[at % len(programs)] for at in range(number * runs // ROUNDS, (number + 1) * runs // ROUNDS)
                ]
                theirs = random.Random(number).sample(programs, max(1, reference // ROUNDS))
                one, other = Arm("one"), Arm("other")
                run_docker(config, theirs, other, config.workers, profile)
                run_pool(pool, ours, one, config.workers)
                ratios.append(one.rate() / other.rate())
                for total, part in ((pool_arm, one), (docker_arm, other)):
                    total.add(part.wall_s, part.seconds or (), part.failed)
    finally:
        profile.unlink()
    table = Table("arm", "programs", "failed", "programs/s", "p50 ms", "p99 ms", title="HumanEval references")
    for arm in (docker_arm, pool_arm):
        table.add_row(*arm.row())
    console.print(table)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    console.print(
        f"ratio {pool_arm.rate() / docker_arm.rate():.1f} (rounds: {', '.join(f'{ratio:.1f}' for ratio in ratios)}); "
        f"median {statistics.median(ratios):.1f}; {os.cpu_count()} CPUs, load {load}"
    )


@dataclass(frozen=True, slots=True)
class Census:
    """What there is of everything that could leak."""

    containers: int
    volumes: int
    images: int
    processes: int
    descriptors: int
    threads: int
    docker_mb: float
    tmp_mb: float
    own_mb: float
    wardens_mb: float

    def row(self, when: str) -> list[str]:
        values = [getattr(self, name) for name in Census.__dataclass_fields__]
        return [when, *(f"{value:.1f}" if isinstance(value, float) else str(value) for value in values)]


def census(client: docker.DockerClient) -> Census:
    """Count."""
    mine = psutil.Process()
    sandboxes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if FIRST_UID <= process.uids().real < FIRST_UID + 2 * UIDS:
                sandboxes.append(process.memory_info().rss)
    return Census(
        len(client.api.containers(all=True)),
        len(client.volumes.list()),
        len(client.api.images(all=True)),
        len(sandboxes),
        mine.num_fds(),
        mine.num_threads(),
        _size(Path(client.info()["DockerRootDir"])),
        _size(Path("/tmp")),
        mine.memory_info().rss / 2**20,
        max(sandboxes, default=0) / 2**20,
    )


def _size(folder: Path) -> float:
    """MiB that files on the folder's own file system take."""
    command = ["du", "--one-file-system", "--summarize", "--block-size=1K", str(folder)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    return int((done.stdout.split() or ["0"])[0]) / 1024


def mixture(count: int) -> Iterable[tuple[str, Job]]:
    """``count`` jobs, a tenth of them hostile; the rest HumanEval references and the like."""
    programs = humaneval()
    generator = random.Random(5)
    kinds = sorted(HOSTILE)
    for number in range(count):
        if number % 10 == 9:
            kind = kinds[(number // 10) % len(kinds)]
            source = HOSTILE[kind]
            tests = (
                AssertTests("assert add(2, 3) == 5\n") if generator.random() < 0.5 else StdioTests((Case("1", "2"),))
            )
            yield kind, Job(source, tests, time_s=3.0 if "memory" in kind else 0.5)
        elif number % 10 == 4:
            yield "program", Job("print(int(input()) + 1)\n", StdioTests((Case("1", "2"), Case("5", "6"))))
        else:
            yield "reference", generator.choice(programs).job


def soak(config: CodeConfig, count: int, console: Console) -> bool:
    """The soak's tables; whether all was well."""
    table = Table("when", *Census.__dataclass_fields__, title=f"{count} mixed programs")
    found: dict[str, Counter[str]] = {}
    wrong = 0
    start = time.perf_counter()
    with contextlib.closing(docker.from_env(timeout=120)) as client:
        table.add_row(*census(client).row("before"))
        with SandboxPool(config) as pool:
            # Outcomes are counted and dropped as they come, so that this process' memory is the pool's.
            under_way: deque[tuple[str, Future[Outcome]]] = deque()

            def settle(left: int) -> int:
                errors = 0
                while len(under_way) > left:
                    kind, future = under_way.popleft()
                    status = future.result().status
                    found.setdefault(kind, Counter())[status] += 1
                    errors += (status == "passed") != (kind in {"reference", "program"})
                return errors

            for number, (kind, job) in enumerate(mixture(count)):
                under_way.append((kind, pool.submit(job)))
                wrong += settle(64)
                if number == min(200, count // 10):
                    wrong += settle(0)
                    table.add_row(*census(client).row(f"after {number + 1}"))
            wrong += settle(0)
            table.add_row(*census(client).row(f"after {count}"))
            counts, started, broken = pool.counts, pool.started, pool.broken()
        table.add_row(*census(client).row("closed"))
    console.print(table)
    kinds = Table("program", "statuses")
    for kind, statuses in sorted(found.items()):
        kinds.add_row(kind, ", ".join(f"{status} {number}" for status, number in statuses.most_common()))
    console.print(kinds)
    console.print(
        f"{time.perf_counter() - start:.0f} s; {wrong} wrong; {started} sandboxes started, {counts.retired} retired, "
        f"{counts.suspected} suspected, {counts.broken} broken; pool: {broken or 'well'}"
    )
    return wrong == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1640, help="programs of the pool")
    parser.add_argument("--reference", type=int, default=40, help="programs of the reference arm")
    parser.add_argument("--image", default=CodeConfig().image)
    parser.add_argument("--mixed", type=int, default=0, help="soak with so many programs instead")
    options = parser.parse_args()
    console = Console(width=180)
    if options.mixed:
        config = CodeConfig(workers=options.workers, image=options.image, memory_limit_mb=256, output_limit_mb=1)
        return 0 if soak(config, options.mixed, console) else 1
    measure_rate(CodeConfig(workers=options.workers, image=options.image), options.runs, options.reference, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
