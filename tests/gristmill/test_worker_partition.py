"""When a partition counts as silent: records are due, and none has come for too long."""

from __future__ import annotations

import pytest

from gristmill.topics import Topics
from gristmill.worker.partition import Limits, Partition
from gristmill.worker.stats import TopicStats

SILENCE_S = 30.0


@pytest.fixture
def partition() -> Partition:
    """All that was received is settled, at time 0."""
    found = Partition(Topics("").problems, 0, Limits(1, 10, 1000, 100), TopicStats(), 5)
    found.received_at = 0.0
    return found


def test_lag_that_persists_is_silence(partition: Partition) -> None:
    assert [partition.is_silent(now, 3, SILENCE_S) for now in (40.0, 50.0, 69.0, 70.0)] == [False, False, False, True]
    partition.received_at = 69.5
    assert not partition.is_silent(99.0, 3, SILENCE_S)
    assert partition.is_silent(99.5, 3, SILENCE_S)


def test_the_lag_of_records_that_have_just_been_settled_is_not(partition: Partition) -> None:
    """A handler took long; when it is done, the last statistics still tell of its record."""
    assert not partition.is_silent(40.0, 1, SILENCE_S)
    assert not partition.is_silent(42.0, 0, SILENCE_S)
    assert not partition.is_silent(80.0, 1, SILENCE_S)
    assert not partition.is_silent(109.0, 1, SILENCE_S)
    assert partition.is_silent(110.0, 1, SILENCE_S)


@pytest.mark.parametrize("why", ["paused", "full", "in hand", "no position"])
def test_a_partition_that_waits_for_nothing_is_never_silent(partition: Partition, why: str) -> None:
    partition.is_silent(40.0, 1, SILENCE_S)
    if why in ("paused", "full"):
        setattr(partition, why, True)
    else:
        partition.expected = 6 if why == "in hand" else None
    assert not partition.is_silent(100.0, 1, SILENCE_S)
    partition.paused = partition.full = False
    partition.expected = 5
    assert not partition.is_silent(101.0, 1, SILENCE_S)  # it begins anew
    assert partition.is_silent(131.0, 1, SILENCE_S)
