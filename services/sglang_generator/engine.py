"""One engine of the fleet: its state, its circuit breaker, and the supervisor that keeps it converged.

States: ``down`` → ``probing`` (does it answer, what does it serve) → ``syncing`` (every live version is put there
and confirmed) → ``serving``. Whatever casts doubt on what the engine serves (a lost connection, a response of
another version, a missing adapter, the breaker) takes it out of service at once, and the only way back leads
through probing and syncing: a restarted engine never gets traffic before its policies.

A sample that is placed here holds ``assigned`` until its answer is read; its request holds a slot while it is in flight
(:mod:`sglang_generator.desk`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection
from typing import Literal, Protocol, TypeAlias
from uuid import uuid4

import structlog

from gristmill.messages import Sampling
from sglang_generator.config import GeneratorConfig
from sglang_generator.delivery import Delivery, Receipt
from sglang_generator.desk import Ask, Desk
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.instruments import Instruments
from sglang_generator.policy import Policy
from sglang_generator.refill import EMPTY_AT_MOST, Refill
from sglang_generator.wire import Generated, ModelInfo, ModelList, Prompt, Request, sampling_params

_PROBE_MIN_S = 0.25
_PROBE_MAX_S = 5.0
"""Bounds of the pause between probes of an engine that does not get through them."""

State: TypeAlias = Literal["down", "probing", "syncing", "serving"]


class Wishes(Protocol):
    """What the fleet wants of its engines."""

    def wanted(self) -> Collection[Policy]:
        """Versions that an engine must serve, the most urgent first."""

    def retained(self) -> Collection[int]:
        """Versions that stay where they are loaded."""

    def lost(self, policy: Policy) -> bool:
        """An engine cannot load a version. True if the line can go on without it there."""

    def found(self, engine: Engine, info: ModelInfo, models: ModelList | None) -> None:
        """An engine has answered."""

    def changed(self) -> None:
        """An engine's state or limit has changed, or what it serves."""

    def room(self) -> None:
        """An engine has room: an answer has arrived."""


