"""Counters of the engine: written by the scheduler thread, read by the server, exported to Prometheus.

Names are SGLang's, so that dashboards made for it work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from embedded_engine.request import Generation

WINDOW_S = 1.0


@dataclass
class EngineStats:
    """Plain numbers; a reader may see one of them a step later than another."""

    running: int = 0
    waiting: int = 0
    running_tokens: int = 0
    stored_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    requests: int = 0
    aborted: int = 0
    retractions: int = 0
    steps: int = 0
    busy_s: float = 0.0
    last_step: float = 0.0
    histograms: Histograms | None = None
    _window_start: float = field(default_factory=time.perf_counter)
    _window_tokens: int = 0
    _throughput: float = 0.0

    def stepped(self, seconds: float) -> None:
        """Note one scheduler step."""
        now = time.perf_counter()
        self.steps += 1
        self.busy_s += seconds
        if now - self.last_step > WINDOW_S:
            self._window_start, self._window_tokens = now - seconds, self.generation_tokens - self.running
        self.last_step = now
        span = now - self._window_start
        if span >= WINDOW_S:
            self._throughput = (self.generation_tokens - self._window_tokens) / span
            self._window_start, self._window_tokens = now, self.generation_tokens

    @property
    def throughput(self) -> float:
        """Completion tokens a second over the last full second; 0 when idle."""
        return self._throughput if time.perf_counter() - self.last_step < 2 * WINDOW_S else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Share of all prompt tokens that were copied instead of computed."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def ended(self, request: Generation) -> None:
        """Note the end of a request."""
        self.requests += 1
        if request.finish is not None and request.finish["type"] == "abort":
            self.aborted += 1
        if self.histograms is None or request.ended is None:
            return
        self.histograms.e2e.observe(request.ended - request.created)
        if request.started is not None:
            self.histograms.queue.observe(request.started - request.created)
        if request.first_token is not None:
            self.histograms.first_token.observe(request.first_token - request.created)
            count = len(request.output_ids)
            if count > 1:
                self.histograms.inter_token.observe((request.ended - request.first_token) / (count - 1))


class Histograms:
    """Latency distributions of ended requests."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def make(name: str, doc: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(f"sglang:{name}", doc, ["model_name"], registry=registry, buckets=buckets)
            return metric.labels(model_name=model_name)

        long = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
        self.e2e = make("e2e_request_latency_seconds", "Seconds from arrival to the end.", long)
        self.first_token = make("time_to_first_token_seconds", "Seconds from arrival to the first token.", long)
        self.queue = make("queue_time_seconds", "Seconds from arrival to admission.", long)
        self.inter_token = make(
            "inter_token_latency_seconds",
            "Mean seconds between the tokens of a request.",
            (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
        )


class StatsCollector(Collector):
    """Exports :class:`EngineStats`."""

    def __init__(self, stats: EngineStats, model_name: str, max_total_tokens: int) -> None:
        self._stats = stats
        self._labels = [model_name]
        self._max_total_tokens = max_total_tokens
        self.count_loras: Callable[[], int] = int

    def collect(self) -> Iterator[Metric]:
        """One family per number."""
        stats = self._stats
        used = stats.running_tokens + stats.stored_tokens
        for name, doc, value in (
            ("num_running_reqs", "Requests being decoded.", stats.running),
            ("num_queue_reqs", "Requests waiting.", stats.waiting),
            ("num_used_tokens", "Tokens in the cache, kept prefixes included.", used),
            ("token_usage", "Share of the cache in use by running requests.", self._usage()),
            ("cache_hit_rate", "Share of prompt tokens copied from a known prefix.", stats.cache_hit_rate),
            ("gen_throughput", "Completion tokens a second.", stats.throughput),
            ("max_total_num_tokens", "Tokens that the cache may hold.", self._max_total_tokens),
            ("lora_pool_slots_used", "Adapters loaded.", self.count_loras()),
        ):
            gauge = GaugeMetricFamily(f"sglang:{name}", doc, labels=["model_name"])
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, doc, count in (
            ("prompt_tokens", "Prompt tokens received.", stats.prompt_tokens),
            ("generation_tokens", "Completion tokens sampled.", stats.generation_tokens),
            ("cached_tokens", "Prompt tokens copied from a known prefix.", stats.cached_tokens),
            ("num_requests", "Requests ended.", stats.requests),
            ("num_aborted_requests", "Requests ended by an abort.", stats.aborted),
            ("num_retracted_requests", "Times that a request was put back to the queue.", stats.retractions),
        ):
            counter = CounterMetricFamily(f"sglang:{name}", doc, labels=["model_name"])
            counter.add_metric(self._labels, count)
            yield counter

    def _usage(self) -> float:
        return self._stats.running_tokens / self._max_total_tokens
