"""Health and metrics over real HTTP."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from gristmill.errors import ConfigError
from gristmill.health import Health, StatusServer
from gristmill.metrics import Metrics


@pytest.fixture
def served() -> Iterator[tuple[StatusServer, Metrics, Health]]:
    metrics, health = Metrics(), Health()
    server = StatusServer("127.0.0.1", 0, metrics, health)
    server.start()
    yield server, metrics, health
    server.stop()


def get(server: StatusServer, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_ready_once_the_service_says_so(served: Any) -> None:
    server, _, health = served
    status, body = get(server, "/readyz")
    assert (status, json.loads(body)) == (503, {"ready": False, "reason": "starting"})
    health.set_ready(True)
    assert get(server, "/readyz")[0] == 200
    health.set_ready(False, "no engine")
    status, body = get(server, "/readyz")
    assert (status, json.loads(body)["reason"]) == (503, "no engine")


def test_alive_while_every_check_passes(served: Any) -> None:
    server, _, health = served
    problems: dict[str, str | None] = {"kafka": None, "disk": None}
    for name in problems:
        health.add_check(name, lambda name=name: problems[name])
    assert get(server, "/healthz")[0] == 200
    problems["disk"] = "full"
    status, body = get(server, "/healthz")
    assert (status, json.loads(body)) == (503, {"problems": {"disk": "full"}})
    problems["disk"] = None
    assert get(server, "/healthz")[0] == 200


def test_an_unready_service_is_alive(served: Any) -> None:
    server, _, health = served
    health.set_ready(False, "waiting for credit")
    assert get(server, "/healthz")[0] == 200


def test_a_check_that_fails_of_itself_is_no_good_health(served: Any, capfd: pytest.CaptureFixture[str]) -> None:
    server, _, health = served
    health.add_check("broken", lambda: {}["nothing"])
    assert get(server, "/healthz")[0] == 500


def test_metrics_carry_our_prefix(served: Any) -> None:
    server, metrics, _ = served
    metrics.counter("samples", "Samples.", ["why"]).labels("stale").inc(3)
    metrics.gauge("policy_version", "Version.").set(7)
    metrics.histogram("wait_seconds", "Wait.").observe(0.02)
    status, body = get(server, "/metrics")
    assert status == 200
    assert 'gristmill_samples_total{why="stale"} 3.0' in body
    assert "gristmill_policy_version 7.0" in body
    assert 'gristmill_wait_seconds_bucket{le="0.03"} 1.0' in body
    assert "process_resident_memory_bytes" in body


def test_two_registries_in_one_process_do_not_meet() -> None:
    for _ in range(2):
        Metrics().counter("samples", "Samples.")


def test_other_paths_are_not_found(served: Any) -> None:
    status, body = get(served[0], "/other")
    assert status == 404
    assert "/metrics" in body


def test_many_probes_at_once(served: Any) -> None:
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(get(served[0], "/metrics")[0])) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 20


def test_a_slow_client_does_not_block_the_probes(served: Any) -> None:
    import socket

    server, _, _ = served
    with socket.create_connection(("127.0.0.1", server.port)) as idle:
        idle.sendall(b"GET /healthz HT")
        assert get(server, "/healthz")[0] == 200


def test_a_taken_port_is_a_configuration_error(served: Any) -> None:
    with pytest.raises(ConfigError, match=rf"metrics port 127.0.0.1:{served[0].port}: Address already in use"):
        StatusServer("127.0.0.1", served[0].port, Metrics(), Health())


def test_a_bad_host_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="metrics port no.such.host.invalid:0"):
        StatusServer("no.such.host.invalid", 0, Metrics(), Health())
