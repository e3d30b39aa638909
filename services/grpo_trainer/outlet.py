"""Everything the trainer writes, in the order that its readers rely on.

* Rejections are acknowledged before the ``policies`` record whose credit and counters include them.
* The credit of a training step goes out with the version that the step made, never under an older one: while a step
  commits, nothing else is published.
* ``admit_until`` never falls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec

from gristmill.messages import Message, PolicyVersion, Rejection, TrainingStep, now_ms
from gristmill.topics import Topic, Topics
from grpo_trainer.assembler import Assembler


class Writes(Protocol):
    """An acknowledged publisher, as :class:`gristmill.publisher.Publisher`."""

    def publish(self, topic: Topic, message: Message) -> None: ...

    def publish_raw(
        self, topic: Topic, key: str | bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None: ...

    def flush_acked(self, timeout: float = 60.0) -> None: ...


class Outlet:
    """Publishes decisions and credit. Threads may share it; ``lock`` guards the assembler."""

    def __init__(
        self,
        writer: Writes,
        topics: Topics,
        assembler: Assembler,
        lock: threading.Condition,
        *,
        refund_interval_s: float,
        admit_floor: int = 0,
        on_rejection: Callable[[Rejection], None] = lambda _: None,
    ) -> None:
        """``admit_floor``: the largest ``admit_until`` that was ever published in this log."""
        self._writer = writer
        self._topics = topics
        self._assembler = assembler
        self._lock = lock
        self._interval = refund_interval_s
        self._floor = admit_floor
        self._on_rejection = on_rejection
        self._busy = threading.RLock()
        self._published: PolicyVersion | None = None
        self._published_at = 0.0

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold every other publication back, while a step commits."""
        with self._busy:
            yield

    def credit(self, policy: PolicyVersion) -> PolicyVersion:
        """``policy`` with the accounts as they are now. The caller holds the lock."""
        account = self._assembler.account
        return msgspec.structs.replace(
            policy,
            admit_until=max(self._assembler.admit_until, self._floor),
            settled_groups=len(account.settled),
            trained=account.counters.trained,
            rejected=account.counters.rejected,
            filtered=account.counters.filtered,
            failed=account.counters.failed,
            duplicates=account.counters.duplicates,
            published_at_ms=now_ms(),
        )

    def announce(
        self, policy: PolicyVersion, step: TrainingStep | None = None, rejections: Sequence[Rejection] = ()
    ) -> None:
        """Publish a version with all that its counters include, in order, each acknowledged before the next.

        ``rejections`` that stand first in the assembler's outbox are taken out of it.
        """
        with self._busy:
            self._publish_rejections(rejections)
            if step is not None:
                self._writer.publish(self._topics.training, step)
                self._writer.flush_acked()
            self._publish_policy(policy)

    def settle_up(self, *, wait: bool = False) -> None:
        """Publish what was decided and, at most once per interval, the credit that it gives back.

        Returns at once when a step is being committed, unless ``wait``.
        """
        if not self._busy.acquire(blocking=wait):
            return
        try:
            due = wait or time.monotonic() - self._published_at >= self._interval
            with self._lock:
                rejections = list(self._assembler.outbox)
                policy = self.credit(self._published) if due and self._published is not None else None
            self._publish_rejections(rejections)
            if policy is not None and self._published is not None and _moved(policy, self._published):
                self._publish_policy(policy)
        finally:
            self._busy.release()

    def dead_letter(self, key: str | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> None:
        """Set a record aside that is no verdict."""
        with self._busy:
            self._writer.publish_raw(self._topics.dead_letters, key, value, headers)
            self._writer.flush_acked()

    def _publish_rejections(self, rejections: Sequence[Rejection]) -> None:
        if not rejections:
            return
        for rejection in rejections:
            self._writer.publish(self._topics.rejections, rejection)
        self._writer.flush_acked()
        with self._lock:
            outbox = self._assembler.outbox
            for rejection in rejections:
                if outbox and outbox[0] is rejection:
                    outbox.popleft()
        for rejection in rejections:
            self._on_rejection(rejection)

    def _publish_policy(self, policy: PolicyVersion) -> None:
        self._writer.publish(self._topics.policies, policy)
        self._writer.flush_acked()
        self._floor = max(self._floor, policy.admit_until)
        self._published, self._published_at = policy, time.monotonic()


def _moved(policy: PolicyVersion, published: PolicyVersion) -> bool:
    """Whether the accounts differ in more than copies dropped."""
    return any(
        getattr(policy, name) != getattr(published, name)
        for name in ("admit_until", "settled_groups", "rejected", "filtered", "failed")
    )
