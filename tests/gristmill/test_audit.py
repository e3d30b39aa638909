"""The ledger: the identity holds for sound logs in any order, and every kind of breach is found."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gristmill.audit import Ledger, Report
from gristmill.messages import Message, PolicyVersion, Rejection, TrainingStep, Verdict, make_group_id, make_sample_id

RUN = "r"


def verdict(ordinal: int, index: int, version: int = 0, status: str = "correct") -> Verdict:
    group = make_group_id(RUN, ordinal)
    return Verdict(
        run_id=RUN,
        sample_id=make_sample_id(group, index),
        group_id=group,
        index=index,
        ordinal=ordinal,
        group_size=2,
        problem_id="p",
        prompt_token_ids=b"",
        completion_token_ids=b"",
        logprobs=b"",
        policy_run_id=RUN,
        policy_version_oldest=version,
        policy_version_newest=version,
        status=status,  # type: ignore[arg-type]
        verifier="v",
        verifier_version="1",
        verified_at_ms=1,
    )


def rejection(ordinal: int, why: str, indices: tuple[int, ...] = (0, 1)) -> Rejection:
    group = make_group_id(RUN, ordinal)
    return Rejection(
        run_id=RUN,
        group_id=group,
        ordinal=ordinal,
        sample_ids=tuple(make_sample_id(group, index) for index in indices),
        who="grpo_trainer",
        why=why,  # type: ignore[arg-type]
        trainer_version=0,
        lengths=tuple(0 for _ in indices),
        rejected_at_ms=5,
    )


def step(number: int, ordinals: list[int], version: int = 0) -> TrainingStep:
    groups = tuple(make_group_id(RUN, ordinal) for ordinal in ordinals)
    samples = tuple(make_sample_id(group, index) for group in groups for index in (0, 1))
    return TrainingStep(
        run_id=RUN,
        step=number,
        version=number,
        group_ids=groups,
        sample_ids=samples,
        policy_versions=tuple(version for _ in samples),
        loss=0.0,
        reward_mean=0.5,
        reward_std=0.5,
        correct_fraction=0.5,
        clip_fraction=0.0,
        entropy=1.0,
        grad_norm=1.0,
        learning_rate=1e-3,
        mismatch_kl=0.0,
        mismatch_max_ratio=1.0,
        importance_ratio_mean=1.0,
        staleness={"0": len(samples)},
        prompt_tokens=0,
        completion_tokens=0,
        completion_length_mean=0.0,
        truncated_fraction=0.0,
        wait_s=0.0,
        train_s=0.0,
        publish_s=0.0,
        trained_at_ms=3,
    )


def policy(version: int, **counters: int) -> PolicyVersion:
    counts = {"trained": 0, "rejected": 0, "filtered": 0, "failed": 0} | counters
    return PolicyVersion(
        run_id=RUN,
        version=version,
        step=version,
        name=f"{RUN}-v{version}",
        base_model="m",
        kind="lora",
        uri="file:///p",
        sha256="0",
        admit_until=10,
        settled_groups=0,
        max_staleness=1,
        groups_per_step=1,
        published_at_ms=9,
        **counts,
    )


def replay(messages: list[Message]) -> Report:
    ledger = Ledger(RUN)
    for message in messages:
        ledger.add(message)
    return ledger.report()


SOUND: list[Message] = [
    *(verdict(ordinal, index) for ordinal in (1, 2, 3, 4) for index in (0, 1)),
    policy(0),
    step(1, [1]),
    rejection(2, "zero_variance"),
    rejection(3, "failed", (0,)),
    rejection(3, "incomplete", (1,)),
    policy(1, trained=2, filtered=2, failed=1, rejected=1),
]


def test_a_sound_log_balances() -> None:
    report = replay(SOUND)
    assert report.balanced, report.breaches
    assert (report.admitted, report.trained, report.filtered, report.failed, report.rejected) == (8, 2, 2, 1, 1)
    assert (report.in_flight, report.awaiting_training, report.duplicates) == (2, 2, 0)
    assert report.lags == {0: 2}


@given(st.permutations(SOUND))
def test_order_between_topics_does_not_matter(messages: list[Message]) -> None:
    assert replay(messages).balanced


@given(st.lists(st.sampled_from(SOUND), max_size=12))
def test_copies_change_nothing(copies: list[Message]) -> None:
    once, more = replay(SOUND), replay([*SOUND, *copies])
    assert more.balanced
    assert (once.admitted, once.trained, once.rejected) == (more.admitted, more.trained, more.rejected)


def test_breaches_are_found() -> None:
    def breach(*extra: Message) -> str:
        report = replay([*SOUND, *extra])
        assert not report.balanced
        return " ".join(report.breaches)

    assert "again in step 2" in breach(step(2, [1]))
    assert "ended twice" in breach(rejection(1, "stale"))
    assert "no verdict" in breach(step(2, [9]))
    assert "lag -4" in breach(verdict(9, 0, 5), verdict(9, 1, 5), step(2, [9], version=5))
    assert "its verdict 0" in breach(step(2, [4], version=1))
    assert "policies says 7 filtered" in breach(policy(2, trained=2, filtered=7, failed=1, rejected=1))
    assert "published twice" in breach(step(1, [4]))


def test_the_bound_that_holds_is_that_of_the_last_record_of_a_version() -> None:
    """A restart may change it; what was announced before says nothing about batches cut after."""
    log = [*(verdict(1, index) for index in (0, 1)), step(4, [1])]
    low = msgspec.structs.replace(policy(3), max_staleness=1, published_at_ms=10)
    high = msgspec.structs.replace(policy(3), max_staleness=3, published_at_ms=20)
    assert not any("the bound is" in breach for breach in replay([low, high, low, *log]).breaches)
    lowered = msgspec.structs.replace(low, published_at_ms=30)
    assert any("lag 3, the bound is 1" in breach for breach in replay([low, high, lowered, *log]).breaches)


def test_samples_of_another_run_are_passed_over() -> None:
    ledger = Ledger("other")
    for message in SOUND:
        ledger.add(message)
    assert ledger.report().admitted == 0
