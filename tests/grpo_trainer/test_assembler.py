from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from trainer_synthetic import make_group, make_verdict

from gristmill.errors import BadInput
from gristmill.messages import Rejection, Verdict
from grpo_trainer.assembler import Assembler, Rules
from grpo_trainer.groups import Position

RULES = Rules("run", groups_per_step=2, max_staleness=1, incomplete_timeout_s=10.0, lost_timeout_s=100.0)


def offer(assembler: Assembler, verdicts: Iterable[Verdict], now: float = 0.0) -> list[str]:
    return [assembler.offer(verdict, now) for verdict in verdicts]


def taken(assembler: Assembler) -> list[Rejection]:
    found = list(assembler.outbox)
    assembler.outbox.clear()
    return found


def test_batches_come_by_ordinal_whatever_the_order_of_arrival() -> None:
    assembler = Assembler(RULES)
    for ordinal in (3, 2, 1):
        offer(assembler, make_group(ordinal))
    batch = assembler.cut()
    assert batch is not None
    assert [group.ordinal for group in batch.groups] == [1, 2]
    assert assembler.cut() is None, "one batch at a time"


def test_trains_on_what_is_scored_and_accounts_for_the_rest() -> None:
    assembler = Assembler(RULES)
    offer(assembler, make_group(1))
    good = make_group(2)
    offer(assembler, [good[0], make_verdict(2, 2, status="timeout"), good[1]])
    assert assembler.ready_groups == 1
    assembler.tick(10.0)
    batch = assembler.cut()
    assert batch is not None
    assert [s.verdict.sample_id for s in batch.groups[1].scored] == ["run:00000002/0", "run:00000002/1"]
    assert taken(assembler) == [], "nothing is decided before the step commits"
    assembler.commit(batch)
    decided = {(r.why, r.sample_ids) for r in taken(assembler)}
    assert decided == {("failed", ("run:00000002/2",)), ("incomplete", ("run:00000002/3",))}
    counters = assembler.account.counters
    assert (counters.trained, counters.failed, counters.rejected) == (6, 1, 1)


def test_a_group_with_too_few_scored_samples_fails_and_gives_its_credit_back() -> None:
    assembler = Assembler(RULES)
    before = assembler.admit_until
    verdicts = [make_verdict(1, i, status="error", reason="engine gone") for i in range(3)]
    offer(assembler, [*verdicts, make_verdict(1, 3)])
    assert {(r.why, len(r.sample_ids)) for r in taken(assembler)} == {("failed", 3), ("incomplete", 1)}
    assert assembler.admit_until == before + 1


def test_zero_variance_is_filtered_for_any_equal_rewards() -> None:
    assembler = Assembler(RULES)
    offer(assembler, [make_verdict(1, i, reward=0.4) for i in range(4)])
    (rejection,) = taken(assembler)
    assert (rejection.why, rejection.rewards) == ("zero_variance", (0.4,) * 4)
    assert assembler.account.counters.filtered == 4


def test_one_stale_sample_rejects_the_whole_group_at_dequeue() -> None:
    assembler = Assembler(RULES, version=1)
    group = make_group(1, version=1)
    offer(assembler, [make_verdict(1, 0, version=0, reward=0.0), *group[1:]])
    offer(assembler, make_group(2, version=1))
    offer(assembler, make_group(3, version=1))
    batch = assembler.cut()
    assert batch is not None
    assert [g.ordinal for g in batch.groups] == [1, 2], "lag 1 is within the bound"
    assembler.commit(batch)
    offer(assembler, [make_verdict(4, 0, version=0, reward=0.0), *make_group(4, version=2)[1:]])
    (rejection,) = taken(assembler)
    assert (rejection.why, rejection.lag, len(rejection.sample_ids)) == ("stale", 2, 4)


@pytest.mark.parametrize(
    "forged",
    [
        make_verdict(1, 0, version=7),
        make_verdict(1, 0, version=2, newest=3),
        make_verdict(1, 0, version=-1, newest=0),
        make_verdict(1, 0, policy_run_id="another"),
    ],
)
def test_versions_never_published_and_other_policies_are_invalid(forged: Verdict) -> None:
    assembler = Assembler(RULES, version=2)
    offer(assembler, [forged, *make_group(1, version=2)[1:]])
    (rejection,) = taken(assembler)
    assert rejection.why == "invalid"
    assert assembler.ready_groups == 0


def test_the_other_runs_verdicts_touch_nothing() -> None:
    assembler = Assembler(RULES)
    assert set(offer(assembler, make_group(1, run_id="another"))) == {"foreign"}
    assert (assembler.foreign, assembler.open_groups, taken(assembler)) == (4, 0, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": [-1.0]},
        {"completion": [], "logprobs": []},
        {"reward": float("nan")},
        {"reward": None},
        {"temperature": 0.5},
        {"logprobs": [-1.0, float("nan"), -1.0]},
        {"logprobs": [-1.0, float("-inf"), -1.0]},
        {"completion": [5, -1, 6]},
        {"completion": [5, 64, 6]},
    ],
)
def test_payloads_that_cannot_be_trained_on_are_invalid(changes: dict[str, object]) -> None:
    assembler = Assembler(replace(RULES, vocab_size=64), temperature=1.0)
    group = make_group(1)
    offer(assembler, [*group[:3], make_verdict(1, 3, **changes)])  # type: ignore[arg-type]
    offer(assembler, make_group(2))
    batch = assembler.cut()
    assert batch is not None
    assert len(batch.groups[0].scored) == 3
    assembler.commit(batch)
    assert [(r.why, r.sample_ids) for r in taken(assembler)] == [("invalid", ("run:00000001/3",))]


