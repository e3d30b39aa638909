"""What a problem must be before an engine is bothered with it."""

from __future__ import annotations

import math

from gristmill.errors import BadInput
from gristmill.messages import Problem, Sampling, make_group_id

MAX_SEED = 2**63 - 1


def check_problem(problem: Problem, max_group_size: int) -> None:
    """Raises BadInput that names the field."""
    if problem.ordinal < 1:
        raise BadInput(f"problem {problem.group_id}: ordinal is {problem.ordinal}, ordinals count from 1")
    if problem.group_id != make_group_id(problem.run_id, problem.ordinal):
        raise BadInput(
            f"problem {problem.group_id}: group_id does not belong to run {problem.run_id!r}, ordinal {problem.ordinal}"
        )
    if not 1 <= problem.group_size <= max_group_size:
        raise BadInput(f"problem {problem.group_id}: group_size is {problem.group_size}, not 1 to {max_group_size}")
    for complaint in _sampling_complaints(problem.sampling, problem.group_size):
        raise BadInput(f"problem {problem.group_id}: sampling.{complaint}")


def check_length(problem: Problem, prompt_tokens: int, context_length: int | None) -> None:
    """Raises BadInput when prompt and completion cannot fit the model's context."""
    wanted = prompt_tokens + problem.sampling.max_new_tokens
    if context_length is not None and wanted > context_length:
        raise BadInput(
            f"problem {problem.group_id}: {prompt_tokens} prompt tokens and {problem.sampling.max_new_tokens} new ones "
            f"do not fit the context of {context_length}"
        )


def _sampling_complaints(sampling: Sampling, group_size: int) -> list[str]:
    checks = {
        f"temperature is {sampling.temperature}, not a finite number of at least 0": math.isfinite(sampling.temperature)
        and sampling.temperature >= 0,
        f"top_p is {sampling.top_p}, not in (0, 1]": 0 < sampling.top_p <= 1,
        f"top_k is {sampling.top_k}, neither -1 nor positive": sampling.top_k == -1 or sampling.top_k > 0,
        f"min_p is {sampling.min_p}, not in [0, 1]": 0 <= sampling.min_p <= 1,
        f"max_new_tokens is {sampling.max_new_tokens}, not positive": sampling.max_new_tokens > 0,
        "stop holds an empty string": all(sampling.stop),
        f"seed is {sampling.seed}, not in 0 to 2**63 - 1": sampling.seed is None
        or 0 <= sampling.seed <= MAX_SEED - group_size,
    }
    return [complaint for complaint, good in checks.items() if not good]
