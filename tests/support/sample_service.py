"""A service in a process of its own, for tests of how services start and stop: ``sample_service.py HOW [flags]``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from gristmill.cli import main
from gristmill.config import Section, load_settings, parse_overrides, settings_model
from gristmill.errors import BadInput
from gristmill.service import ServiceContext, ServiceSpec, run_service


class SampleConfig(Section):
    """Nothing to set."""


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def drains(ctx: ServiceContext[SampleConfig]) -> None:
    ctx.health.set_ready(True)
    say("ready")
    ctx.stop.wait()
    time.sleep(0.2)
    say("drained")


async def drains_async(ctx: ServiceContext[SampleConfig]) -> None:
    ctx.health.set_ready(True)
    say("ready")
    await ctx.stop.wait_async()
    await asyncio.sleep(0.2)
    say("drained")


def hangs(ctx: ServiceContext[SampleConfig]) -> None:
    say("ready")
    ctx.stop.wait()
    say("stopping")
    time.sleep(60)


def hangs_in_native_code(ctx: ServiceContext[SampleConfig]) -> None:
    """The main thread never comes back to the interpreter, so that no Python signal handler can run."""
    say("ready")
    signal.pthread_sigmask(signal.SIG_BLOCK, ())
    import ctypes

    libc = ctypes.PyDLL(None)  # keeps the interpreter locked while it sleeps
    while not ctx.stop.is_set():
        time.sleep(0.01)
    say("stopping")
    ctypes.CDLL(None).pause() if False else libc.usleep(200_000)
    time.sleep(60)


def logs_all_the_time(ctx: ServiceContext[SampleConfig]) -> None:
    """The signal nearly always comes while the main thread holds the logger's lock."""
    say("ready")
    while not ctx.stop.is_set():
        ctx.log.info("busy")
    say("drained")


def forks(ctx: ServiceContext[SampleConfig]) -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    say("ready")
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    say(f"child ended by signal {os.WTERMSIG(status)}, stop is {ctx.stop.is_set()}")


def ends(ctx: ServiceContext[SampleConfig]) -> None:
    say("done")


def lacks_a_module(ctx: ServiceContext[SampleConfig]) -> None:
    import no_such_module  # noqa: F401


def raises_on_purpose(ctx: ServiceContext[SampleConfig]) -> None:
    raise BadInput("on purpose")


def has_a_bug(ctx: ServiceContext[SampleConfig]) -> None:
    raise RuntimeError("a bug")


if __name__ == "__main__":
    run = globals()[sys.argv[1]]
    spec = ServiceSpec("sample", "sample", SampleConfig, run, "A sample.")
    from pydantic import Field, create_model

    model = create_model(
        "Sample", __base__=settings_model().__base__, sample=(SampleConfig, Field(default_factory=SampleConfig))
    )
    main(lambda: run_service(spec, load_settings(None, parse_overrides(sys.argv[2:]), model=model)))
