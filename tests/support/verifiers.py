"""Completions for tests of verifiers, a verifier in a thread, and the verdicts that came of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from gristmill.messages import (
    Completion,
    PolicySpan,
    Sampling,
    Verdict,
    make_group_id,
    make_sample_id,
    pack_ids,
    pack_logprobs,
)
from gristmill.reader import read_all
from gristmill.service import ServiceContext, ServiceSpec

OWN = {"status", "reward", "reason", "extracted", "gold", "stage", "verifier", "verifier_version", "verify_s", "detail"}
"""Fields of a verdict that a completion does not have."""


def full_completion(ordinal: int, index: int, text: str, **over: Any) -> Completion:
    """A completion with every field set but what the verifier checks it against."""
    group_id = make_group_id("run", ordinal)
    values: dict[str, Any] = {
        "run_id": "run",
        "sample_id": make_sample_id(group_id, index),
        "group_id": group_id,
        "index": index,
        "ordinal": ordinal,
        "group_size": 8,
        "problem_id": f"p{ordinal}",
        "source": "test",
        "difficulty": 0.25,
        "prompt_token_ids": pack_ids([1, 2, 3]),
        "completion_token_ids": pack_ids([4, 5, 6, index]),
        "logprobs": pack_logprobs([-0.5, -0.25, -1.5, -0.125]),
        "text": text,
        "finish_reason": "stop",
        "policy_run_id": "run",
        "policy_version_oldest": 3,
        "policy_version_newest": 4,
        "policy_spans": (PolicySpan(version=3, start=0, length=2), PolicySpan(version=4, start=2, length=2)),
        "sampling": Sampling(temperature=0.7, max_new_tokens=64, seed=index),
        "engine": "http://engine",
        "engine_weight_version": "run-v3",
        "admission_wait_s": 0.5,
        "generation_s": 1.5,
        "problem_created_at_ms": 11,
        "completed_at_ms": 12,
    }
    return Completion(**values | over)


def all_verdicts(ctx: ServiceContext[Any]) -> list[Verdict]:
    """Every verdict, repeated ones too; each must be keyed by its group."""
    found = []
    for record in read_all(ctx.common, ctx.codec, ctx.topics.verdicts):
        assert isinstance(record.message, Verdict)
        assert record.key == record.message.group_id
        found.append(record.message)
    return found


class RunningService:
    """A service in a thread, as ``gristmill run`` would run it. Leaving the block stops it, re-raising its failure."""

    def __init__(self, spec: ServiceSpec[Any], ctx: ServiceContext[Any], stop_timeout_s: float = 40.0) -> None:
        self.ctx = ctx
        self.failure: BaseException | None = None
        self._spec = spec
        self._stop_timeout_s = stop_timeout_s
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._spec.run(self.ctx))  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 (shown to the test)
            self.failure = error

    def __enter__(self) -> RunningService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ctx.stop.set()
        self._thread.join(self._stop_timeout_s)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure
