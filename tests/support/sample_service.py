"""A service in a process of its own, for tests of how services start and stop: ``sample_service.py HOW [flags]``."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time

from pydantic import Field, create_model

from gristmill.cli import report_errors
from gristmill.config import Section, Settings, load_settings, parse_overrides
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
    """The main thread never comes back to the interpreter, so no Python signal handler runs."""
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    say("ready")
    libc.pthread_mutex_lock(mutex)


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
    spec = ServiceSpec("sample", "sample", SampleConfig, globals()[sys.argv[1]], "A sample.")
    sample = (SampleConfig, Field(default_factory=SampleConfig))
    model: type[Settings] = create_model("SampleSettings", __base__=Settings, sample=sample)
    report_errors(lambda: run_service(spec, load_settings(None, parse_overrides(sys.argv[2:]), model=model)))
