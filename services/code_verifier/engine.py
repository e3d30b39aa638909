"""The connection to the Docker engine, and what its failures mean.

The SDK's client is not safe to share between threads: whoever starts a thread gives it an :class:`Engine` of its own.
Every call has a time limit. A call that fails because the engine is away raises :class:`EngineAway`, which the line
retries; what only a person can mend (no engine, no right to use it) is told at the start as a :class:`ConfigError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import docker
import docker.errors
import docker.utils

from gristmill.errors import ConfigError, InfrastructureError

CALL_TIMEOUT_S = 30.0
HOW_TO_GET_ONE = (
    "install one (Debian and Ubuntu: 'apt-get install docker.io'; elsewhere Docker Desktop or docker-ce), or name a "
    "running one with DOCKER_HOST or code.docker_host; see docs/code-sandbox.md. Programs never run outside a sandbox"
)


class EngineAway(InfrastructureError):
    """The Docker engine does not answer now."""


class Engine:
    """One thread's connection to the engine. Use it as a context manager, or call :meth:`close`."""

    def __init__(self, docker_host: str | None = None, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Connect.

        Raises:
            EngineAway: it does not answer; the message says where it was looked for.
            ConfigError: the address cannot be used, or this user may not use it.
        """
        where: dict[str, Any] = docker.utils.kwargs_from_env()
        if docker_host is not None:
            where["base_url"] = docker_host
        self.address = where.get("base_url") or "unix:///var/run/docker.sock"
        if self.address.startswith("ssh://"):
            raise ConfigError(f"{self.address}: sandboxes need a unix or tcp address of the Docker engine, not ssh")
        try:
            # The SDK wraps what goes wrong here in a DockerException and keeps only its words.
            self.api = docker.APIClient(version="auto", timeout=timeout_s, **where)
        except docker.errors.DockerException as error:
            raise self._explain(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections."""
        self.api.close()

    def _explain(self, error: docker.errors.DockerException) -> ConfigError | EngineAway:
        text = str(error)
        if "PermissionError" in text or "Permission denied" in text:
            return ConfigError(
                f"this user may not use the Docker engine at {self.address}: join the group of its socket "
                "(usually 'docker'), or run as root; see docs/code-sandbox.md"
            )
        if isinstance(error, docker.errors.TLSParameterError) or "Invalid bind address" in text:
            return ConfigError(f"the Docker engine's address {self.address!r} cannot be used: {text}")
        return EngineAway(f"no Docker engine answers at {self.address} ({text})")

    @contextmanager
    def calls(self) -> Iterator[Any]:
        """The SDK's client, for calls.

        Raises:
            EngineAway: the engine went away, is shutting down, or failed inside (any 5xx).
            docker.errors.APIError: it refused (any other status).
        """
        try:
            yield self.api
        except docker.errors.APIError as error:
            # Itself a RequestException, so it comes first.
            if not error.is_server_error():
                raise
            raise EngineAway(f"the Docker engine at {self.address} failed: {error.explanation or error}") from error
        except (OSError, ValueError) as error:
            # All of requests' errors are OSErrors; an answer that breaks off in the middle may come up as either.
            raise EngineAway(f"the Docker engine at {self.address} does not answer: {error}") from error

    def answers(self) -> bool:
        """Whether the engine answers at this moment."""
        try:
            with self.calls() as api:
                return bool(api.ping())
        except (EngineAway, docker.errors.APIError):
            return False


def connect(docker_host: str | None = None) -> Engine:
    """Connect at a program's start.

    Raises:
        ConfigError: there is no engine, or it may not be used; the message says how to get one.
    """
    try:
        return Engine(docker_host)
    except EngineAway as error:
        raise ConfigError(f"{error}: {HOW_TO_GET_ONE}") from error
