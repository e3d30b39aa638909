"""Metrics of the generator."""

from __future__ import annotations

from gristmill.messages import FinishReason
from gristmill.metrics import Metrics

STATES = ("down", "probing", "syncing", "serving")


class Instruments:
    """One set per process."""

    def __init__(self, metrics: Metrics) -> None:
        self.samples = metrics.counter("generator_samples", "Samples finished, by outcome.", ("outcome",))
        self.tokens = metrics.counter("generator_tokens", "Tokens sent and sampled.", ("kind",))
        self.cached_tokens = metrics.counter("generator_cached_tokens", "Prompt tokens served from prefix caches.")
        self.seconds = metrics.histogram("generator_sample_seconds", "Seconds from request to response.")
        self.admission_wait = metrics.histogram(
            "generator_admission_wait_seconds", "Seconds a group waited for credit."
        )
        self.placement_wait = metrics.histogram(
            "generator_placement_wait_seconds", "Seconds a group waited for an engine."
        )
        self.waiting = metrics.gauge("generator_groups_waiting_for_credit", "Groups that wait for credit.")
        self.groups = metrics.gauge("generator_groups_in_flight", "Groups being sampled.")
        self.retries = metrics.counter("generator_retries", "Requests repeated, by what failed.", ("kind",))
        self.engine_errors = metrics.counter("generator_engine_errors", "Failures of engines.", ("engine", "kind"))
        self.in_flight = metrics.gauge("generator_requests_in_flight", "Requests in flight.", ("engine",))
        self.requests_waiting = metrics.gauge(
            "generator_requests_waiting", "Requests that wait for a slot, or for others to leave with.", ("engine",)
        )
        self.state = metrics.gauge("generator_engine_state", "1 for the state an engine is in.", ("engine", "state"))
        self.openings = metrics.counter(
            "generator_breaker_openings", "Times an engine went out of service.", ("engine",)
        )
        self.version = metrics.gauge("generator_policy_version", "Policy version that new groups are sampled by.")
        self.admit_until = metrics.gauge("generator_admit_until", "Largest ordinal that may start.")
        self.delivery = metrics.histogram(
            "generator_delivery_seconds", "Seconds from a version's announcement to its confirmation by an engine."
        )
        self.loads = metrics.counter("generator_policy_loads", "Versions confirmed on an engine.", ("engine",))
        self.adapters = metrics.gauge(
            "generator_adapters_loaded", "Versions an engine holds for this run.", ("engine",)
        )
        self.delivered_bytes = metrics.counter(
            "generator_delivered_bytes", "Bytes of weights moved to an engine.", ("engine", "mode")
        )
        self.delivery_phase = metrics.histogram(
            "generator_delivery_phase_seconds",
            "Seconds of one delivery to one engine: transfer, verify, first_token.",
            ("mode", "phase"),
        )
        self.update_drain = metrics.histogram(
            "generator_update_drain_seconds", "Seconds in which an engine finished its samples before an update."
        )
        self.update_stall = metrics.histogram(
            "generator_update_stall_seconds", "Seconds per version in which an engine had no request because of it."
        )
        self.engine_tokens = metrics.counter("generator_engine_tokens", "Tokens sampled by an engine.", ("engine",))
        self.tokens_per_second = metrics.gauge(
            "generator_tokens_per_second", "Tokens sampled per second over the last ten seconds.", ("engine",)
        )
        self.limit = metrics.gauge("generator_concurrency_limit", "Requests that may be in flight.", ("engine",))
        self.decisions = metrics.counter(
            "generator_concurrency_decisions", "Looks at an engine's load, by what followed.", ("engine", "decision")
        )
        self.policies_ignored = metrics.counter("generator_policies_ignored", "Policy records ignored.", ("why",))
        self.problems_ignored = metrics.counter("generator_problems_ignored", "Problems of another run.")

        self._ended = {reason: self.samples.labels(reason).inc for reason in ("stop", "length")}
        self._prompt_tokens = self.tokens.labels("prompt").inc
        self._completion_tokens = self.tokens.labels("completion").inc

    def count(self, reason: FinishReason, prompt: int, completion: int, cached: int, seconds: float) -> None:
        """A sample is finished: how it ended, its tokens, and how long the request took."""
        self._ended[reason]()
        self._prompt_tokens(prompt)
        self._completion_tokens(completion)
        self.cached_tokens.inc(cached)
        self.seconds.observe(seconds)

    def show_state(self, engine: str, state: str) -> None:
        """Set the state gauge of an engine."""
        for name in STATES:
            self.state.labels(engine, name).set(name == state)
