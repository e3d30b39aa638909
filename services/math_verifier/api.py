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
from math_verifier.pool import MathPool

DEFAULT_POLICY = MathPolicy()


@dataclass(frozen=True, slots=True)
class MathResult:
    """What a check found.

    ``extracted`` is the answer as it stood in the text, None where there was none. ``stage`` is the one that decided:
    ``extract``, ``string``, ``exact``, ``structural``, ``numeric``, ``symbolic`` or ``limit``. ``seconds`` is wall time,
    waiting included.
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
    pool: MathPool | None = None,
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
    start = time.perf_counter()
    decided = begin(gold, text, kind, policy)
    if isinstance(decided, tuple):
        decided = (pool or shared_pool()).submit(*decided, policy).result()
    return finish(decided, start)


def verify_many(
    rows: Iterable[tuple[str, str] | tuple[str, str, Kind]],
    *,
    kind: Kind = "completion",
    policy: MathPolicy = DEFAULT_POLICY,
    pool: MathPool | None = None,
) -> Iterator[MathResult]:
    """Check ``(gold, text)`` or ``(gold, text, kind)`` rows in parallel; results come in the order of the rows.

    At most a few hundred rows are held at a time, so ``rows`` may be endless.

    Raises:
        InfrastructureError: no worker process can be started.
    """
    open_: deque[tuple[Outcome | Future[Outcome], float]] = deque()
    for gold, text, *own in rows:
        start = time.perf_counter()
        decided = begin(gold, text, own[0] if own else kind, policy)
        if isinstance(decided, tuple):
            open_.append(((pool or shared_pool()).submit(*decided, policy), start))
        else:
            open_.append((decided, start))
        while open_ and (len(open_) > 256 or _ready(open_[0][0])):
            yield _result(*open_.popleft())
    while open_:
        yield _result(*open_.popleft())


def begin(gold: str, text: str, kind: Kind, policy: MathPolicy) -> Outcome | tuple[str, str]:
    """The outcome where it costs nothing to know, else the reference and answer to check in a worker.

    Runs in the caller: extraction is linear in the text, and the comparisons are of strings and short numbers.
    """
    answer = find_answer(text, kind, policy)
    if answer is None:
        return Outcome("unparsable", None, "extract", "no answer found")
    reference = find_answer(gold, "answer", policy)
    if reference is None:
        return Outcome("error", answer, "extract", "the reference is empty")
    return quick(reference, answer) or (reference, answer)


def finish(outcome: Outcome, start: float) -> MathResult:
    """Outcome as a result; ``start`` is of ``time.perf_counter``."""
    return MathResult(
        outcome.status,
        outcome.status == "correct",
        outcome.extracted,
        outcome.stage,
        time.perf_counter() - start,
        outcome.reason,
    )


def _ready(item: Outcome | Future[Outcome]) -> bool:
    return isinstance(item, Outcome) or item.done()


def _result(item: Outcome | Future[Outcome], start: float) -> MathResult:
    return finish(item if isinstance(item, Outcome) else item.result(), start)


_lock = threading.Lock()
_shared: MathPool | None = None


def shared_pool() -> MathPool:
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
