"""Cases that nobody on the team wrote, and our own of the same kinds: the verdict, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from code_verifier.api import CodeResult, verify_completion, verify_many
from code_verifier.config import CodeConfig
from code_verifier.offline import read_row
from code_verifier.pool import SandboxPool
from gristmill.messages import CodeTests, TestCase
from support.processes import wait_until

SHARED = Path(os.environ.get("GRISTMILL_SHARED", Path(__file__).parents[3] / "shared"))
HANDED = SHARED / "cases" / "code_handed.jsonl"
OWN = Path(__file__).with_name("cases.jsonl")
WORDS = {
    "timeout": "time_limit",
    "not_completed": "runtime_error",
    "tampered": "runtime_error",
    "killed": "runtime_error",
}
"""The handed file's words for our statuses."""
CONTESTED = {
    "ex-07": "passed", "ex-09": "passed", "ex-28": "passed", "ba-08": "passed", "ba-15": "runtime_error",
    "ba-21": None, "ba-24": "wrong_answer", "io-09": "wrong_answer", "io-10": "wrong_answer", "io-13": "runtime_error",
    "rs-06": "passed", "rs-11": "output_limit", "rs-17": "passed", "rs-32": "passed", "rs-37": "passed",
    "rh-16": "time_limit wrong_answer", "rh-39": "passed",
}  # fmt: skip
"""What docs/code-sandbox.md says of the contested rows; None where only repeatability is promised."""
CONTROL = json.dumps({
    "completion": "def add(a, b):\n    return a + b", "test_type": "assert", "tests": "assert add(2, 3) == 5",
})  # fmt: skip

pytestmark = pytest.mark.docker


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


ROWS = read(HANDED) + read(OWN)
BY_ID = {row["id"]: row for row in ROWS}


@pytest.fixture(scope="module")
def verdicts(shared_pool: SandboxPool) -> dict[str, CodeResult]:
    """All rows without conditions, two at a time."""
    rows = [row for row in ROWS if not row.get("after")]
    parsed = [read_row(json.dumps(row), number) for number, row in enumerate(rows)]
    results = verify_many([(row.text, row.tests) for row in parsed], pool=shared_pool)
    return {row["id"]: result for row, result in zip(rows, results, strict=True)}


@pytest.fixture(scope="module")
def lone_pool(code_config: CodeConfig) -> Iterator[SandboxPool]:
    """One sandbox, so that the next program runs where the last one did."""
    config = code_config.model_copy(update={"workers": 1, "time_limit_s": 10.0})
    with SandboxPool(config) as pool:
        yield pool


def check(row: dict[str, Any], result: CodeResult) -> None:
    said = f"{row['id']} ({row['why']}): {result.status}: {result.reason}"
    if row["id"] in CONTESTED:
        promised = CONTESTED[row["id"]]
        assert promised is None or result.status in promised.split(), said
    else:
        assert result.status in {WORDS.get(status, status) for status in row["expected_status"]}, said
        assert result.correct == (row["expected_verdict"] == "pass"), said
    assert result.status != "sandbox_error", said


def test_the_handed_file_is_there() -> None:
    if not HANDED.exists():
        pytest.skip(f"{HANDED} is not there")
    handed = [row for row in ROWS if not row["id"].startswith("own-")]
    assert len(handed) == 49
    assert {row["id"] for row in handed if row.get("contested")} == set(CONTESTED)


@pytest.mark.parametrize("name", [row["id"] for row in ROWS if not row.get("after")])
def test_verdict(name: str, verdicts: dict[str, CodeResult]) -> None:
    check(BY_ID[name], verdicts[name])


def processes(pool: SandboxPool) -> int:
    """Processes in the pool's containers beyond one warden each."""
    with contextlib.closing(docker.from_env()) as client:
        found = 0
        for name in pool.containers:
            try:
                found += len(client.containers.get(name).top()["Processes"] or [""]) - 1
            except docker.errors.APIError:  # It was on its way out.
                continue
        return found


@pytest.mark.parametrize("name", [row["id"] for row in ROWS if row.get("after")])
def test_verdict_and_what_holds_afterwards(name: str, lone_pool: SandboxPool) -> None:
    row = BY_ID[name]
    parsed, control = read_row(json.dumps(row), 1), read_row(CONTROL, 1)
    result = verify_completion(parsed.text, parsed.tests, pool=lone_pool)
    check(row, result)
    assert processes(lone_pool) == 0
    after = set(row["after"])
    if "same verdict when run twice" in after:
        assert verify_completion(parsed.text, parsed.tests, pool=lone_pool).status == result.status
    cap = lone_pool.config.kept_output_kb * 1024
    assert len(result.stdout.encode()) <= cap * 2
    assert len(result.stderr.encode()) <= cap * 2
    assert verify_completion(control.text, control.tests, pool=lone_pool).status == "passed"
    assert lone_pool.broken() is None


KNOWN = {
    "no process of this job is alive after the verdict", "the next job on the same worker is unaffected",
    "kept output is at most the configured cap", "a verdict still comes back", "other jobs are unaffected",
    "no packet leaves the sandbox", "same verdict when run twice", "the next job still works",
}  # fmt: skip


def test_every_condition_is_one_that_is_checked() -> None:
    assert {condition for row in ROWS for condition in row.get("after") or ()} <= KNOWN


def test_no_packet_reaches_this_machine(lone_pool: SandboxPool) -> None:
    """Every address that this machine has is tried from inside, with a listener behind it."""
    heard: list[Any] = []
    done = threading.Event()
    with contextlib.closing(docker.from_env()) as client:
        networks = [network.attrs["IPAM"]["Config"] or [] for network in client.networks.list()]
    bridges = {config["Gateway"] for configs in networks for config in configs if "Gateway" in config}
    own = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    addresses = sorted((bridges | own | {"172.17.0.1", "169.254.169.254", "198.51.100.1"}) - {"127.0.0.1"})
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.settimeout(0.2)
        port = listener.getsockname()[1]

        def listen() -> None:
            while not done.is_set():
                with contextlib.suppress(TimeoutError):
                    heard.append(listener.accept()[1])

        thread = threading.Thread(target=listen)
        thread.start()
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
        wait_until(lambda: len(heard) == 1, 5, "the listener hears")
        program = (
            f"import os, socket\nfailed = 0\nfor address in {addresses!r}:\n"
            "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n"
            "        s = socket.socket(socket.AF_INET, kind)\n"
            "        s.settimeout(0.2)\n"
            "        try:\n"
            f"            s.connect((address, {port}))\n"
            "            s.send(b'x')\n"
            "        except OSError:\n"
            "            failed += 1\n"
            "print(failed, sorted(os.listdir('/sys/class/net')))\n"
        )
        tests = CodeTests(kind="stdio", cases=(TestCase(input="", expected=f"{2 * len(addresses)} ['lo']"),))
        result = verify_completion(program, tests, pool=lone_pool)
        done.set()
        thread.join()
    assert result.status == "passed", result
    assert len(heard) == 1
