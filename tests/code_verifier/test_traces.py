"""What one program could tell the next, or keep from it, without a file or a process: nothing gets through."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from code_verifier.config import CodeConfig
from code_verifier.inside.traces import FILES, MOVES, Traces
from code_verifier.job import Case, Job, StdioTests
from code_verifier.pool import SandboxPool
from support.docker import PrivateDaemon

SQUARE = StdioTests((Case("25", "625"),))
LINGERING = """
import socket
n = int(input()) ** 2
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", 20000 + n))
s.listen()
c = socket.create_connection(s.getsockname())
a, _ = s.accept()
a.close()
c.recv(1)
c.close()
print(n)
"""
READS_LINGERING = """
for line in open("/proc/net/tcp").read().splitlines()[1:]:
    print(int(line.split()[1].split(":")[1], 16) - 20000)
    break
"""
BINDS = 'import socket\ns = socket.socket()\ns.bind(("127.0.0.1", 20625))\nprint(int(input()) ** 2)\n'
COUNTS = """
import os
n = int(input()) ** 2
while True:
    p = os.fork()
    if p == 0:
        os._exit(0)
    os.waitpid(p, 0)
    if p % 2000 == n:
        break
print(n)
"""
READS_COUNT = "import os\nprint(os.getpid() % 2000 - 1)\n"
NUMBERS = """
import os
n = int(input()) ** 2
while True:
    fd = os.open("x", os.O_CREAT | os.O_RDWR)
    number = os.fstat(fd).st_ino
    os.close(fd)
    os.unlink("x")
    if number % 2000 == n:
        break
print(n)
"""
READS_NUMBER = 'import os\nprint(os.stat(".").st_ino % 2000 - 2)\n'
DATAGRAMS = """
import socket
n = int(input()) ** 2
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 0))
def count():
    return int([l for l in open("/proc/net/snmp") if l.startswith("Udp:")][1].split()[1])
while count() % 1000 != n:
    s.sendto(b"", s.getsockname())
    s.recv(1)
print(n)
"""
READS_DATAGRAMS = 'print(int([l for l in open("/proc/net/snmp") if l.startswith("Udp:")][1].split()[1]) % 1000)\n'
NO_ROUTE = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(input()) ** 2):
    try:
        s.sendto(b"", ("192.0.2.1", 9))
    except OSError:
        pass
print(625)
"""
READS_NO_ROUTE = """
names, counts = [l.split() for l in open("/proc/net/snmp") if l.startswith("Ip:")]
print(counts[names.index("OutNoRoutes")])
"""
PEAK = "x = bytearray(100 << 20)\nprint(int(input()) ** 2)\n"
READS_PEAK = """
from pathlib import Path
found = 0
for path in Path("/sys/fs/cgroup").rglob("*"):
    if path.name in ("memory.max_usage_in_bytes", "memory.peak"):
        found = int(path.read_text() or 0)
print(625 if found > 100 << 20 else 0)
"""
SETS_TIME = 'import os, time\ntime.sleep(1.5)\nos.utime("/dev/null")\nos.utime("/tmp")\nprint(int(input()) ** 2)\n'
READS_TIME = """
import os
times = {os.stat(f"/dev/{n}").st_mtime // 1 for n in ("null", "zero", "full", "random", "urandom")}
print(625 if len(times) > 2 else 0)
"""


@pytest.mark.docker
@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        pytest.param(LINGERING, READS_LINGERING, "wrong_answer", id="ports in TIME_WAIT are read"),
        pytest.param(LINGERING, BINDS, "passed", id="ports in TIME_WAIT are taken"),
        pytest.param(COUNTS, READS_COUNT, "wrong_answer", id="process numbers"),
        pytest.param(NUMBERS, READS_NUMBER, "wrong_answer", id="file numbers"),
        pytest.param(DATAGRAMS, READS_DATAGRAMS, "wrong_answer", id="counted datagrams"),
        pytest.param(NO_ROUTE, READS_NO_ROUTE, "wrong_answer", id="counted failures"),
        pytest.param(PEAK, READS_PEAK, "wrong_answer", id="peak memory"),
        pytest.param(SETS_TIME, READS_TIME, "wrong_answer", id="times of devices"),
    ],
)
def test_nothing_is_told_to_the_next_program(code_config: CodeConfig, first: str, second: str, status: str) -> None:
    with SandboxPool(code_config.model_copy(update={"workers": 1})) as pool:
        assert pool.run(Job(first, SQUARE, time_s=20.0)).status == "passed"
        assert pool.run(Job(second, SQUARE, time_s=20.0)).status == status


@pytest.mark.docker
def test_program_that_makes_a_process_and_a_file_costs_no_sandbox(code_config: CodeConfig) -> None:
    source = (
        'import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\nopen("x", "w").close()\nprint(int(input()) ** 2)\n'
    )
    with SandboxPool(code_config.model_copy(update={"workers": 1})) as pool:
        for _ in range(3):
            assert pool.run(Job(source, SQUARE, time_s=20.0)).status == "passed"
        assert pool.counts.suspected == 0


def test_file_numbers_are_watched(tmp_path: Path) -> None:
    """On a file system whose numbers go up one by one, as those of a tmpfs do."""
    shm = Path("/dev/shm") / f"gristmill-test-{os.getpid()}"
    shm.mkdir()
    try:
        seen = Traces([str(shm)])
        seen._timed, seen._network = [str(tmp_path)], []
        moves = iter([1, 1, MOVES + 2, 1, 1, 1])
        at = 0

        def last() -> int:
            nonlocal at
            at += next(moves)
            return at

        seen._process, seen._last_process = 0, last  # type: ignore[method-assign]
        assert seen.clear() is None
        assert seen.clear() is None
        assert "process numbers" in str(seen.clear())
        assert seen.clear() is None
        for _ in range(FILES + 3):
            (shm / "x").touch()
            (shm / "x").unlink()
        assert "file numbers" in str(seen.clear())
    finally:
        shm.rmdir()


def test_network_counts_are_watched(tmp_path: Path) -> None:
    counts = tmp_path / "dev"
    counts.write_text("lo: 0\n")
    traces = Traces([])
    fd = os.open(counts, os.O_RDONLY)
    try:
        traces._network = [(fd, os.pread(fd, 99, 0))]
        assert traces._used_network() is None
        counts.write_text("lo: 28\n")
        assert "network was used" in str(traces._used_network())
    finally:
        os.close(fd)


@pytest.mark.docker
def test_under_gvisor_a_program_costs_no_sandbox(code_config: CodeConfig, private_daemon: PrivateDaemon) -> None:
    if shutil.which("runsc") is None:
        pytest.skip("no runsc: apt-get install runsc")
    there = {"workers": 1, "docker_host": private_daemon.address, "runtime": "runsc", "time_limit_s": 30.0}
    with SandboxPool(code_config.model_copy(update={**there, "job_limit_s": 120.0})) as pool:
        for _ in range(2):
            outcome = pool.run(Job("print(int(input()) ** 2)\n", SQUARE))
            assert outcome.status == "passed", outcome
        assert pool.counts.suspected == 0