def test_unparsable_is_failed_unless_it_has_a_reward() -> None:
    verdicts = [make_verdict(1, i, status="unparsable", reward=None) for i in range(2)] + make_group(1)[2:]
    strict = Assembler(RULES)
    offer(strict, verdicts)
    assert strict.ready_groups == 1
    lenient = Assembler(Rules("run", 2, 1, unparsable_reward=-0.5))
    offer(lenient, verdicts)
    offer(lenient, make_group(2))
    batch = lenient.cut()
    assert batch is not None
    assert [s.reward for s in batch.groups[0].scored] == [-0.5, -0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    "changes",
    [
        {"sample_id": "run:00000001/2"},
        {"group_id": "run:00000002"},
        {"ordinal": 0},
        {"index": 4, "sample_id": "run:00000001/4"},
        {"group_size": 8},
    ],
)
def test_contradicting_identities_are_bad_input(changes: dict[str, object]) -> None:
    import msgspec

    assembler = Assembler(RULES)
    offer(assembler, make_group(1)[:1])
    with pytest.raises(BadInput):
        assembler.offer(msgspec.structs.replace(make_verdict(1, 1), **changes), 0.0)
    assert assembler.held_samples == 1


def test_a_whole_group_failure_closes_the_group() -> None:
    assembler = Assembler(RULES)
    failure = make_verdict(1, -1, group_size=0, status="error", reason="undecodable problem")
    offer(assembler, [failure])
    (rejection,) = taken(assembler)
    assert (rejection.why, rejection.sample_ids, rejection.reason) == ("failed", (), "undecodable problem")
    assert offer(assembler, [make_verdict(1, 0)]) == ["late"]
    assert [(r.why, r.sample_ids) for r in taken(assembler)] == [("incomplete", ("run:00000001/0",))]
    assert offer(assembler, [make_verdict(1, 0), failure]) == ["duplicate", "duplicate"]
    assert taken(assembler) == []


def test_late_samples_of_accounted_groups_are_duplicates() -> None:
    assembler = Assembler(RULES)
    offer(assembler, make_group(1)[:1])
    assembler.tick(10.0)
    assert {(r.why, len(r.sample_ids)) for r in taken(assembler)} == {("incomplete", 1), ("incomplete", 3)}
    assert offer(assembler, make_group(1)) == ["duplicate"] * 4
    assert assembler.account.counters.duplicates == 4


def test_an_overtaken_group_is_given_up_in_time() -> None:
    assembler = Assembler(RULES)
    offer(assembler, make_group(2))
    assembler.tick(1.0)
    offer(assembler, make_group(3)[:1], 95.0)
    assembler.tick(100.0)
    assert assembler.account.settled.intervals() == []
    assembler.tick(101.0)
    assert assembler.account.settled.intervals() == [(1, 1)]
    assert taken(assembler)[0].sample_ids == ()


def test_the_last_admitted_group_can_be_lost_without_a_deadlock() -> None:
    assembler = Assembler(Rules("run", groups_per_step=2, max_staleness=0, lost_timeout_s=100.0))
    offer(assembler, make_group(1))
    for now in range(0, 120, 10):
        assembler.tick(float(now))
    assert 2 in assembler.account.settled
    assert assembler.admit_until == 3


def test_silence_spends_credit_ever_more_slowly() -> None:
    assembler = Assembler(Rules("run", groups_per_step=1, max_staleness=0, lost_timeout_s=100.0))
    offer(assembler, [make_verdict(1, -1, group_size=0, status="error")])
    for now in range(0, 100_000, 10):
        assembler.tick(float(now))
    assert len(assembler.account.settled) < 14


def test_a_line_that_never_spoke_loses_nothing() -> None:
    assembler = Assembler(RULES)
    for now in range(0, 10_000, 100):
        assembler.tick(float(now))
    assert assembler.account.settled.intervals() == []


def test_offsets_to_read_from_cover_every_unsettled_group() -> None:
    assembler = Assembler(RULES)
    for offset, verdict in enumerate([*make_group(1), *make_group(2)[:2], *make_group(3)[:1]]):
        assembler.offer(verdict, 0.0, Position(verdict.ordinal % 2, offset))
    assert assembler.read_from() == {1: 0, 0: 4}
    offer(assembler, make_group(3)[1:])
    batch = assembler.cut()
    assert batch is not None
    assembler.commit(batch)
    assert assembler.read_from() == {1: 7, 0: 4}


def test_reading_stops_before_memory_does() -> None:
    assembler = Assembler(RULES)
    for ordinal in range(1, 2 * RULES.window + 1):
        offer(assembler, make_group(ordinal))
    assert assembler.has_enough
    for ordinal in range(100, 200):
        offer(assembler, make_group(ordinal)[:1])
    assert assembler.is_full
