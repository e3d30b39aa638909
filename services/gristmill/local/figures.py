"""What a run did, in figures: lag, mismatch, throughput, and the time that weights took to travel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gristmill.local.stats import LineStats
from gristmill.messages import TrainingStep

DELIVERY = "gristmill_generator_delivery_seconds"
PHASES = "gristmill_generator_delivery_phase_seconds"
STALL = "gristmill_generator_update_stall_seconds"
DRAIN = "gristmill_generator_update_drain_seconds"


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run; None where nothing was measured."""

    staleness: dict[str, int] = field(default_factory=dict)
    """Trained samples by lag."""
    max_staleness: int = 0
    """The bound."""
    mismatch_kl: tuple[float, float] | None = None
    """Least and largest over the steps."""
    mismatch_max_ratio: float | None = None
    tokens_per_s: float | None = None
    """Sampled tokens a second, from the first completion to the last."""
    step_s: dict[str, float] = field(default_factory=dict)
    """Mean seconds of the trainer per version: wait, train, publish."""
    delivery_s: float | None = None
    """Mean seconds from a version's announcement until an engine confirmed it."""
    delivery_phase_s: dict[str, float] = field(default_factory=dict)
    """Mean seconds of the parts of a delivery."""
    drain_s: float | None = None
    """Mean seconds in which an engine finished its samples before an update."""
    stall_s: float | None = None
    """Mean seconds per version and engine without any request because of the update."""

    def lines(self) -> list[str]:
        """For people; only what is known."""
        found: list[str] = []
        if self.staleness:
            counts = ", ".join(f"{lag}: {count:,}" for lag, count in self.staleness.items())
            largest = max(map(int, self.staleness))
            found.append(f"trained samples by staleness: {counts}; largest {largest}, bound {self.max_staleness}")
        if self.mismatch_kl is not None and self.mismatch_max_ratio is not None:
            low, high = self.mismatch_kl
            ratio = f"{self.mismatch_max_ratio:.3g}"
            found.append(f"train/inference mismatch KL: {low:.2e} to {high:.2e}, largest ratio {ratio}")
        if self.tokens_per_s is not None:
            found.append(f"sampled tokens per second, over the whole run: {self.tokens_per_s:,.0f}")
        if self.step_s:
            found.append(f"trainer, seconds per version: {_parts(self.step_s)}")
        if self.delivery_s is not None:
            phases = f" ({_parts(self.delivery_phase_s)})" if self.delivery_phase_s else ""
            found.append(f"delivery of a version to an engine, seconds: {self.delivery_s:.2f}{phases}")
        if self.stall_s is not None:
            drained = "" if self.drain_s is None else f" and {self.drain_s:.2f} draining"
            found.append(f"lost to updates, seconds per version and engine: {self.stall_s:.2f} idle{drained}")
        return found


def figures(stats: LineStats, steps: Iterable[TrainingStep]) -> Figures:
    """Figures of the run that ``stats`` watched."""
    done = list(steps)
    staleness: dict[str, int] = {}
    for step in done:
        for lag, count in step.staleness.items():
            staleness[lag] = staleness.get(lag, 0) + count
    with stats.lock:
        means = stats.timings.means()
        return Figures(
            staleness={lag: staleness[lag] for lag in sorted(staleness, key=int)},
            max_staleness=stats.policy.max_staleness if stats.policy else 0,
            mismatch_kl=(min(s.mismatch_kl for s in done), max(s.mismatch_kl for s in done)) if done else None,
            mismatch_max_ratio=max((step.mismatch_max_ratio for step in done), default=None),
            tokens_per_s=stats.mean_tokens_per_second,
            step_s=_step_means(done),
            delivery_s=means.get((DELIVERY, "")),
            delivery_phase_s={phase: mean for (name, phase), mean in means.items() if name == PHASES},
            drain_s=means.get((DRAIN, "")),
            stall_s=means.get((STALL, "")),
        )


def _step_means(steps: list[TrainingStep]) -> dict[str, float]:
    parts = {"wait": "wait_s", "train": "train_s", "publish": "publish_s"}
    if not steps:
        return {}
    return {part: sum(getattr(step, name) for step in steps) / len(steps) for part, name in parts.items()}


def _parts(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in seconds.items())
