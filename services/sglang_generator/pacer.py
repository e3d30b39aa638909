"""Keeps an engine's concurrency right: asks it for its bounds and its load, and sets the limit.

With a fixed ``engine_concurrency`` it only warns when that exceeds what the engine runs at full speed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

import structlog

from sglang_generator.concurrency import Capacity, Controller, Load
from sglang_generator.config import GeneratorConfig
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.instruments import Instruments
from sglang_generator.wire import Loads

POLL_S = 1.0
_RATE_WINDOW = 10
"""Looks over which tokens per second are averaged: tokens are counted when their completion is finished."""


class Paced(Protocol):
    """What a pacer needs of an engine."""

    client: EngineClient

    @property
    def url(self) -> str:
        """Base URL."""

    @property
    def admission(self) -> int:
        """Counts the engine's admissions; 0 before the first."""

    @property
    def taking(self) -> bool:
        """Whether the engine takes requests now."""

    @property
    def held_back(self) -> bool:
        """Whether samples that are placed here wait for the limit."""

    @property
    def full(self) -> bool:
        """Whether about as many requests are in flight as the limit allows."""

    @property
    def tokens(self) -> int:
        """Tokens sampled so far."""

    def set_limit(self, limit: int) -> None:
        """Let this many requests be in flight from now on."""


class Demand(Protocol):
    """What a pacer needs of the fleet."""

    @property
    def waiting(self) -> bool:
        """Whether groups wait for room on any engine."""


class Pacer:
    """One engine's; ``run`` works until cancelled."""

    def __init__(
        self,
        engine: Paced,
        demand: Demand,
        config: GeneratorConfig,
        instruments: Instruments,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._engine = engine
        self._demand = demand
        self._auto = config.engine_concurrency == "auto"
        self._controller = Controller(config.first_concurrency)
        self._instruments = instruments
        self._log = log.bind(engine=engine.url)
        self._seen = 0
        self._silent = False
        self._counted: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW + 1)

    async def run(self) -> None:
        """Look at the engine about once a second."""
        while True:
            if self._engine.admission != self._seen and self._engine.taking:
                self._seen = self._engine.admission
                await self._ask_capacity()
            if self._auto and not self._silent:
                await self.look()
            self._measure_rate()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """One look at the engine's load, and what follows from it."""
        if not self._engine.taking:
            return
        try:
            loads = await self._engine.client.loads()
        except EngineError:
            return  # whether it is in trouble, its requests and its health tell
        if loads is None:
            self._silent = True
            self._log.warning("engine_tells_no_load", concurrency=self._controller.limit)
            return
        if not self._engine.taking:
            return  # an update began meanwhile: an engine without requests says nothing about the limit
        before = self._controller.limit
        decision = self._controller.observe(self._load(loads))
        self._instruments.decisions.labels(self._engine.url, decision).inc()
        if self._controller.limit != before:
            self._log.info("concurrency_set", limit=self._controller.limit, before=before, why=decision)
            self._engine.set_limit(self._controller.limit)

    def _measure_rate(self) -> None:
        self._counted.append((time.monotonic(), self._engine.tokens))
        (since, before), (now, count) = self._counted[0], self._counted[-1]
        if now > since:
            self._instruments.tokens_per_second.labels(self._engine.url).set((count - before) / (now - since))

    def _load(self, loads: Loads) -> Load:
        ranks = loads.loads
        return Load(
            running=sum(rank.num_running_reqs for rank in ranks),
            waiting=sum(rank.num_waiting_reqs for rank in ranks),
            kv_usage=max((rank.token_usage for rank in ranks), default=0.0),
            retracted=sum(rank.queues.retracted for rank in ranks if rank.queues is not None),
            held_back=self._engine.full and (self._engine.held_back or self._demand.waiting),
        )

    async def _ask_capacity(self) -> None:
        try:
            info = await self._engine.client.server_info()
        except EngineError as error:
            self._log.warning("engine_tells_no_capacity", error=str(error))
            return
        if info is None:
            return
        capacity = Capacity(info.largest_graph(), info.most_running())
        self._log.info("engine_capacity", largest_graph=capacity.largest_graph, most_running=capacity.most_running)
        if self._auto:
            self._controller.bound(capacity.cap)
            self._engine.set_limit(self._controller.limit)
            return
        limit = self._controller.limit
        if capacity.largest_graph is not None and limit > capacity.largest_graph:
            self._log.warning(
                "concurrency_above_cuda_graphs",
                concurrency=limit,
                largest_graph=capacity.largest_graph,
                advice=f"start the engine with --cuda-graph-max-bs-decode {limit}, or set generator.engine_concurrency "
                f"to {capacity.largest_graph}: larger batches run without CUDA graphs, at about half the speed",
            )
        if capacity.most_running is not None and limit > capacity.most_running:
            self._log.warning(
                "concurrency_above_max_running_requests",
                concurrency=limit,
                most_running=capacity.most_running,
                advice=f"start the engine with --max-running-requests {limit}, or set generator.engine_concurrency to "
                f"{capacity.most_running}: the rest only waits in the engine",
            )
