"""Health of one process, and the little HTTP server that tells it.

``/healthz`` answers 200 while every check passes: the process should be left alone. ``/readyz`` answers 200
once the service takes work. ``/metrics`` is Prometheus text.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from gristmill.errors import ConfigError
from gristmill.metrics import Metrics

Check = Callable[[], str | None]
"""Returns None when all is well, else what is wrong."""


class Health:
    """Readiness set by the service, liveness asked of its checks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = False
        self._reason = "starting"
        self._checks: dict[str, Check] = {}

    def set_ready(self, ready: bool, reason: str = "") -> None:
        """Say whether the service takes work, and why not."""
        with self._lock:
            self._ready, self._reason = ready, reason

    def add_check(self, name: str, check: Check) -> None:
        """Add a liveness check; it runs on the HTTP server's thread and must be quick."""
        with self._lock:
            self._checks[name] = check

    def live(self) -> dict[str, str]:
        """What is wrong, by check; empty when the process is alive and well."""
        with self._lock:
            checks = dict(self._checks)
        found = {name: check() for name, check in checks.items()}
        return {name: problem for name, problem in found.items() if problem is not None}

    def ready(self) -> tuple[bool, str]:
        """Whether the service takes work, and why not."""
        with self._lock:
            return self._ready, self._reason


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: not worth a log line."""


class StatusServer:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` from a thread of its own."""

    def __init__(self, host: str, port: int, metrics: Metrics, health: Health) -> None:
        """Raises ConfigError when the address cannot be bound."""
        self._health = health
        self._metrics_app: Any = make_wsgi_app(metrics.registry)
        try:
            self._server = make_server(host, port, self._app, server_class=_Server, handler_class=_Quiet)
        except OSError as error:
            raise ConfigError(f"metrics port {host}:{port}: {error.strerror}; choose another --metrics-port") from error
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="status", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            response: Iterable[bytes] = self._metrics_app(environ, start_response)
            return response
        if path == "/healthz":
            problems = self._health.live()
            return _reply(start_response, not problems, {"problems": problems})
        if path == "/readyz":
            ready, reason = self._health.ready()
            return _reply(start_response, ready, {"ready": ready, "reason": reason})
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"/metrics, /healthz, /readyz\n"]


def _reply(start_response: Any, good: bool, body: dict[str, Any]) -> list[bytes]:
    start_response("200 OK" if good else "503 Service Unavailable", [("Content-Type", "application/json")])
    return [json.dumps(body).encode() + b"\n"]
