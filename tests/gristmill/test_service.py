"""Services as processes: signals, deadlines, the status port, exit statuses; and the stop signal by itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gristmill.errors import ConfigError
from gristmill.service import EXIT_FORCED, StopSignal, find_service, service_names

SCRIPT = Path(__file__).parents[1] / "support" / "sample_service.py"


@contextmanager
def running(how: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """The sample service, past its first output line, killed at the end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GRISTMILL_")}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), how, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    """Byte by byte: what a buffer took in beyond the line, ``communicate`` would not see."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
        line += byte
    return line.decode().strip()


def end_of(process: subprocess.Popen[str], timeout: float = 30) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


@pytest.mark.parametrize("how", ["drains", "drains_async"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_lets_the_service_drain(how: str, number: signal.Signals) -> None:
    with running(how) as process:
        assert first_line(process) == "ready"
        process.send_signal(number)
        status, out, err = end_of(process)
    assert (status, out.strip()) == (0, "drained")
    events = [json.loads(line) for line in err.splitlines()]
    assert [event["event"] for event in events] == ["service_started", "stopping", "service_stopped"]
    assert events[1]["signal"] == number.name
    assert {event["service"] for event in events} == {"sample"}


def test_a_second_signal_ends_it_at_once() -> None:
    with running("hangs") as process:
        assert first_line(process) == "ready"
        process.terminate()
        assert first_line(process) == "stopping"
        process.terminate()
        assert end_of(process)[0] == EXIT_FORCED


def test_the_exit_deadline_ends_a_service_that_does_not_drain() -> None:
    with running("hangs", "--drain-timeout-s=0.3", "--exit-timeout-s=0.5") as process:
        assert first_line(process) == "ready"
        process.terminate()
        status, _, err = end_of(process)
    assert status == EXIT_FORCED
    assert "drain_deadline_passed" in err


def test_the_deadline_holds_while_the_main_thread_is_in_native_code() -> None:
    with running("hangs_in_native_code", "--drain-timeout-s=0.3", "--exit-timeout-s=0.5") as process:
        assert first_line(process) == "ready"
        time.sleep(0.2)
        process.terminate()
        assert end_of(process)[0] == EXIT_FORCED


def test_a_signal_in_the_middle_of_a_log_line_does_not_deadlock() -> None:
    for _ in range(2):
        with running("logs_all_the_time") as process:
            assert first_line(process) == "ready"
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            next(line for line in lines if '"busy"' in line)
            process.terminate()
            assert any('"service_stopped"' in line for line in lines)
            assert end_of(process)[0] == 0


def test_a_forked_child_dies_of_sigterm_and_leaves_its_parent_alone() -> None:
    with running("forks") as process:
        assert first_line(process) == "ready"
        status, out, err = end_of(process)
    assert (status, out.strip()) == (0, "child ended by signal 15, stop is False")
    assert "stopping" not in err


def test_a_service_that_is_done_ends_with_0() -> None:
    with running("ends") as process:
        status, out, err = end_of(process)
    assert (status, out.strip()) == (0, "done")
    assert "service_stopped" in err


def test_the_status_port_serves_while_the_service_runs() -> None:
    with running("drains", "--metrics-port=0") as process:
        assert first_line(process) == "ready"
        assert process.stderr is not None
        event = json.loads(process.stderr.readline())
        assert event["event"] == "status_server_started"
        with urllib.request.urlopen(f"http://127.0.0.1:{event['port']}/readyz") as reply:
            assert json.load(reply)["ready"] is True
        process.terminate()
        assert end_of(process)[0] == 0


def test_a_taken_status_port_is_a_configuration_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running("drains", f"--metrics-port={port}") as process:
            status, out, err = end_of(process)
    assert (status, out) == (2, "")
    assert f"metrics port 127.0.0.1:{port}: Address already in use; choose another --metrics-port" in err
    assert "Traceback" not in err


def test_an_error_on_purpose_is_one_line_and_status_1() -> None:
    with running("raises_on_purpose") as process:
        status, _, err = end_of(process)
    assert status == 1
    assert err.splitlines()[-1] == "error: on purpose"
    assert "Traceback" not in err


def test_a_bug_shows_its_traceback() -> None:
    with running("has_a_bug") as process:
        status, _, err = end_of(process)
    assert status == 1
    assert "RuntimeError: a bug" in err


def test_a_missing_dependency_names_its_extra() -> None:
    with running("lacks_a_module") as process:
        status, _, err = end_of(process)
    assert status == 1
    assert "service sample needs no_such_module, which is not installed: pip install 'gristmill[local]'" in err


def test_a_bad_configuration_is_status_2() -> None:
    with running("ends", "--metrics-prot=1") as process:
        status, _, err = end_of(process)
    assert status == 2
    assert "metrics_prot (flags): no such setting; did you mean metrics_port?" in err


def test_unknown_services_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no service 'verifier'; the services are .*math_verifier"):
        find_service("verifier")
    assert "math_verifier" in service_names()


# The stop signal by itself


def test_stop_wakes_threads_and_coroutines_whoever_sets_it() -> None:
    stop = StopSignal()
    woken: list[str] = []

    async def wait_twice() -> None:
        await asyncio.gather(stop.wait_async(), stop.wait_async())
        woken.append("coroutines")

    def wait() -> None:
        assert stop.wait(10)
        woken.append("thread")

    threads = [threading.Thread(target=wait), threading.Thread(target=lambda: asyncio.run(wait_twice()))]
    for thread in threads:
        thread.start()
    assert not stop.wait(0.1)
    stop.set()
    stop.set()
    for thread in threads:
        thread.join(10)
    assert sorted(woken) == ["coroutines", "thread"]
    assert stop.is_set()
    asyncio.run(asyncio.wait_for(stop.wait_async(), 1))


def test_stop_outlives_a_loop_that_ended_while_it_waited() -> None:
    stop = StopSignal()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stop.wait_async(), 0.01)

    asyncio.run(give_up())
    stop.set()
    assert stop.is_set()


def test_abandoned_waiters_are_forgotten() -> None:
    stop = StopSignal()

    async def often() -> None:
        for _ in range(100):
            task = asyncio.ensure_future(stop.wait_async())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(often())
    assert len(stop._waiters) == 0
