"""Prometheus metrics of one process: every name starts with ``gristmill_``."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

DURATION_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Seconds; from a cached verdict to a long generation."""


class Metrics:
    """A registry of its own, so that tests and services in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

    def counter(self, name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
        """A counter ``gristmill_<name>_total``."""
        return Counter(name, doc, labels, namespace="gristmill", registry=self.registry)

    def gauge(self, name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
        """A gauge ``gristmill_<name>``."""
        return Gauge(name, doc, labels, namespace="gristmill", registry=self.registry)

    def histogram(
        self, name: str, doc: str, labels: Sequence[str] = (), buckets: Sequence[float] = DURATION_BUCKETS
    ) -> Histogram:
        """A histogram ``gristmill_<name>``."""
        return Histogram(name, doc, labels, namespace="gristmill", registry=self.registry, buckets=buckets)