class Engine:
    """One engine. ``run`` supervises it until cancelled; samplers use the rest."""

    def __init__(
        self,
        url: str,
        config: GeneratorConfig,
        delivery: Delivery,
        wishes: Wishes,
        instruments: Instruments,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self.url = url
        self.client = EngineClient(url, config)
        self.desk = Desk(
            self.client,
            config.first_concurrency,
            self.usable_for,
            lambda: self._epoch,
            wishes.room,
            Refill(config.prefill_cost_s),
        )
        self.assigned = 0
        """Samples placed here and not finished."""
        self.trouble: EngineError | None = None
        """Why the engine is out of service."""
        self.putting: Policy | None = None
        """The version that is being delivered here."""
        self.tokens = 0
        """Tokens sampled here so far."""
        self.answers = 0
        """Samples that were taken from here so far."""
        self.admission = 0
        """How often the engine was admitted."""
        self._config = config
        self._delivery = delivery
        self._wishes = wishes
        self._instruments = instruments
        self._log = log.bind(engine=url)
        self._state: State = "down"
        self._loaded: dict[int, Policy] = {}
        self._placed: dict[str, Policy] = {}
        self._met = False
        self._listed = False
        self._pinned: str | None = None
        self._model_path: str | None = None
        self._epoch = 0
        self._failures = 0
        self._openings = 0
        self._probes = 0
        self._heard_at = 0.0
        self._admitted = False
        self._stalled_since: float | None = None
        self._source_tries = 0
        self._wake = asyncio.Event()
        self._drops: set[Policy] = set()
        self._dropper: asyncio.Task[None] | None = None
        self._aborts: set[asyncio.Task[None]] = set()
        self._count_tokens = instruments.engine_tokens.labels(url).inc
        instruments.in_flight.labels(url).set_function(lambda: self.client.in_flight)
        instruments.adapters.labels(url).set_function(lambda: len(self._loaded))
        instruments.requests_waiting.labels(url).set_function(lambda: self.desk.slots.waiting)
        instruments.limit.labels(url).set_function(lambda: self.desk.slots.limit)
        instruments.show_state(url, self._state)

    @property
    def state(self) -> State:
        """Where the engine is between down and serving."""
        return self._state

    @property
    def versions(self) -> list[int]:
        """Versions confirmed here."""
        return sorted(self._loaded)

    @property
    def in_service(self) -> bool:
        """Whether the engine was admitted and has not failed since: it may be taking an update."""
        return self._admitted and self.trouble is None

    @property
    def taking(self) -> bool:
        """Whether requests are sent here now."""
        return self._state == "serving" and self.trouble is None

    @property
    def load(self) -> int:
        """Samples placed here whose answer has not arrived."""
        return self.assigned - self.desk.unread

    @property
    def limit(self) -> int:
        """Requests that may be in flight."""
        return self.desk.slots.limit

    @property
    def held_back(self) -> bool:
        """Whether more samples are placed here than may be in flight: some wait because of the limit, and not only for
        company."""
        return self.load > self.limit

    @property
    def full(self) -> bool:
        """Whether about as many requests are in flight as may be: else it is not the limit that bounds them. Slots that
        wait for each other are fewer than the share that is allowed for."""
        return self.client.in_flight >= (1 - EMPTY_AT_MOST) * self.limit

    def set_limit(self, limit: int) -> None:
        """Let this many requests be in flight from now on, and groups placed for as many."""
        self.desk.resize(limit)
        self._wishes.changed()

    def open_for(self, policy: Policy) -> bool:
        """Whether a new group of this version may be placed here."""
        return self.load < self.limit and self._state == "serving" and self.usable_for(policy)

    def usable_for(self, policy: Policy) -> bool:
        """Whether a sample of this version that is already placed, or retried, may be sent here."""
        return self.trouble is None and self._loaded.get(policy.version) == policy

    def submit(self, policy: Policy, prompt: Prompt, sampling: Sampling, index: int, ready: Callable[[], None]) -> Ask:
        """Ask for one completion by a version; read the answer with :meth:`take` once it is ``ready``."""
        request = Request(uuid4().hex, prompt, sampling_params(sampling, index), policy.expected(self._pinned))
        ask = Ask(policy, request, ready)
        self.desk.submit(ask)
        return ask

    def take(self, ask: Ask) -> Generated | None:
        """Read an answer; None if the request was not sent. Counts for the breaker, and aborts at the engine what took
        too long.

        Raises:
            EngineError: the engine failed.
            RequestRefused: the engine says that the request is wrong.
        """
        outcome = ask.outcome
        if outcome is None:
            self.desk.close_ask(ask)
            return None
        try:
            result = self.client.read(ask.request, outcome)
        except EngineError as error:
            if error.kind == "timeout":
                self._abort(ask.request.rid)
            self.fail(error, ask.epoch)
            raise
        finally:
            self.desk.close_ask(ask)
        self._failures = self._openings = 0
        self._heard_at = time.monotonic()
        self.answers += 1
        self.tokens += len(result.ids) // 4
        self._count_tokens(len(result.ids) // 4)
        return result

    def withdraw(self, ask: Ask) -> None:
        """Want an answer no longer. What the engine may still be at is aborted, and a failure judged all the same."""
        outcome = ask.outcome
        if ask.stage == "in_flight" or (isinstance(outcome, EngineError) and outcome.kind == "timeout"):
            self._abort(ask.request.rid)
        self.desk.close_ask(ask)
        if isinstance(outcome, EngineError):
            self.fail(outcome, ask.epoch)

    async def ask(self, policy: Policy, prompt: Prompt, sampling: Sampling, index: int) -> tuple[Ask, Generated | None]:
        """One completion by a version, with the request that it answers; None as with :meth:`take`.

        Raises:
            EngineError: the engine failed.
            RequestRefused: the engine says that the request is wrong.
        """
        ready = asyncio.Event()
        ask = self.submit(policy, prompt, sampling, index, ready.set)
        try:
            await ready.wait()
        except asyncio.CancelledError:
            self.withdraw(ask)
            raise
        return ask, self.take(ask)

    def fail(self, error: EngineError, epoch: int) -> None:
        """Take note of a failure, and go out of service if it casts doubt on the engine.

        ``epoch`` is when the request was sent: what was sent before the last admission says nothing about now.
        """
        self._instruments.engine_errors.labels(self.url, error.kind).inc()
        if error.effect == "none" or epoch != self._epoch:
            return
        self._failures += 1
        if error.effect == "resync" or self._failures >= self._config.breaker_failures:
            self._leave_service(error)

    def wake(self) -> None:
        """Let the supervisor look at the fleet's wishes again."""
        self._wake.set()

    async def run(self) -> None:
        """Supervise the engine until cancelled."""
        while True:
            try:
                await self._admit()
            except EngineError as error:
                self._instruments.engine_errors.labels(self.url, error.kind).inc()
                self.trouble = error
                self._loaded.clear()
                self._set_state("down")
                if self._probes in (0, 5) or self._probes % 60 == 0:
                    self._log.warning("engine_not_admitted", kind=error.kind, error=str(error), tries=self._probes + 1)
                pause = min(_PROBE_MAX_S, _PROBE_MIN_S * 2.0 ** min(self._probes, 20))
                await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
                self._probes += 1
                continue
            self._probes = 0
            try:
                await self._serve()
            except EngineError as error:
                self._instruments.engine_errors.labels(self.url, error.kind).inc()
                self._leave_service(error)
            await asyncio.sleep(self._cooldown())

    async def close(self) -> None:
        """Send what aborts are due and close the connections."""
        if self._dropper is not None:
            self._dropper.cancel()
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=2.0)
        await self._delivery.leave(self.client)
        await self.client.close()

    async def _admit(self) -> None:
        self._set_state("probing")
        try:
            info = await self.client.model_info()
            models = await self.client.models()
        except EngineError:
            self.client.give_up_in_flight()
            raise
        self._check_identity(info)
        self._wishes.found(self, info, models)
        self._set_state("syncing")
        self._loaded.clear()
        self.trouble = None
        self._epoch += 1
        self._failures = 0
        self._wake.clear()
        await self._delivery.begin(self.client)
        if not self._met:
            await self._delivery.clean(self.client, models, self._wishes.wanted())
        trusted = self._met and self._listed
        self._met, self._listed = True, models is not None
        # Until nothing is missing: a version that came meanwhile may be current elsewhere already.
        while (policy := self._first_missing()) is not None:
            try:
                await self._put(policy, trusted=trusted)
            except EngineError as error:
                if error.kind != "adapter" or not self._wishes.lost(policy):
                    raise
                self._log.warning("policy_lost", policy=policy.name, error=str(error))
            if self.trouble is not None:
                return
        retained = self._wishes.retained()
        self._drops = {policy for policy in self._placed.values() if policy.version not in retained}
        self._heard_at = time.monotonic()
        self._admitted = True
        self.admission += 1
        self._set_state("serving")
        self._log.info("engine_serving", versions=self.versions)

    def _first_missing(self) -> Policy | None:
        wanted = self._wishes.wanted()
        return next((policy for policy in wanted if self._loaded.get(policy.version) != policy), None)

    async def _serve(self) -> None:
        while self.trouble is None:
            self._wake.clear()
            if (missing := self._first_missing()) is not None:
                await self._update(missing)
                continue
            self._drop_drained()
            try:
                async with asyncio.timeout(self._config.health_interval_s):
                    await self._wake.wait()
            except TimeoutError:
                await self._check_health()

    async def _update(self, policy: Policy) -> None:
        try:
            await self._delivery.prepare(policy)
        except EngineError as error:
            if error.kind != "source":
                raise
            await self._wait_for_source(policy, error)
            return
        self._source_tries = 0
        if self._delivery.exclusive:
            self._set_state("syncing")
            started = time.monotonic()
            while self.assigned and self.trouble is None:
                self._wake.clear()
                await self._wake.wait()
            if self.trouble is not None:
                return
            if self._stalled_since is None:
                self._instruments.update_drain.observe(time.monotonic() - started)
                self._stalled_since = time.monotonic()
            self._loaded.clear()
        await self._put(policy, trusted=self._listed)
        if self.trouble is None:
            self._set_state("serving")

    async def _wait_for_source(self, policy: Policy, error: EngineError) -> None:
        """The engine goes on with the version that it has."""
        if self._source_tries in (0, 5) or self._source_tries % 60 == 0:
            self._log.warning(
                "policy_not_to_be_had", policy=policy.name, error=str(error), tries=self._source_tries + 1
            )
        pause = min(_PROBE_MAX_S, _PROBE_MIN_S * 2.0 ** min(self._source_tries, 20))
        self._source_tries += 1
        self._instruments.engine_errors.labels(self.url, error.kind).inc()
        try:
            async with asyncio.timeout(random.uniform(0.5, 1.0) * pause):
                await self._wake.wait()
        except TimeoutError:
            await self._check_health()

    async def _put(self, policy: Policy, *, trusted: bool) -> None:
        started = time.monotonic()
        self.putting = policy
        try:
            receipt = await self._delivery.put(
                self.client, policy, self._pinned, trusted or policy.name in self._placed
            )
        finally:
            self.putting = None
        if self.trouble is not None:
            return
        self._loaded[policy.version] = policy
        self._placed[policy.name] = policy
        self._count(policy, receipt, time.monotonic() - started)
        self._wishes.changed()

    def _count(self, policy: Policy, receipt: Receipt, seconds: float) -> None:
        instruments = self._instruments
        instruments.loads.labels(self.url).inc()
        instruments.delivered_bytes.labels(self.url, receipt.mode).inc(receipt.moved)
        phases = {"transfer": receipt.transfer_s, "verify": receipt.verify_s, "first_token": receipt.first_token_s}
        for phase, took in phases.items():
            instruments.delivery_phase.labels(receipt.mode, phase).observe(took)
        self._log.info(
            "policy_confirmed",
            policy=policy.name,
            version=policy.version,
            mode=receipt.mode,
            bytes=receipt.moved,
            verified=receipt.verified,
            checksum=receipt.checksum[:16],
            s=round(seconds, 4),
            **{f"{phase}_s": round(took, 4) for phase, took in phases.items()},
        )

    def resume(self, policy: Policy) -> None:
        """New groups take a version that is served here: an update that stalled the engine is over."""
        if self._stalled_since is not None:
            stalled = time.monotonic() - self._stalled_since
            self._stalled_since = None
            self._instruments.update_stall.observe(stalled)
            self._log.info("engine_resumed", policy=policy.name, version=policy.version, stalled_s=round(stalled, 4))

    def _drop_drained(self) -> None:
        retained = self._wishes.retained()
        for version in [known for known in self._loaded if known not in retained]:
            self._drops.add(self._loaded.pop(version))
        if self._drops and (self._dropper is None or self._dropper.done()):
            # The engine waits for requests of a peer that still uses the adapter: that must not hold up a newer one.
            self._dropper = asyncio.create_task(self._drop(), name=f"drop {self.url}")

    async def _drop(self) -> None:
        while self._drops:
            policy = next(iter(self._drops))
            try:
                await self._delivery.drop(self.client, policy)
            except EngineError as error:
                self._log.warning("adapter_not_unloaded", policy=policy.name, error=str(error))
                return
            self._drops.discard(policy)
            self._placed.pop(policy.name, None)
            self._log.debug("policy_dropped", policy=policy.name)

    async def _check_health(self) -> None:
        if time.monotonic() - self._heard_at < self._config.health_interval_s:
            return
        try:
            await self.client.health()
        except EngineError as error:
            if error.kind == "unavailable":  # it answers, so it is not hung: the breaker decides
                self.fail(error, self._epoch)
                return
            self._instruments.engine_errors.labels(self.url, error.kind).inc()
            self._leave_service(error)
            self.client.give_up_in_flight()
            return
        self._heard_at = time.monotonic()

    def _check_identity(self, info: ModelInfo) -> None:
        found = (info.weight_version, info.model_path)
        if not self._met:
            self._pinned, self._model_path = found
        elif not self._delivery.exclusive and found != (self._pinned, self._model_path):
            raise EngineError(
                "mismatch",
                f"{self.url} serves {info.model_path} (weight_version {info.weight_version!r}) now, and served "
                f"{self._model_path} ({self._pinned!r}) before: adapters belong to one base model",
            )

    def _leave_service(self, error: EngineError) -> None:
        if self.trouble is not None:
            return
        self.trouble = error
        self._admitted = False
        self._stalled_since = None  # out of service is no stall
        self._loaded.clear()
        self._openings += 1
        self._instruments.openings.labels(self.url).inc()
        self._log.warning("engine_out_of_service", kind=error.kind, error=str(error), opening=self._openings)
        self._set_state("down")
        self._wake.set()

    def _cooldown(self) -> float:
        """Seconds out of service: none after a first doubt, then doubling until a sample succeeds."""
        if self._openings <= 1 and self.trouble is not None and self.trouble.effect == "resync":
            return 0.0
        longest = min(self._config.breaker_max_s, self._config.breaker_reset_s * 2.0 ** min(20, self._openings - 1))
        return random.uniform(0.5, 1.0) * longest

    def _set_state(self, state: State) -> None:
        if state != self._state:
            self._state = state
            self.desk.let_gather(state == "serving")
            self._instruments.show_state(self.url, state)
            self._wishes.changed()

    def _abort(self, rid: str) -> None:
        task = asyncio.create_task(self._send_abort(rid), name=f"abort {rid}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, rid: str) -> None:
        try:
            await self.client.abort(rid)
        except EngineError as error:
            self._log.debug("abort_failed", rid=rid, error=str(error))
