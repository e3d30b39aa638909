"""Math completions for tests, and the verdicts that came of them."""

from __future__ import annotations

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
from gristmill.service import ServiceContext

HANGS = ("\\int_0^1 \\frac{\\sin(x^{7}+\\tan x)}{\\sqrt{1+x^{11}\\cos^3 x}} dx", "\\pi")
"""Answer and reference on which SymPy works for minutes."""


def completion(ordinal: int, index: int, text: str, reference: str | None = "\\frac{1}{2}", **over: Any) -> Completion:
    """A completion with every field set."""
    group_id = make_group_id("run", ordinal)
    values: dict[str, Any] = {
        "run_id": "run",
        "sample_id": make_sample_id(group_id, index),
        "group_id": group_id,
        "index": index,
        "ordinal": ordinal,
        "group_size": 8,
        "problem_id": f"p{ordinal}",
        "kind": "math",
        "source": "test",
        "difficulty": 0.25,
        "reference": reference,
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
