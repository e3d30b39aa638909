"""Sandboxes in stock: started before they are needed, removed after.

One thread keeps a few spare ones warm, so that a worker that throws its sandbox away has another at once, and removes
what was thrown away. It outlives any trouble of the engine: it waits, longer each time, and tries again.
"""

from __future__ import annotations

import collections
import itertools
import random
import threading
import time
from collections.abc import Iterable

import docker.errors

from code_verifier.container import POOL_LABEL, Plan, remove_container
from code_verifier.engine import Engine
from code_verifier.sandbox import Sandbox
from gristmill.errors import InfrastructureError

IDLE_S = 30.0
STRAY_AGE_S = 120.0
LONGEST_WAIT_S = 10.0
CLOSE_TRIES = 3


class Stock:
    """Spare sandboxes, and those to be removed.

    Attributes:
        plan: what the sandboxes have in common.
        started: how many were started.
        trouble: why no spare can be had at present, None when all is well.
        thread: the thread that keeps the stock.
    """

    def __init__(self, plan: Plan, docker_host: str | None, *, spares: int) -> None:
        self.plan = plan
        self.started = 0
        self.trouble: str | None = None
        self.thread = threading.Thread(target=self._keep, name="code-stock", daemon=True)
        self._docker_host = docker_host
        self._target = spares
        self._serial = itertools.count()
        self._spares: collections.deque[Sandbox] = collections.deque()
        self._doomed: collections.deque[Sandbox] = collections.deque()
        self._known: dict[int, Sandbox] = {}
        self._wake = threading.Event()
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def containers(self) -> list[str]:
        """Ids of all containers of live and doomed sandboxes."""
        return [container for sandbox in list(self._known.values()) for container in sandbox.container_ids]

    def take(self, engine: Engine) -> Sandbox:
        """A warm sandbox: a spare one, or else one started now over ``engine``.

        Raises:
            InfrastructureError: none can be started.
        """
        while True:
            try:
                sandbox = self._spares.popleft()
            except IndexError:
                return self._new(engine)
            finally:
                self._wake.set()
            if sandbox.alive():
                return sandbox
            self.discard(sandbox)

    def discard(self, sandbox: Sandbox) -> None:
        """Have a sandbox removed. Its connections are closed at once, so that it ends even if nobody removes it."""
        sandbox.close()
        self._doomed.append(sandbox)
        self._wake.set()

    def close(self) -> None:
        """Remove everything; waits until it is gone, or the engine has failed a few times over."""
        self._stop.set()
        self._wake.set()
        if self.thread.ident is not None:
            self.thread.join()
        while self._spares:
            self.discard(self._spares.popleft())
        for pause in range(CLOSE_TRIES):
            try:
                with Engine(self._docker_host) as engine:
                    self._remove_doomed(engine)
                    self._sweep(engine, youngest_s=0.0)
                    return
            except InfrastructureError:
                time.sleep(0.5 * pause)

    def _new(self, engine: Engine) -> Sandbox:
        serial = next(self._serial)
        sandbox = Sandbox(engine, self.plan, serial)
        self._known[serial] = sandbox
        self.started += 1
        return sandbox

    # -- the thread

    def _keep(self) -> None:
        failures = 0
        engine: Engine | None = None
        swept = time.monotonic()
        while not self._stop.is_set():
            self._wake.clear()
            try:
                if engine is None:
                    engine = Engine(self._docker_host)
                self._remove_doomed(engine)
                if len(self._spares) < self._target:
                    self._spares.append(self._new(engine))
                    self._wake.set()
                if time.monotonic() - swept > STRAY_AGE_S:
                    swept = time.monotonic()
                    self._sweep(engine, youngest_s=STRAY_AGE_S)
                self.trouble, failures = None, 0
                self._wake.wait(IDLE_S)
            except (InfrastructureError, docker.errors.APIError) as error:
                self.trouble = str(error)
                failures += 1
                self._stop.wait(min(LONGEST_WAIT_S, 0.2 * 2**failures) * random.uniform(0.5, 1.0))
        if engine is not None:
            engine.close()

    def _remove_doomed(self, engine: Engine) -> None:
        while self._doomed:
            sandbox = self._doomed[0]
            sandbox.remove(engine)
            self._doomed.popleft()
            self._known.pop(sandbox.serial, None)

    def _sweep(self, engine: Engine, *, youngest_s: float) -> None:
        """Remove containers of this pool that it does not know of: a create call may succeed after its time limit."""
        with engine.calls() as api:
            listed = api.containers(all=True, filters={"label": f"{POOL_LABEL}={self.plan.pool}"})
        known = set(self.containers())
        for entry in _older(listed, youngest_s):
            if entry not in known:
                remove_container(engine, entry)


def _older(listed: Iterable[dict[str, object]], age_s: float) -> list[str]:
    now = time.time()
    return [str(entry["Id"]) for entry in listed if now - float(str(entry.get("Created", 0))) >= age_s]
