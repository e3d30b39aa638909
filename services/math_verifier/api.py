"""The Python API: one function for a pair, one for many.

Both run on a pool of killable worker processes that is started on first use and shared; :func:`close` ends it early
(it ends with the interpreter anyhow). They may be called from any thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from math_verifier.check import Kind, Outcome, Status, find_answer, quick
from math_verifier.config import MathPolicy
from math_verifier.pool import MathPool, Pool

DEFAULT_POLICY = MathPolicy()
TEXT_LIMIT = 1_000_000
"""Longest text and reference, in characters, that are searched for an answer."""
ANSWER_LIMIT = 32_000
"""Longest answer, in characters, that is given to a worker."""
QUOTE_LIMIT = 4_000
"""Characters that are kept of an answer beyond the limit."""
HELD = 256
"""Rows that :func:`verify_many` has under way at most."""


@dataclass(frozen=True, slots=True)
class MathResult:
    """What a check found.

    ``extracted`` is the answer as it stood in the text, None where there was none. ``stage`` is the one that decided:
    ``extract``, ``string``, ``exact``, ``structural``, ``numeric``, ``symbolic`` or ``limit``. ``seconds`` is wall
    time, without the wait for a free worker.
    """

    status: Status
    correct: bool
    extracted: str | None
    stage: str
    seconds: float
    reason: str = ""


def verify_pair(
    gold: str,
    text: str,
    *,
    kind: Kind = "completion",
    policy: MathPolicy = DEFAULT_POLICY,
    pool: Pool | None = None,
) -> MathResult:
    """Check one text against the reference answer ``gold``.

    Args:
        gold: the reference, LaTeX or plain; a whole solution with a box or a GSM8K ``####`` line will do.
        text: model output (``kind="completion"``), or a bare final answer (``kind="answer"``).
        policy: what counts as equal where users differ.
        pool: where costly checks run; a shared pool of one worker per CPU when absent.

    Raises:
        InfrastructureError: no worker process can be started.
    """
    decided = begin(gold, text, kind, policy)
    if isinstance(decided, Pending):
        return finish((pool or shared_pool()).submit(decided.gold, decided.answer, policy).result(), decided.seconds)
    return finish(decided)


def verify_many(
    rows: Iterable[tuple[str, str] | tuple[str, str, Kind]],
    *,
    kind: Kind = "completion",
    policy: MathPolicy = DEFAULT_POLICY,
    pool: Pool | None = None,
) -> Iterator[MathResult]:
    """Check ``(gold, text)`` or ``(gold, text, kind)`` rows in parallel; results come in the order of the rows.

    At most a few hundred rows are held at a time, so ``rows`` may be endless.

    Raises:
        InfrastructureError: no worker process can be started.
    """
    open_: deque[tuple[Outcome | Future[Outcome], float]] = deque()
    for gold, text, *own in rows:
        decided = begin(gold, text, own[0] if own else kind, policy)
        if isinstance(decided, Pending):
            future = (pool or shared_pool()).submit(decided.gold, decided.answer, policy)
            open_.append((future, decided.seconds))
        else:
            open_.append((decided, 0.0))
        while open_ and (len(open_) > HELD or _ready(open_[0][0])):
            yield _result(*open_.popleft())
    while open_:
        yield _result(*open_.popleft())


@dataclass(frozen=True, slots=True)
class Pending:
    """A check that needs a worker; ``seconds`` is what finding the answer took."""

    gold: str
    answer: str
    seconds: float


def begin(gold: str, text: str, kind: Kind, policy: MathPolicy) -> Outcome | Pending:
    """The outcome where it costs nothing to know, else what a worker must check.

    Runs in the caller: extraction is linear in the text, which has ``TEXT_LIMIT`` characters at most, and the
    comparisons are of short strings and numbers.
    """
    start = time.perf_counter()
    found = _look(gold, text, kind, policy)
    seconds = time.perf_counter() - start
    if isinstance(found, Pending):
        return Pending(found.gold, found.answer, seconds)
    return Outcome(found.status, found.extracted, found.stage, found.reason, seconds)


def _look(gold: str, text: str, kind: Kind, policy: MathPolicy) -> Outcome | Pending:
    if len(gold) > TEXT_LIMIT:
        return Outcome("error", None, "extract", f"the reference has {len(gold)} characters, more than {TEXT_LIMIT}")
    reference = find_answer(gold, "answer", policy)
    if reference is None:
        return Outcome("error", None, "extract", "the reference is empty")
    if len(reference) > ANSWER_LIMIT and len(reference := reference.strip()) > ANSWER_LIMIT:
        reason = f"the reference has {len(reference)} characters, more than {ANSWER_LIMIT}"
        return Outcome("error", None, "extract", reason)
    if len(text) > TEXT_LIMIT:
        return Outcome("unparsable", None, "extract", f"the text has {len(text)} characters, more than {TEXT_LIMIT}")
    answer = find_answer(text, kind, policy)
    if answer is None:
        return Outcome("unparsable", None, "extract", "no answer found")
    if len(answer) > ANSWER_LIMIT and len(answer := answer.strip()) > ANSWER_LIMIT:
        reason = f"the answer has {len(answer)} characters, more than {ANSWER_LIMIT}"
        return Outcome("unparsable", answer[:QUOTE_LIMIT], "extract", reason)
    return quick(reference, answer) or Pending(reference, answer, 0.0)


def finish(outcome: Outcome, before: float = 0.0) -> MathResult:
    """Outcome as a result; ``before`` is the time spent before the worker had it."""
    return MathResult(
        outcome.status,
        outcome.status == "correct",
        outcome.extracted,
        outcome.stage,
        outcome.seconds + before,
        outcome.reason,
    )


def _ready(item: Outcome | Future[Outcome]) -> bool:
    return isinstance(item, Outcome) or item.done()


def _result(item: Outcome | Future[Outcome], before: float) -> MathResult:
    return finish(item if isinstance(item, Outcome) else item.result(), before)


_lock = threading.Lock()
_shared: Pool | None = None


def shared_pool() -> Pool:
    """The pool behind the functions of this module."""
    global _shared
    with _lock:
        if _shared is None or _shared.broken():
            _shared = MathPool(os.cpu_count() or 1).start()
            atexit.register(_shared.close)
        return _shared


def close() -> None:
    """End the shared pool; the next call starts a new one."""
    global _shared
    with _lock:
        if _shared is not None:
            _shared.close()
            _shared = None


__all__ = ["MathPolicy", "MathResult", "begin", "close", "finish", "shared_pool", "verify_many", "verify_pair"]
