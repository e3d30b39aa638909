"""What a status of the sandbox means for the line: the verdict's status, and the reward."""

from __future__ import annotations

from code_verifier.config import CodeConfig
from code_verifier.job import CodeStatus
from gristmill.messages import VerdictStatus


def verdict_status(status: CodeStatus) -> VerdictStatus:
    """The verdict's status.

    A program that takes too long is wrong, with the detail ``time_limit``; the verdict's own ``timeout`` would say
    that the verifier could not decide.
    """
    match status:
        case "passed":
            return "correct"
        case "no_code":
            return "unparsable"
        case "sandbox_error":
            return "error"
    return "wrong"


def reward_of(status: VerdictStatus, config: CodeConfig) -> float | None:
    """Reward of a verdict: only a decided one has any."""
    match status:
        case "correct":
            return config.reward_passed
        case "wrong":
            return config.reward_failed
        case "unparsable":
            return config.no_code_reward
    return None


def stage_of(status: CodeStatus) -> str:
    """The stage that decided: ``extract``, ``load`` or ``run``."""
    match status:
        case "no_code":
            return "extract"
        case "syntax_error":
            return "load"
    return "run"
