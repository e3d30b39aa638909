"""Freshness and admission rules, as pure functions.

Lag counts policy versions within one run. The trainer at version ``v`` accepts a sample iff
``0 <= v - oldest <= max_staleness``: 0 is strictly on-policy. Admission by credit keeps drops rare: a
generator starts the problem with ordinal ``n`` only when ``n <= admit_until``, and the trainer raises
``admit_until`` by one for each group that is settled (trained, filtered, rejected or failed), so at most
``(max_staleness + 1) * groups_per_step`` groups are unsettled at any time.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Judgement: TypeAlias = Literal["fresh", "stale", "foreign_run", "unpublished"]


def lag(trainer_version: int, oldest_version: int) -> int:
    """Versions that the trainer is ahead of the oldest token of a sample; negative is impossible in a sound run."""
    return trainer_version - oldest_version


def judge(
    *,
    run_id: str,
    trainer_version: int,
    max_staleness: int,
    policy_run_id: str,
    oldest_version: int,
    newest_version: int,
) -> Judgement:
    """Decide whether a sample may be trained on by the trainer of ``run_id`` at ``trainer_version``.

    ``foreign_run``: sampled by another run's policy. ``unpublished``: stamped with a version that this trainer
    has not published (a counter that went back, or a forged stamp); such a sample has negative lag and must
    never pass as the freshest of all.
    """
    if policy_run_id != run_id:
        return "foreign_run"
    if oldest_version < 0 or oldest_version > newest_version or newest_version > trainer_version:
        return "unpublished"
    if lag(trainer_version, oldest_version) > max_staleness:
        return "stale"
    return "fresh"


def admit_until(*, settled_groups: int, max_staleness: int, groups_per_step: int) -> int:
    """Largest ordinal that may be started.

    Raises:
        ValueError: an argument is out of range.
    """
    if settled_groups < 0 or max_staleness < 0 or groups_per_step < 1:
        raise ValueError(
            f"admit_until needs settled_groups >= 0, max_staleness >= 0 and groups_per_step >= 1, "
            f"not {settled_groups}, {max_staleness}, {groups_per_step}"
        )
    return settled_groups + (max_staleness + 1) * groups_per_step


def length_bucket(tokens: int) -> str:
    """Power-of-two bucket of a completion length, as the ``length`` label of drop counters: ``<=64``, ``<=128``, ..."""
    return f"<={max(64, 1 << max(0, tokens - 1).bit_length())}"
