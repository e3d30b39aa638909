"""Verdicts as every verifier writes them.

A verdict carries its completion's whole training payload, so the trainer reads nothing else. One for a completion that
cannot even be decoded is made from the record's key and headers, so the trainer need not wait for it.
"""

from __future__ import annotations

from gristmill import __version__
from gristmill.errors import BadInput
from gristmill.messages import (
    Completion,
    ProblemKind,
    Verdict,
    VerdictStatus,
    now_ms,
    parse_group_id,
    parse_sample_id,
)
from gristmill.worker import RawRecord

TEXT_LIMIT = 2000
"""Longest text that a verdict quotes, in characters."""


def _quoted(text: str) -> str:
    """Text that a program may have made: half a surrogate pair in it cannot be written, and must cost no verdict."""
    return text[:TEXT_LIMIT].encode("utf-8", "replace").decode()


def make_verdict(
    completion: Completion,
    *,
    verifier: str,
    status: VerdictStatus,
    reward: float | None,
    reason: str = "",
    extracted: str | None = None,
    stage: str = "",
    detail: str | None = None,
    seconds: float = 0.0,
) -> Verdict:
    """The completion's payload with what ``verifier`` found; ``seconds`` is the time of the check."""
    return Verdict(
        run_id=completion.run_id,
        sample_id=completion.sample_id,
        group_id=completion.group_id,
        index=completion.index,
        ordinal=completion.ordinal,
        group_size=completion.group_size,
        problem_id=completion.problem_id,
        kind=completion.kind,
        source=completion.source,
        difficulty=completion.difficulty,
        prompt_token_ids=completion.prompt_token_ids,
        completion_token_ids=completion.completion_token_ids,
        logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        policy_run_id=completion.policy_run_id,
        policy_version_oldest=completion.policy_version_oldest,
        policy_version_newest=completion.policy_version_newest,
        policy_spans=completion.policy_spans,
        sampling=completion.sampling,
        status=status,
        reward=reward,
        reason=_quoted(reason),
        extracted=None if extracted is None else _quoted(extracted),
        gold=completion.reference,
        stage=stage,
        detail=None if detail is None else _quoted(detail),
        verifier=verifier,
        verifier_version=__version__,
        engine=completion.engine,
        generation_s=completion.generation_s,
        verify_s=seconds,
        problem_created_at_ms=completion.problem_created_at_ms,
        completed_at_ms=completion.completed_at_ms,
        verified_at_ms=now_ms(),
    )


def lost_verdict(record: RawRecord, error: Exception, *, verifier: str, kind: ProblemKind) -> Verdict | None:
    """An error verdict for a completion that cannot be decoded, from its key and headers.

    None where they do not name a sample of a group of a known size, without which no trainer could place it: then
    the dead letter is all there is, and the group's deadline settles it.
    """
    try:
        group_id, index = parse_sample_id(record.header("sample_id") or "")
        run_id, ordinal = parse_group_id(group_id)
        group_size = int(record.header("group_size") or 0)
    except (BadInput, ValueError):
        return None
    if record.key_text not in {None, group_id} or not 0 <= index < group_size:
        return None
    return Verdict(
        run_id=run_id,
        sample_id=f"{group_id}/{index}",
        group_id=group_id,
        index=index,
        ordinal=ordinal,
        group_size=group_size,
        problem_id="",
        kind=kind,
        prompt_token_ids=b"",
        completion_token_ids=b"",
        logprobs=b"",
        status="error",
        reason=_quoted(f"the completion cannot be used: {error}"),
        verifier=verifier,
        verifier_version=__version__,
        verified_at_ms=now_ms(),
    )
