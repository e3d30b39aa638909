"""Reads verdicts into the assembler, on a thread of its own, also while a step computes.

So filtered and failed groups give their credit back at once, and deadlines pass when they should. Reading stops
while more groups are ready, or open, than credit explains; what waits then waits in the topic.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

import structlog

from gristmill.errors import BadInput, GristmillError
from gristmill.messages import Verdict
from gristmill.reader import Record
from gristmill.worker.dead_letters import dead_letter_headers
from gristmill.worker.records import RawRecord
from grpo_trainer.assembler import Assembler, Batch
from grpo_trainer.groups import Position
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.outlet import Outlet

POLL_S = 0.05
TICK_S = 0.25
MAX_STEP_OF_CLOCK_S = 5.0
"""A longer pause between two polls (a suspended machine, a slow broker) does not count against anybody's deadline."""
NO_VERDICTS_S = 120.0


class ReadsVerdicts(Protocol):
    """As :class:`gristmill.reader.TopicReader`."""

    def poll(self, timeout: float = ..., max_records: int = ...) -> list[Record[Verdict]]: ...

    def close(self) -> None: ...


class Stop(Protocol):
    """As ``StopSignal``."""

    def is_set(self) -> bool: ...


class Intake:
    """The reading thread, and the waiting room where the training thread takes batches."""

    def __init__(
        self,
        reader: ReadsVerdicts,
        assembler: Assembler,
        lock: threading.Condition,
        outlet: Outlet,
        metrics: TrainerMetrics,
        log: structlog.typing.FilteringBoundLogger,
        service: str = "grpo_trainer",
    ) -> None:
        self._reader = reader
        self._assembler = assembler
        self._lock = lock
        self._outlet = outlet
        self._metrics = metrics
        self._log = log
        self._service = service
        self._clock = 0.0
        self._ticked = 0.0
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it read and did not settle is read again by the next process."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._reader.close()

    def check(self) -> str | None:
        """Health check: what ended the thread."""
        return None if self._failure is None else f"{type(self._failure).__name__}: {self._failure}"

    def next_batch(self, stop: Stop) -> tuple[Batch | None, float]:
        """The next batch, or None when ``stop`` is set first; and the seconds waited.

        Raises:
            GristmillError: what ended the reading thread.
        """
        began = told = time.monotonic()
        with self._lock:
            while True:
                if self._failure is not None:
                    raise self._failure
                if stop.is_set():
                    return None, time.monotonic() - began
                batch = self._assembler.cut()
                if batch is not None:
                    return batch, time.monotonic() - began
                self._lock.wait(0.2)
                if time.monotonic() - told > NO_VERDICTS_S:
                    told = time.monotonic()
                    self._log.warning("waiting_for_verdicts", seconds=round(told - began), **self._sizes())

    def _run(self) -> None:
        try:
            self._read()
        except (GristmillError, OSError, ValueError, RuntimeError) as error:
            with self._lock:
                self._failure = error
                self._lock.notify_all()
            self._log.error("intake_failed", error=f"{type(error).__name__}: {error}")

    def _read(self) -> None:
        last = time.monotonic()
        while not self._ending.is_set():
            with self._lock:
                paused, full = self._assembler.has_enough, self._assembler.is_full
            records: list[Record[Verdict]] = []
            if paused or full:
                self._ending.wait(POLL_S)
            else:
                records = self._reader.poll(POLL_S)
            now = time.monotonic()
            if not paused:
                self._clock += min(now - last, MAX_STEP_OF_CLOCK_S)
            last = now
            self._take(records)
            self._outlet.settle_up()

    def _take(self, records: list[Record[Verdict]]) -> None:
        bad: list[tuple[Record[Verdict], BadInput]] = []
        with self._lock:
            for record in records:
                problem = self._offer(record)
                if problem is not None:
                    bad.append((record, problem))
            if self._clock - self._ticked >= TICK_S:
                self._ticked = self._clock
                self._assembler.tick(self._clock)
            if self._assembler.ready_groups >= self._assembler.rules.groups_per_step:
                self._lock.notify_all()
            sizes = self._sizes()
        self._metrics.assembling.set(sizes["assembling"])
        self._metrics.ready.set(sizes["ready"])
        for record, problem in bad:
            self._set_aside(record, problem)

    def _offer(self, record: Record[Verdict]) -> BadInput | None:
        position = Position(record.partition, record.offset)
        if record.message is None:
            self._assembler.skip(position)
            return record.error
        try:
            outcome = self._assembler.offer(record.message, self._clock, position)
        except BadInput as error:
            return error
        self._metrics.verdicts.labels(outcome).inc()
        return None

    def _set_aside(self, record: Record[Verdict], problem: BadInput) -> None:
        self._metrics.verdicts.labels("dead_letter").inc()
        self._log.warning(
            "verdict_set_aside", partition=record.partition, offset=record.offset, key=record.key, error=str(problem)
        )
        raw = RawRecord(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=None if record.key is None else record.key.encode(),
            value=record.value,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms,
        )
        self._outlet.dead_letter(record.key, record.value, dead_letter_headers(raw, problem, self._service))

    def _sizes(self) -> dict[str, Any]:
        return {
            "assembling": self._assembler.open_groups,
            "ready": self._assembler.ready_groups,
            "admit_until": self._assembler.admit_until,
        }
