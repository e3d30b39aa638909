"""Counts of the worker loop, kept as plain numbers and turned into metrics only when someone scrapes.

A prometheus counter costs about a microsecond and a histogram three, which is a tenth of what a small message
costs altogether; integers that one thread adds to cost nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gristmill.metrics import DURATION_BUCKETS, Metrics


class TopicStats:
    """Counts of one topic."""

    __slots__ = ("buckets", "dead", "in_flight", "is_input", "received", "retries", "seconds", "sent")

    def __init__(self) -> None:
        self.is_input = False
        self.received = 0
        self.sent = 0
        self.dead = 0
        self.retries = 0
        self.in_flight = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(DURATION_BUCKETS) + 1)

    def handled(self, seconds: float) -> None:
        """Count one call of the handler."""
        self.seconds += seconds
        self.buckets[bisect_left(DURATION_BUCKETS, seconds)] += 1


class WorkerStats(Collector):
    """Counts of all workers of one process."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicStats] = {}
        self.lag: dict[tuple[str, int], int] = {}
        """Records of owned partitions not settled yet, by topic and partition, as of the last statistics."""
        self.commits = 0
        self.commit_failures = 0
        self.rebalances: dict[str, int] = defaultdict(int)
        """Rebalances by kind: assigned, revoked, lost."""
        self.position_repairs = 0

    def topic(self, name: str) -> TopicStats:
        """Counts of a topic, made when first asked for."""
        stats = self._topics.get(name)
        return self._topics.setdefault(name, TopicStats()) if stats is None else stats

    def collect(self) -> Iterator[Metric]:
        """Metrics as of now."""
        received = CounterMetricFamily("gristmill_messages_in", "Records consumed.", labels=["topic"])
        sent = CounterMetricFamily("gristmill_messages_out", "Records acknowledged by the broker.", labels=["topic"])
        dead = CounterMetricFamily("gristmill_dead_letters", "Records sent to the dead letters.", labels=["topic"])
        retries = CounterMetricFamily("gristmill_handler_retries", "Handler calls repeated.", labels=["topic"])
        flying = GaugeMetricFamily("gristmill_in_flight", "Records being handled or written.", labels=["topic"])
        seconds = HistogramMetricFamily("gristmill_handler_seconds", "Seconds per record.", labels=["topic"])
        for name, stats in list(self._topics.items()):
            if stats.sent:
                sent.add_metric([name], stats.sent)
            if not stats.is_input:
                continue
            received.add_metric([name], stats.received)
            dead.add_metric([name], stats.dead)
            retries.add_metric([name], stats.retries)
            flying.add_metric([name], stats.in_flight)
            seconds.add_metric([name], _cumulative(stats.buckets), stats.seconds)
        lag = GaugeMetricFamily("gristmill_consumer_lag", "Records not settled yet.", labels=["topic", "partition"])
        for (name, partition), value in list(self.lag.items()):
            lag.add_metric([name, str(partition)], value)
        rebalances = CounterMetricFamily("gristmill_rebalances", "Changes of the assignment.", labels=["kind"])
        for kind, count in list(self.rebalances.items()):
            rebalances.add_metric([kind], count)
        yield from (received, sent, dead, retries, flying, seconds, lag, rebalances)
        yield CounterMetricFamily("gristmill_commits", "Offset commits acknowledged.", value=self.commits)
        yield CounterMetricFamily("gristmill_commit_failures", "Offset commits refused.", value=self.commit_failures)
        yield CounterMetricFamily(
            "gristmill_position_repairs", "Times a partition had to be sought back.", value=self.position_repairs
        )


_registered: WeakKeyDictionary[Metrics, WorkerStats] = WeakKeyDictionary()
_lock = threading.Lock()


def worker_stats(metrics: Metrics) -> WorkerStats:
    """The counts that belong to ``metrics``: one set, however many workers share it."""
    with _lock:
        stats = _registered.get(metrics)
        if stats is None:
            stats = _registered[metrics] = WorkerStats()
            metrics.registry.register(stats)
        return stats


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in DURATION_BUCKETS), "+Inf"]
    total = 0
    result: list[tuple[str, float]] = []
    for bound, count in zip(bounds, buckets, strict=True):
        total += count
        result.append((bound, total))
    return result
