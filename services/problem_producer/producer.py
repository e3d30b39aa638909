"""The producing loop: malformed rows to the dead letters once, then the problems in their order.

Invariants:

- At most :data:`~problem_producer.position.WINDOW` problems are unacknowledged, so that a kill leaves no hole which
  the next start does not find.
- With ``max_ahead``, no ordinal beyond ``newest admit_until + max_ahead`` is sent.
- Trouble with the cluster is retried from what the log then says, never from memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

from gristmill.errors import ConfigError, InfrastructureError
from gristmill.messages import PolicyVersion, Problem
from gristmill.publisher import Publisher
from gristmill.reader import TopicReader
from gristmill.service import ServiceContext
from gristmill.worker import RawRecord, RetryPolicy, dead_letter_headers
from problem_producer.config import ProblemsConfig
from problem_producer.items import MalformedRow
from problem_producer.position import WINDOW, Position, find_position
from problem_producer.sequence import ProblemSequence
from problem_producer.sources import RowFault, Source

WAIT_S = 0.2
CREDIT_EVERY = 64
"""Problems sent between two looks at the credit while there is room."""
MAX_DEAD_LETTER_BYTES = 1024 * 1024


def run_producer(context: ServiceContext[ProblemsConfig]) -> None:
    """Send the problems of the run until they are all sent or a stop is asked for.

    Raises:
        ConfigError: a source cannot be used, or the run was begun with other settings.
        InfrastructureError: the cluster did not answer for five minutes.
    """
    context.health.set_ready(False, "reading the sources")
    sequence = ProblemSequence(context.config, context.common.run_id)
    producer = Producer(context, sequence)
    for source in sequence.sources:
        if source.faults:
            producer.malformed.labels(source.name).inc(len(source.faults))
            context.log.warning("malformed_rows", source=source.name, rows=len(source.faults), file=source.origin)
    context.log.info(
        "sources_opened",
        problems=sequence.size,
        digest=sequence.digest,
        sources={source.name: source.size for source in sequence.sources},
    )
    retry = RetryPolicy(attempts=1000)
    attempt, since = 0, time.monotonic()
    while True:
        sent = producer.sent
        try:
            producer.run()
            return
        except InfrastructureError as error:
            if producer.sent > sent:
                attempt, since = 0, time.monotonic()
            attempt += 1
            delay = retry.delay(attempt, time.monotonic() - since)
            if delay is None:
                raise
            context.health.set_ready(False, str(error))
            context.log.warning("cluster_trouble", error=str(error), retry_in_s=round(delay, 2))
            if context.stop.wait(delay):
                return


class Producer:
    """One run's producer; :meth:`run` may be called again after an InfrastructureError."""

    def __init__(self, context: ServiceContext[ProblemsConfig], sequence: ProblemSequence) -> None:
        self._context = context
        self._sequence = sequence
        self._highest = 0
        self.sent = 0
        """Problems acknowledged since the start of the process."""
        metrics = context.metrics
        self._produced = metrics.counter("problems_produced", "Problems acknowledged by the broker.", ["source"])
        self.malformed = metrics.counter("malformed_rows", "Rows that are no problem.", ["source"])
        self._ordinal = metrics.gauge("problem_ordinal", "Largest ordinal sent in this run.")

    def run(self) -> None:
        """From where the log says the run stands to its end, or to a stop.

        Raises:
            ConfigError: the run was begun with other settings.
            InfrastructureError: the cluster does not answer.
        """
        context = self._context
        context.health.set_ready(False, "finding the position in the log")
        position = find_position(context.common, context.codec, context.topics.problems)
        self._check_settings(position)
        self._highest = position.highest
        self._ordinal.set(position.highest)
        context.log.info("position_found", next=position.highest + 1, missing=len(position.missing))
        with Publisher(context.common, context.codec) as publisher:
            if position.highest == 0:
                self._send_dead_letters(publisher)
            context.health.set_ready(True, "sending")
            if self._send_problems(publisher, position):
                context.health.set_ready(True, "done")
                context.log.info("all_problems_sent", total=self._sequence.size, sent_by_this_process=self.sent)

    def _check_settings(self, position: Position) -> None:
        if position.digest in (None, self._sequence.digest):
            return
        common, digest = self._context.common, self._sequence.digest
        if self._context.config.on_config_change == "refuse":
            raise ConfigError(
                f"run {common.run_id!r} was begun with other problem settings or files (digest {position.digest}, now "
                f"{digest}), so its order of problems cannot be continued: take back the change, name a new run_id, "
                "or set problems.on_config_change to continue"
            )
        self._context.log.warning("settings_changed", before=position.digest, now=digest, ordinal=position.highest + 1)

    def _send_problems(self, publisher: Publisher, position: Position) -> bool:
        """Give True when the sequence came to its end, False when a stop was asked for."""
        stop, topic = self._context.stop, self._context.topics.problems
        batch: list[Problem] = []
        filled = position.missing[-1] if position.missing else 0
        with _Credit(self._context) as credit:
            for problem in self._due(position):
                while not stop.is_set() and not credit.admits(problem.ordinal):
                    self._acknowledge(publisher, batch)
                    credit.wait(problem.ordinal - 1)
                if stop.is_set():
                    self._acknowledge(publisher, batch)
                    return False
                publisher.publish(topic, problem)
                batch.append(problem)
                # Holes are filled for good before the window moves on, or a second kill could leave one behind it.
                if len(batch) >= WINDOW or problem.ordinal == filled:
                    self._acknowledge(publisher, batch)
            self._acknowledge(publisher, batch)
        return True

    def _due(self, position: Position) -> Iterator[Problem]:
        """What a killed predecessor left out, then everything after the highest ordinal of the log."""
        if position.missing:
            missing = set(position.missing)
            stretch = islice(self._sequence.starting_at(position.missing[0]), position.highest - position.missing[0])
            yield from (problem for problem in stretch if problem.ordinal in missing)
        yield from self._sequence.starting_at(position.highest + 1)

    def _acknowledge(self, publisher: Publisher, batch: list[Problem]) -> None:
        if not batch:
            return
        publisher.flush_acked()
        for problem in batch:
            self._produced.labels(problem.source).inc()
        self.sent += len(batch)
        self._highest = max(self._highest, batch[-1].ordinal)
        self._ordinal.set(self._highest)
        batch.clear()

    def _send_dead_letters(self, publisher: Publisher) -> None:
        for source in self._sequence.sources:
            for fault in source.faults:
                self._send_dead_letter(publisher, source, fault)
        publisher.flush_acked()

    def _send_dead_letter(self, publisher: Publisher, source: Source, fault: RowFault) -> None:
        raw = source.raw(fault)
        headers = {"run_id": self._context.common.run_id, "source": source.name, "file": source.origin}
        headers[source.unit] = str(fault.line)
        if len(raw) > MAX_DEAD_LETTER_BYTES:
            headers["truncated_from_bytes"] = str(len(raw))
        record = RawRecord(
            topic=source.origin,
            partition=-1,
            offset=fault.line,
            key=f"{source.name}:{fault.line}".encode(),
            value=raw[:MAX_DEAD_LETTER_BYTES],
            headers={name: value.encode() for name, value in headers.items()},
        )
        publisher.publish_raw(
            self._context.topics.dead_letters,
            record.key,
            record.value,
            dead_letter_headers(record, MalformedRow(fault.error), self._context.name),
        )


