"""A sandbox: a candidate's container and a judge's, and the links to both."""

from __future__ import annotations

import contextlib
import time

import docker.errors

from code_verifier.conduct import run_job
from code_verifier.container import Container, Plan, Role, container_config
from code_verifier.engine import Engine, EngineAway
from code_verifier.job import Job, Outcome
from code_verifier.link import Link, SandboxBroken, wait
from gristmill.errors import ConfigError, InfrastructureError

HELLO_S = 30.0
TOGETHER_S = 1.0
"""How long the second container of a sandbox may outlive the first when the engine stops both."""


class Sandbox:
    """A warm pair of containers.

    Attributes:
        serial: number of the sandbox in its pool.
        runs: programs begun.
        busy: whether one runs.
        lost: whether it broke.
        containers: by role.
    """

    def __init__(self, engine: Engine, plan: Plan, serial: int) -> None:
        """Start both; returns when both wardens have said hello.

        Raises:
            EngineAway: the engine is.
            InfrastructureError: a container does not start, or its warden says nothing.
        """
        self.serial = serial
        self.runs = 0
        self.busy = False
        self.lost = False
        self.containers: dict[Role, Container] = {}
        self._limits = plan.limits
        self._links: dict[Role, Link] = {}
        roles: tuple[Role, Role] = ("candidate", "judge")
        try:
            for role in roles:
                config = container_config(plan, role, serial)
                self.containers[role] = container = Container(engine, role, plan.alter(role, config))
                self._links[role] = Link(container.socket, role)
            for role in roles:
                said = self._links[role].hello(HELLO_S)
                if said.get("unclean") is not None:
                    raise SandboxBroken(role, f"not clean at its start: {said['unclean']}")
        except BaseException as error:
            with contextlib.suppress(EngineAway):
                self.remove(engine)
            if isinstance(error, SandboxBroken):
                if not engine.answers():
                    raise EngineAway(f"a sandbox does not start, and the engine does not answer: {error}") from error
                raise InfrastructureError(f"a sandbox does not start: {error}") from error
            raise

    @property
    def container_ids(self) -> list[str]:
        """Docker's ids of both."""
        return [container.id for container in self.containers.values()]

    @property
    def suspicion(self) -> str | None:
        """Why it should be thrown away although it works."""
        return next((link.suspicion for link in self._links.values() if link.suspicion is not None), None)

    def run(self, job: Job) -> Outcome:
        """Run a program with its tests.

        Raises:
            SandboxBroken: the sandbox cannot be used any more, and nothing is known of the program.
        """
        self.runs += 1
        self.busy = True
        try:
            return run_job(self._links["candidate"], self._links["judge"], job, self._limits)
        except SandboxBroken:
            self.lost = True
            raise
        finally:
            self.busy = False

    def alive(self) -> bool:
        """Whether both containers are there; for one that is idle."""
        for link in self._links.values():
            wait((link,), 0.0)
            if link.has_event:
                return False
        return True

    def both_ended(self) -> bool:
        """Whether the two have ended at a time. A program reaches one of them only: this was the engine."""
        deadline = time.monotonic() + TOGETHER_S
        return all(_has_ended(link, deadline) for link in self._links.values())

    def abort(self) -> None:
        """Have a program that runs end with :class:`SandboxBroken`; for another thread than the one that runs it."""
        for container in self.containers.values():
            container.hang_up()

    def close(self) -> None:
        """Close the connections: both wardens end."""
        for container in self.containers.values():
            container.close()

    def remove(self, engine: Engine) -> None:
        """Remove both; returns when they are gone.

        Raises:
            EngineAway: the engine is.
        """
        self.close()
        for container in self.containers.values():
            container.remove(engine)


def _has_ended(link: Link, deadline: float) -> bool:
    while True:
        wait((link,), deadline)
        if not link.has_event:
            return False
        try:
            link.next()
        except SandboxBroken:
            return True


def check_runtime(engine: Engine, runtime: str | None) -> None:
    """Whether the engine can run Linux containers with a runtime.

    Raises:
        ConfigError: it cannot; the message says how to register the runtime.
        EngineAway: the engine is.
    """
    try:
        with engine.calls() as api:
            about = api.info()
    except docker.errors.APIError as error:
        raise ConfigError(f"the Docker engine at {engine.address} refuses: {error.explanation or error}") from error
    if about.get("OSType", "linux") != "linux":
        raise ConfigError(f"the Docker engine at {engine.address} runs {about['OSType']} containers; linux is needed")
    known = sorted(about.get("Runtimes") or {})
    if runtime is not None and runtime not in known:
        raise ConfigError(
            f"code.runtime: the Docker engine at {engine.address} knows no {runtime} (but {', '.join(known)}); "
            "docs/code-sandbox.md says how gVisor is registered"
        )
