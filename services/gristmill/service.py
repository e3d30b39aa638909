"""What a service is, and how one is started.

A service package exposes ``SERVICE``, a :class:`ServiceSpec`; ``gristmill run NAME`` finds it by entry point,
reads the configuration, starts metrics and health, turns SIGTERM and SIGINT into a :class:`StopSignal`, and
calls its ``run``. A second signal, or ``exit_timeout_s`` after the first, ends the process at once: what was
not committed is delivered again, so nothing is lost.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import FrameType
from typing import Any, Generic, TypeVar, cast

import structlog

from gristmill.codec import Codec
from gristmill.config import CommonConfig, Section, Settings
from gristmill.errors import ConfigError, MissingExtra
from gristmill.health import Health, StatusServer
from gristmill.logs import configure_logging, get_logger
from gristmill.metrics import Metrics
from gristmill.registry import open_codec
from gristmill.topics import Topics

C = TypeVar("C", bound=Section)

EXIT_FORCED = 70
"""Exit status of a process that did not drain in time."""


class StopSignal:
    """Set once, by a signal or by the service itself; threads and coroutines can wait for it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def set(self) -> None:
        with self._lock:
            self._event.set()
            waiters, self._waiters = self._waiters, []
        for loop, event in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until set or ``timeout`` seconds passed; tells whether it is set."""
        return self._event.wait(timeout)

    async def wait_async(self) -> None:
        """Wait in a coroutine."""
        event = asyncio.Event()
        waiter = (asyncio.get_running_loop(), event)
        with self._lock:
            if self._event.is_set():
                return
            self._waiters.append(waiter)
        try:
            await event.wait()
        finally:
            with self._lock:
                if waiter in self._waiters:  # given up: a caller may wait many times, each with a time limit
                    self._waiters.remove(waiter)


@dataclass(slots=True)
class ServiceContext(Generic[C]):
    """What the kernel hands to a running service."""

    name: str
    config: C
    common: CommonConfig
    codec: Codec
    topics: Topics
    metrics: Metrics = field(default_factory=Metrics)
    health: Health = field(default_factory=Health)
    stop: StopSignal = field(default_factory=StopSignal)
    log: structlog.typing.FilteringBoundLogger = field(default_factory=get_logger)


@dataclass(frozen=True, slots=True)
class ServiceSpec(Generic[C]):
    """A service as its package declares it."""

    name: str
    section: str
    config: type[C]
    run: Callable[[ServiceContext[C]], Awaitable[None] | None]
    summary: str


def service_names() -> list[str]:
    """Names of the installed services."""
    return sorted(point.name for point in entry_points(group="gristmill.services"))


def find_service(name: str) -> ServiceSpec[Any]:
    """Load a service by name.

    Raises:
        ConfigError: no such service.
        MissingExtra: its dependencies are not installed.
    """
    points = entry_points(group="gristmill.services", name=name)
    if not points:
        raise ConfigError(f"no service {name!r}; the services are {', '.join(service_names())}")
    try:
        return cast(ServiceSpec[Any], next(iter(points)).load())
    except ModuleNotFoundError as error:
        raise MissingExtra(f"service {name}", EXTRAS.get(name, "local"), error.name or str(error)) from error


EXTRAS = {
    "problem_producer": "producer",
    "sglang_generator": "generator",
    "math_verifier": "math",
    "code_verifier": "code",
    "grpo_trainer": "trainer",
}
"""Extra of ``pyproject.toml`` that brings each service's dependencies."""


def make_context(spec: ServiceSpec[C], settings: Settings) -> ServiceContext[C]:
    """Context of a service from the settings, with a codec and the topics of its prefix."""
    common = settings.common
    return ServiceContext(
        name=spec.name,
        config=settings.section(spec.section, spec.config),
        common=common,
        codec=open_codec(common),
        topics=Topics(common.topic_prefix),
    )


def run_service(spec: ServiceSpec[C], settings: Settings) -> None:
    """Run a service in this process until it is done or told to stop."""
    common = settings.common
    configure_logging(common.log_level, common.log_format, service=spec.name, run=common.run_id)
    context = make_context(spec, settings)
    status: StatusServer | None = None
    if common.metrics_port is not None:
        status = StatusServer(common.metrics_host, common.metrics_port, context.metrics, context.health)
        status.start()
        context.log.info("status_server_started", port=status.port)
    _handle_signals(context.stop, common.exit_timeout_s)
    context.log.info("service_started", pid=os.getpid())
    try:
        outcome = spec.run(context)
        if inspect.isawaitable(outcome):
            asyncio.run(_wait(outcome))
    except ModuleNotFoundError as error:
        raise MissingExtra(f"service {spec.name}", EXTRAS.get(spec.name, "local"), error.name or str(error)) from error
    finally:
        context.health.set_ready(False, "stopped")
        if status is not None:
            status.stop()
    context.log.info("service_stopped")


async def _wait(outcome: Awaitable[None]) -> None:
    await outcome


def _handle_signals(stop: StopSignal, exit_timeout_s: float) -> None:
    """Set ``stop`` on SIGTERM or SIGINT; end the process on a second one or at the deadline.

    The signal's number goes through a pipe to a thread of its own. A handler that did the work itself would run
    between any two instructions of the main thread, and so wait for ever for a lock that this thread holds (the
    logger's, the event's); nor would it run while the main thread is inside native code.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in _STOP_SIGNALS:
        signal.signal(number, _wake)
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals, after_in_child=_forget_signals)
    threading.Thread(target=_watch_signals, args=(read_end, stop, exit_timeout_s), name="signals", daemon=True).start()


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _wake(_number: int, _frame: FrameType | None) -> None:
    """Python writes the number of a signal that has a handler into the pipe; there is no more to do here."""


def _hold_signals() -> None:
    """A signal that comes while this thread forks waits, so that the child meets it with its own handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)


def _let_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def _forget_signals() -> None:
    """A forked child must neither wake its parent nor shrug off SIGTERM."""
    signal.set_wakeup_fd(-1)
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _let_signals()


def _watch_signals(read_end: int, stop: StopSignal, exit_timeout_s: float) -> None:
    asked = False
    while numbers := os.read(read_end, 64):
        for number in numbers:
            if number not in _STOP_SIGNALS:
                continue
            if asked:
                os._exit(EXIT_FORCED)
            asked = True
            get_logger().info("stopping", signal=signal.Signals(number).name)
            watchdog = threading.Timer(exit_timeout_s, _force_exit)
            watchdog.daemon = True
            watchdog.start()
            stop.set()


def _force_exit() -> None:
    get_logger().error("drain_deadline_passed", hint="raise exit_timeout_s if this is not a hang")
    os._exit(EXIT_FORCED)