class _Credit:
    """How far ahead of the trainer problems may be sent: ``newest admit_until + max_ahead``, 0 before the first."""

    def __init__(self, context: ServiceContext[ProblemsConfig]) -> None:
        self._context = context
        self._ahead = context.config.max_ahead
        self._reader: TopicReader[PolicyVersion] | None = None
        self._announced: int | None = None
        self._looked = 0
        self._said = False

    @property
    def until(self) -> int | None:
        """Largest ordinal admitted; None without a bound."""
        return None if self._ahead is None else (self._announced or 0) + self._ahead

    def __enter__(self) -> _Credit:
        if self._ahead is not None:
            context = self._context
            self._reader = TopicReader(context.common, context.codec, context.topics.policies)
            for record in self._reader.read_to_end():
                self._take(record.message)
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def admits(self, ordinal: int) -> bool:
        """Whether this ordinal may be sent now."""
        self._looked += 1
        if self._reader is not None and self._looked % CREDIT_EVERY == 0:
            self._look(0.0)
        until = self.until
        return until is None or ordinal <= until

    def wait(self, sent: int) -> None:
        """Wait a little for credit; say once that the trainer is missing."""
        if self._announced is None and not self._said:
            self._said = True
            self._context.health.set_ready(True, "waiting for a trainer")
            self._context.log.info(
                "waiting_for_a_trainer",
                sent=sent,
                hint="no policy version of this run was announced yet; a data factory without a trainer sets "
                "problems.max_ahead to null",
            )
        self._look(WAIT_S)

    def _look(self, timeout: float) -> None:
        if self._reader is not None:
            for record in self._reader.poll(timeout):
                self._take(record.message)

    def _take(self, version: PolicyVersion | None) -> None:
        if version is None or version.run_id != self._context.common.run_id:
            return
        if self._announced is None and self._said:
            self._context.health.set_ready(True, "sending")
        self._announced = version.admit_until
