"""The server process: load the model, bind, serve, drain on a signal.

The port is bound before the model loads (a taken port fails at once) and listened on after a first token was
generated, so whoever can connect gets answers.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn
from prometheus_client import CollectorRegistry

from embedded_engine.app import build_app
from embedded_engine.config import EngineConfig
from embedded_engine.engine import Engine
from embedded_engine.model.runner import load_model
from embedded_engine.scheduler import Scheduler
from embedded_engine.stats import EngineStats, Histograms, StatsCollector
from embedded_engine.tokenizer import Tokenizer
from gristmill.errors import ConfigError, GristmillError

DRAIN_S = 5
KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections (httpx: 5 s), so that it is they who close them: a connection that
the server closes just as a request is sent fails that request."""
MAX_PREFIX_TOKENS = 32768


class EngineServer(uvicorn.Server):
    """Uvicorn that ends running requests on a signal instead of waiting for them, and returns normally.

    Args:
        config: what to serve; the model is loaded here.

    Raises:
        ConfigError: the port is taken.
        GristmillError: the model cannot be served.
    """

    def __init__(self, config: EngineConfig) -> None:
        started = time.perf_counter()
        self._listener = _bind(config.host, config.port)
        host, port = self._listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        try:
            self.engine, registry = build_engine(config)
        except BaseException:
            self._listener.close()
            raise
        self._load_s = time.perf_counter() - started
        super().__init__(
            uvicorn.Config(
                build_app(self.engine, registry),
                log_config=None,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=DRAIN_S,
                timeout_keep_alive=KEEP_ALIVE_S,
                lifespan="off",
            )
        )

    async def run_engine(self) -> None:
        """Start the scheduler, check it with one token, serve until :meth:`stop`.

        Raises:
            GristmillError: no first token, or the scheduler died.
        """
        loop = asyncio.get_running_loop()
        self.engine.on_failure = lambda: loop.call_soon_threadsafe(self.stop)
        self.engine.scheduler.start()
        try:
            if not await self.engine.check():
                raise GristmillError(f"{self.engine.model_path}: the first token could not be generated")
            await self.serve(sockets=[self._listener])
        finally:
            self._listener.close()
            await asyncio.to_thread(self.engine.scheduler.stop, DRAIN_S)
        if self.engine.failure is not None:
            raise GristmillError(f"the engine failed: {self.engine.failure}") from self.engine.failure

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so in one line."""
        await super().startup(sockets)
        model = self.engine.model
        structlog.get_logger().info(
            "engine ready",
            url=self.url,
            model=self.engine.model_path,
            parameters=model.transformer.weights.parameters,
            device=str(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            threads=model.threads,
            context_length=model.spec.context_length,
            max_total_tokens=self.engine.scheduler.max_total_tokens,
            load_s=round(self._load_s, 2),
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM while serving."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        loop = asyncio.get_running_loop()
        for number in numbers:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Drain and return; a second call does not wait."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self.engine.begin_stop()


def serve(config: EngineConfig) -> None:
    """Serve until a signal; returns after draining. Errors as :class:`EngineServer`."""
    server = EngineServer(config)
    # What was made up to here lives as long as the process: looking through it in every collection, and once
    # more at exit, only costs time (about a second of a stop).
    gc.collect()
    gc.freeze()
    asyncio.run(server.run_engine())
    structlog.get_logger().info("engine stopped", requests=server.engine.scheduler.stats.requests)


def build_engine(config: EngineConfig) -> tuple[Engine, CollectorRegistry]:
    """Load the model and wire everything; the scheduler is not started yet.

    Raises:
        GristmillError: a model that cannot be served.
    """
    model = load_model(config)
    tokenizer = Tokenizer(config.tokenizer_path or str(model.spec.path), model.spec.vocab_size)
    budget = model.cache.max_tokens
    prefixes = config.prefix_cache_tokens
    stats = EngineStats()
    registry = CollectorRegistry()
    name = config.served_name or config.model_path or ""
    stats.histograms = Histograms(registry, name)
    collector = StatsCollector(stats, name, budget)
    registry.register(collector)
    scheduler = Scheduler(
        model,
        tokenizer,
        stats,
        max_running=config.max_running_requests,
        max_prefill_tokens=config.max_prefill_tokens,
        prefix_cache_tokens=min(budget // 4, MAX_PREFIX_TOKENS) if prefixes is None else prefixes,
        seed=config.seed,
    )
    engine = Engine(config, model, tokenizer, scheduler)
    scheduler.on_crash = engine.fail
    collector.count_loras = lambda: len(engine.adapters)
    return engine, registry


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"engine.host/engine.port: cannot listen on {host}:{port}: {error.strerror}") from error
    return listener
