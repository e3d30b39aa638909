"""Freshness and admission rules as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.freshness import admit_until, judge, lag, length_bucket

versions = st.integers(-3, 50)
bounds = st.integers(0, 8)


def judged(trainer: int, bound: int, oldest: int, newest: int, policy_run: str = "run") -> str:
    return judge(
        run_id="run",
        trainer_version=trainer,
        max_staleness=bound,
        policy_run_id=policy_run,
        oldest_version=oldest,
        newest_version=newest,
    )


@given(trainer=st.integers(0, 50), bound=bounds, oldest=versions, newest=versions)
def test_fresh_means_exactly_lag_within_the_bound(trainer: int, bound: int, oldest: int, newest: int) -> None:
    fresh = 0 <= lag(trainer, oldest) <= bound and 0 <= oldest <= newest <= trainer
    assert (judged(trainer, bound, oldest, newest) == "fresh") is fresh


@given(trainer=st.integers(0, 50), bound=bounds, oldest=versions, newest=versions, run=st.text())
def test_another_run_is_never_fresh(trainer: int, bound: int, oldest: int, newest: int, run: str) -> None:
    if run != "run":
        assert judged(trainer, bound, oldest, newest, run) == "foreign_run"


@given(trainer=st.integers(0, 50), bound=bounds, ahead=st.integers(1, 20))
def test_a_version_that_was_not_published_is_never_fresh(trainer: int, bound: int, ahead: int) -> None:
    assert judged(trainer, bound, trainer + ahead, trainer + ahead) == "unpublished"
    assert judged(trainer, bound, trainer, trainer + ahead) == "unpublished"


@given(trainer=st.integers(0, 50), oldest=st.integers(0, 50))
def test_bound_0_takes_the_trainers_version_alone(trainer: int, oldest: int) -> None:
    assert (judged(trainer, 0, oldest, max(oldest, min(trainer, oldest))) == "fresh") is (oldest == trainer)


@given(trainer=st.integers(0, 50), bound=bounds, oldest=st.integers(0, 50), newest=st.integers(0, 50))
def test_what_is_fresh_stays_so_under_a_larger_bound(trainer: int, bound: int, oldest: int, newest: int) -> None:
    if judged(trainer, bound, oldest, newest) == "fresh":
        assert judged(trainer, bound + 1, oldest, newest) == "fresh"


@given(trainer=st.integers(0, 50), bound=bounds, oldest=st.integers(0, 50), newest=st.integers(0, 50))
def test_what_is_stale_stays_so_as_the_trainer_moves_on(trainer: int, bound: int, oldest: int, newest: int) -> None:
    if judged(trainer, bound, oldest, newest) == "stale":
        assert judged(trainer + 1, bound, oldest, newest) == "stale"


@given(settled=st.integers(0, 10**9), bound=bounds, groups=st.integers(1, 512))
def test_credit_covers_the_next_step_and_the_bound(settled: int, bound: int, groups: int) -> None:
    limit = admit_until(settled_groups=settled, max_staleness=bound, groups_per_step=groups)
    assert limit - settled == (bound + 1) * groups  # unsettled groups at any time
    assert limit >= settled + groups  # a step can always be filled: no deadlock
    more = admit_until(settled_groups=settled + 1, max_staleness=bound, groups_per_step=groups)
    assert more == limit + 1  # a settled group refunds its credit at once


@given(bound=bounds, groups=st.integers(1, 8), fates=st.lists(st.sampled_from(["train", "filter"]), max_size=200))
def test_admitted_groups_are_fresh_when_generators_keep_up(bound: int, groups: int, fates: list[str]) -> None:
    """A generator that stamps each admitted group with the newest version: credit alone keeps lag within the bound.

    Groups come in order of their ordinals. A filtered one is settled at once; the others wait until a step has
    enough of them, which settles them all and makes the next version.
    """
    version, settled, waiting, ordinal = 0, 0, 0, 0
    stamped: dict[int, int] = {}
    for position, fate in enumerate(fates, start=1):
        limit = admit_until(settled_groups=settled, max_staleness=bound, groups_per_step=groups)
        for admitted in range(ordinal + 1, limit + 1):
            stamped[admitted] = version
        ordinal = max(ordinal, limit)
        assert position in stamped  # never a deadlock: the group that the trainer waits for has been admitted
        assert lag(version, stamped[position]) <= bound
        if fate == "filter":
            settled += 1
            continue
        waiting += 1
        if waiting == groups:
            settled, waiting, version = settled + groups, 0, version + 1


@pytest.mark.parametrize(("settled", "bound", "groups"), [(-1, 0, 1), (0, -1, 1), (0, 0, 0)])
def test_senseless_credit_is_refused(settled: int, bound: int, groups: int) -> None:
    with pytest.raises(ValueError, match="admit_until needs"):
        admit_until(settled_groups=settled, max_staleness=bound, groups_per_step=groups)


@given(st.integers(0, 10**6))
def test_length_buckets_are_powers_of_two_that_hold_the_length(tokens: int) -> None:
    bound = int(length_bucket(tokens).removeprefix("<="))
    assert tokens <= bound
    assert bound & (bound - 1) == 0
    assert bound == 64 or tokens > bound // 2
