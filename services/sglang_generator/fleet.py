"""All engines together: which version is current, which versions live, and where a group goes.

Invariants:

* A group is placed only on an engine that has confirmed the version it is placed with.
* ``current`` is the newest version that every engine in service has confirmed (``switch: all``), or that one has
  (``each``); new groups always take it.
* A version stays on the engines while a group holds it; drained versions are dropped, ``keep_versions`` behind.
* A group waits for an engine with room rather than in an engine's queue, so slow engines get fewer groups.
* The first group that waits is placed in the very call in which room comes about.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection

import structlog

from sglang_generator.config import GeneratorConfig
from sglang_generator.delivery import Delivery, make_delivery
from sglang_generator.engine import Engine
from sglang_generator.errors import PolicyGone
from sglang_generator.instruments import Instruments
from sglang_generator.pacer import Pacer
from sglang_generator.placement import Placement, Starter, Waiting
from sglang_generator.policy import Policy
from sglang_generator.wire import ModelInfo, ModelList


class Fleet:
    """The engines of one generator; one event loop."""

    def __init__(
        self,
        config: GeneratorConfig,
        run_id: str,
        instruments: Instruments,
        log: structlog.typing.FilteringBoundLogger,
        on_current: Callable[[Policy], None],
        on_change: Callable[[], None],
    ) -> None:
        self.delivery: Delivery = make_delivery(config, run_id)
        self.engines = [Engine(url, config, self.delivery, self, instruments, log) for url in config.engines]
        self._pacers = [Pacer(engine, self, config, instruments, log) for engine in self.engines]
        self.current: Policy | None = None
        self.target: Policy | None = None
        self.tokenizer_path: str | None = None
        self.context_length: int | None = config.context_length
        self.model_known = asyncio.Event()
        self._config = config
        self._instruments = instruments
        self._log = log
        self._on_current = on_current
        self._on_change = on_change
        self._policies: dict[int, Policy] = {}
        self._held: dict[int, int] = {}
        self._lost: set[int] = set()
        self._queue: deque[Waiting] = deque()
        self._moving: asyncio.Event | None = None

    async def run(self) -> None:
        """Supervise the engines until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for engine in self.engines:
                tasks.create_task(engine.run(), name=f"engine {engine.url}")
            for engine, pacer in zip(self.engines, self._pacers, strict=True):
                tasks.create_task(pacer.run(), name=f"pacer {engine.url}")

    async def close(self) -> None:
        """Close the connections; call after :meth:`run` has ended."""
        await asyncio.gather(*(engine.close() for engine in self.engines))
        await self.delivery.close()

    def set_target(self, policy: Policy) -> None:
        """Bring a verified version onto the engines."""
        self.target = policy
        self._policies[policy.version] = policy
        self._wake_engines()

    def wanted(self) -> list[Policy]:
        """Versions the engines must hold: the target first, then what is current or held, newest first."""
        if self.target is None:
            return []
        if self.delivery.exclusive:
            return [self.target]
        live = {version for version, count in self._held.items() if count}
        if self.current is not None:
            live.add(self.current.version)
        live -= {self.target.version, *self._lost}
        return [self.target, *(self._policies[version] for version in sorted(live, reverse=True))]

    def retained(self) -> set[int]:
        """Versions that stay where they are: the wanted ones, those on their way to an engine, and ``keep_versions``
        behind the current one."""
        wanted = {policy.version for policy in self.wanted()} | self._held.keys()
        # Else, with versions coming fast, a slow engine would never confirm one that the others still have.
        wanted |= {engine.putting.version for engine in self.engines if engine.putting is not None}
        if self.current is None:
            return wanted
        behind = sorted((known for known in self._policies if known < self.current.version), reverse=True)
        return wanted | set(behind[: self._config.keep_versions])

    def lost(self, policy: Policy) -> bool:
        """An engine cannot load a version: the line goes on without it unless new groups need it."""
        needed = policy in (self.target, self.current)
        if not needed:
            self._lost.add(policy.version)
            self.changed()
        return not needed

    async def place(self, samples: int, starter: Starter | None = None) -> Placement:
        """Wait for an engine with room that serves the current version, and start the group there. The group holds that
        version until :meth:`release`; its ``samples`` count on the engine until :meth:`finish`, one by one.
        """
        placed: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        waiting = Waiting(samples, starter, placed)
        self._queue.append(waiting)
        self.room()
        try:
            return await placed
        except asyncio.CancelledError:
            if placed.cancelled():
                with contextlib.suppress(ValueError):
                    self._queue.remove(waiting)
            elif placed.exception() is None:
                self._take_back(waiting, placed.result())
            raise

    def _take_back(self, waiting: Waiting, placement: Placement) -> None:
        """A group was placed at the moment it gave up."""
        waiting.withdraw()
        for _ in range(waiting.samples):
            self.finish(placement.engine)
        self.release(placement)

    def release(self, placement: Placement) -> None:
        """A group is done with its version."""
        version = placement.policy.version
        self._held[version] -= 1
        if not self._held[version]:
            del self._held[version]
            self._prune()
            self._wake_engines()

    def finish(self, engine: Engine) -> None:
        """One sample is done with an engine."""
        engine.assigned -= 1
        if not engine.assigned:
            engine.wake()
        self._let_in()

    async def move(self, policy: Policy, failed: Collection[Engine]) -> Engine:
        """Wait for an engine that serves ``policy``, preferring those that have not failed the sample.

        The sample counts there. Raises PolicyGone when no engine will ever serve it again.
        """
        while True:
            engine = self._least_loaded(lambda each: each.usable_for(policy) and each not in failed)
            if engine is None:
                engine = self._least_loaded(lambda each: each.usable_for(policy))
            if engine is not None:
                engine.assigned += 1
                return engine
            if policy not in self.wanted():
                raise PolicyGone(f"no engine serves policy {policy.name} (version {policy.version}) any more")
            if self._moving is None:
                self._moving = asyncio.Event()
            await self._moving.wait()

    def found(self, engine: Engine, info: ModelInfo, models: ModelList | None) -> None:
        """An engine has told its model: the first one decides on the tokenizer."""
        tokenizer = self._config.tokenizer or info.tokenizer_path or info.model_path
        if self.tokenizer_path is None:
            self.tokenizer_path = tokenizer
        elif self.tokenizer_path != tokenizer:
            self._log.warning("tokenizers_differ", engine=engine.url, path=tokenizer, in_use=self.tokenizer_path)
        if self._config.context_length is None and models is not None:
            lengths = [card.max_model_len for card in models.data if card.max_model_len]
            self.context_length = min([*lengths, *([self.context_length] if self.context_length else [])], default=None)
        self.model_known.set()

    def changed(self) -> None:
        """An engine's state, room, or what it serves has changed."""
        self._advance()
        self._let_in()
        self._on_change()

    @property
    def waiting(self) -> bool:
        """Whether groups wait for room on any engine."""
        return bool(self._queue)

    def serving(self) -> list[Engine]:
        """Engines that take groups of the current version, room aside."""
        policy = self.current
        if policy is None:
            return []
        return [each for each in self.engines if each.state == "serving" and each.usable_for(policy)]

    def _advance(self) -> None:
        """Let new groups take the newest version that may be served; the last engine to lack it may have failed."""
        newer = [
            policy
            for policy in self._policies.values()
            if (self.current is None or policy.version > self.current.version) and self._may_switch(policy)
        ]
        if newer:
            policy = max(newer, key=lambda each: each.version)
            self.current = policy
            self._instruments.version.set(policy.version)
            holders = [engine.url for engine in self.engines if engine.usable_for(policy)]
            self._log.info("policy_current", policy=policy.name, version=policy.version, engines=holders)
            self._prune()
            self._on_current(policy)
            self._wake_engines()
        if self.current is not None:
            for engine in self.engines:
                if engine.usable_for(self.current):
                    engine.resume(self.current)

    def _may_switch(self, policy: Policy) -> bool:
        """Whether a version is where it must be. Engines that are out of service do not count: they get it before
        they come back."""
        if not any(engine.usable_for(policy) for engine in self.engines):
            return False
        if self._config.switch == "each":
            return True
        return all(engine.usable_for(policy) for engine in self.engines if engine.in_service)

    def _least_loaded(self, admits: Callable[[Engine], bool]) -> Engine | None:
        return min((each for each in self.engines if admits(each)), key=lambda each: each.load, default=None)

    def room(self) -> None:
        """Place groups, the first that waits first, while there is room."""
        queue = self._queue
        while queue:
            if queue[0].placed.done():
                queue.popleft()  # it has just been cancelled
                continue
            placement = self._try_place(queue[0].samples)
            if placement is None:
                return
            waiting = queue.popleft()
            try:
                waiting.start(placement)
            except Exception as error:  # noqa: BLE001 (raised in the task of the group)
                # Whoever made the room must not suffer for it, and the group's own task must not wait for ever.
                self._take_back(waiting, placement)
                waiting.placed.set_exception(error)

    def _let_in(self) -> None:
        """There may be room, for groups and for samples that are retried."""
        self.room()
        if self._moving is not None:
            self._moving.set()
            self._moving = None

    def _try_place(self, samples: int) -> Placement | None:
        policy = self.current
        if policy is None:
            return None
        engine = self._least_loaded(lambda each: each.open_for(policy))
        if engine is None:
            return None
        engine.assigned += samples
        self._held[policy.version] = self._held.get(policy.version, 0) + 1
        return Placement(policy, engine)

    def _prune(self) -> None:
        """Forget versions that no engine holds any longer than it takes to unload them."""
        retained = self.retained()
        self._policies = {version: policy for version, policy in self._policies.items() if version in retained}
        self._lost &= retained

    def _wake_engines(self) -> None:
        for engine in self.engines:
            engine.wake()
