"""Engines that the runner starts: until they answer, while they run, and when one no longer does."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.errors import GristmillError, InfrastructureError
from gristmill.local.plan import EnginePlan
from gristmill.local.process import Part, last_lines, wait_until

WATCH_INTERVAL_S = 5.0
ANSWER_TIMEOUT_S = 5.0


def engine_part(plan: EnginePlan, log_dir: Path) -> Part:
    """The process of an engine."""
    log = log_dir / f"{plan.name}.log"
    return Part(plan.name, plan.command, log, env=plan.env, has_children=plan.hang_timeout_s is not None)


def wait_for_engine(
    url: str,
    part: Part | None,
    parts: Sequence[Part],
    timeout_s: float,
    check: Callable[[str], None],
    waiting: Callable[[str], None],
) -> None:
    """Wait until an engine answers.

    Args:
        url: where it listens.
        part: its process, None for an engine that the user named.
        parts: processes that must live meanwhile.
        timeout_s: seconds to wait.
        check: called again and again with what is waited for; may raise.
        waiting: called once with a line for people when it does not answer at once.

    Raises:
        PartDied: one of the processes ended.
        GristmillError: it did not answer in time; the end of its log is shown.
    """
    what, told = f"the engine at {url}", False

    def ready() -> bool:
        nonlocal told
        check(f"waiting for {what}")
        if answers(f"{url}/health"):
            return True
        if not told:
            waiting(f"{what} does not answer yet: waiting up to {timeout_s:.0f} s")
            told = True
        return False

    wait_until(ready, [*parts, *([part] if part else [])], timeout_s, what)


class EngineWatch:
    """Asks servers for their health on a thread, and keeps what went wrong for the runner to raise."""

    def __init__(self, engines: Mapping[str, tuple[Part, float]]) -> None:
        """``engines``: process, and seconds without an answer that it may take, by URL."""
        self._engines = dict(engines)
        self._answered = dict.fromkeys(engines, time.monotonic())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * ANSWER_TIMEOUT_S)

    def check(self) -> None:
        """Raises GristmillError when a server has not answered for too long."""
        now = time.monotonic()
        for url, (part, patience) in self._engines.items():
            silent = now - self._answered[url]
            if silent > patience:
                raise GristmillError(
                    f"{part.name} hangs: no answer from {url}/health for {silent:.0f} s. "
                    f"Its last log lines ({part.log}):\n{last_lines(part.tail())}"
                )

    def _run(self) -> None:
        while not self._stop.wait(WATCH_INTERVAL_S):
            for url in self._engines:
                if answers(f"{url}/health"):
                    self._answered[url] = time.monotonic()


def answers(url: str) -> bool:
    """Whether a GET answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S) as response:  # noqa: S310 (the user's own engine)
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def call(url: str, body: Mapping[str, Any] | None, key: str | None, timeout_s: float) -> dict[str, Any]:
    """GET, or POST of a JSON body; gives the JSON that comes back.

    Raises:
        InfrastructureError: no answer, an error status, or no JSON object.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310 (the user's own engine)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
            found = json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise InfrastructureError(f"{url} answers {error.code}: {error.read(500).decode(errors='replace')}") from error
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise InfrastructureError(f"{url} does not answer: {error}") from error
    if not isinstance(found, dict):
        raise InfrastructureError(f"{url} answers no JSON object")
    return found
