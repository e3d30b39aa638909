"""Follows the ``policies`` topic: verifies the newest version of the run and hands it to the fleet.

Credit is offered to admission as it is read, but counts only when the version it came with is current; versions
that are overtaken while another is on its way are skipped. At start the topic is read to its end first.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gristmill.artifacts import verify_dir
from gristmill.errors import ArtifactError, InfrastructureError
from gristmill.messages import PolicyVersion
from gristmill.reader import TopicReader
from gristmill.service import ServiceContext
from sglang_generator.admission import Admission
from sglang_generator.config import GeneratorConfig
from sglang_generator.instruments import Instruments
from sglang_generator.policy import Policy, PolicyBook, announced_policy

_POLL_S = 0.2
_RETRY_MAX_S = 10.0


class PolicyFollower:
    """Reads ``policies`` by itself, without a consumer group, from the beginning."""

    def __init__(
        self,
        ctx: ServiceContext[GeneratorConfig],
        instruments: Instruments,
        admission: Admission,
        set_target: Callable[[Policy], None],
        on_trouble: Callable[[str | None], None],
    ) -> None:
        self._ctx = ctx
        self._instruments = instruments
        self._admission = admission
        self._set_target = set_target
        self._on_trouble = on_trouble
        self._book = PolicyBook(ctx.common.run_id, ctx.config.delivery)
        self._news = asyncio.Event()
        self.caught_up = asyncio.Event()
        """Set when the end of the topic was reached for the first time."""
        self._announced_at: dict[int, float] = {}

    async def run(self) -> None:
        """Read and verify until cancelled.

        Raises:
            ConfigError: the trainer publishes a kind of weights that this generator is not set up for.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.read(), name="read policies")
            tasks.create_task(self.verify(), name="verify policies")

    def delivered(self, version: int) -> None:
        """A version is current: observe how long it took."""
        announced = self._announced_at.get(version)
        if announced is not None:
            self._instruments.delivery.observe(time.monotonic() - announced)
        self._announced_at = {known: at for known, at in self._announced_at.items() if known > version}

    def take(self, record: PolicyVersion) -> None:
        """Judge one record. Raises ConfigError as :meth:`run`."""
        outcome = self._book.take(record)
        if outcome in ("version", "credit"):
            self._admission.offer(record.version, record.admit_until)
            self._instruments.admit_until.set(self._admission.admit_until)
            if outcome == "version":
                self._announced_at[record.version] = time.monotonic()
                self._news.set()
        elif outcome != "repeated":
            self._instruments.policies_ignored.labels(outcome).inc()
            level: Any = self._ctx.log.info if outcome == "other_run" else self._ctx.log.warning
            level(
                "policy_ignored",
                why=outcome,
                policy=record.name,
                run=record.run_id,
                version=record.version,
                newest=self._book.newest.version if self._book.newest else None,
            )

    async def read(self) -> None:
        """Read records until cancelled, on a thread: the reader blocks, and must not be closed while polled."""
        loop = asyncio.get_running_loop()
        tries = 0
        with ThreadPoolExecutor(1, thread_name_prefix="policies") as thread:
            while True:
                reader: TopicReader[PolicyVersion] | None = None
                try:
                    reader = await loop.run_in_executor(
                        thread, TopicReader, self._ctx.common, self._ctx.codec, self._ctx.topics.policies, PolicyVersion
                    )
                    while True:
                        for record in await loop.run_in_executor(thread, reader.poll, _POLL_S):
                            tries = 0
                            if record.message is not None:
                                self.take(record.message)
                            elif record.error is not None:
                                self._instruments.policies_ignored.labels("undecodable").inc()
                                self._ctx.log.warning(
                                    "policy_ignored", why="undecodable", offset=record.offset, error=str(record.error)
                                )
                        if reader.at_end:
                            self.caught_up.set()
                except InfrastructureError as error:
                    delay = random.uniform(0.5, 1.0) * min(_RETRY_MAX_S, 0.5 * 2.0 ** min(tries, 10))
                    tries += 1
                    self._ctx.log.warning("policies_unreadable", error=str(error), retry_s=round(delay, 2))
                    await asyncio.sleep(delay)
                finally:
                    if reader is not None:
                        thread.submit(reader.close)

    async def verify(self) -> None:
        """Verify the newest version whenever there is one, once :attr:`caught_up` is set."""
        await self.caught_up.wait()
        verified = -1
        tries = 0
        while True:
            self._news.clear()
            record = self._book.newest
            if record is None or record.version <= verified:
                await self._news.wait()
                tries = 0
                continue
            try:
                # Weights that the trainer hands over itself are checked on the engines; their folder may be far away.
                path = (
                    await asyncio.to_thread(verify_dir, record.uri, record.sha256)
                    if self._ctx.config.reads_artifacts
                    else None
                )
            except (ArtifactError, OSError) as error:
                self._instruments.policies_ignored.labels("artifact").inc()
                self._ctx.log.error("policy_not_verified", policy=record.name, error=str(error), tries=tries + 1)
                self._on_trouble(f"policy {record.name} cannot be delivered: {error}")
                delay = random.uniform(0.5, 1.0) * min(_RETRY_MAX_S, 0.5 * 2.0 ** min(tries, 10))
                tries += 1
                try:
                    async with asyncio.timeout(delay):
                        await self._news.wait()
                except TimeoutError:
                    pass
                continue
            verified, tries = record.version, 0
            self._on_trouble(None)
            self._set_target(announced_policy(record, path))
