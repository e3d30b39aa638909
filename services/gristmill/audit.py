"""The accounting identity, proved by replay: admitted = trained + rejected + filtered + failed + in flight.

The ledger sees every record of ``completions.*``, ``verdicts``, ``rejections``, ``training`` and ``policies`` of a
run, in any order between topics, and drops copies by id. It then says where each distinct sample ended, and lists
every breach: a sample with two ends, one trained twice, one trained without a verdict or beyond the staleness
bound, and counters on ``policies`` that the records do not bear out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gristmill.messages import Completion, Message, PolicyVersion, Rejection, TrainingStep, Verdict

End: TypeAlias = Literal["trained", "rejected", "filtered", "failed"]

END_OF: dict[str, End] = {
    "stale": "rejected",
    "incomplete": "rejected",
    "invalid": "rejected",
    "zero_variance": "filtered",
    "failed": "failed",
}
"""Which column of the identity a rejection belongs to. ``duplicate`` belongs to none: the sample ended elsewhere."""

MAX_BREACHES_KEPT = 1000


@dataclass(slots=True)
class _Sample:
    completed: bool = False
    judged: bool = False
    oldest_version: int | None = None
    end: End | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the replay found for one run."""

    run_id: str
    admitted: int
    trained: int
    rejected: int
    filtered: int
    failed: int
    awaiting_verdict: int
    awaiting_training: int
    duplicates: int
    groups: int
    versions: int
    by_why: dict[str, int]
    lags: dict[int, int]
    breaches: tuple[str, ...]

    @property
    def in_flight(self) -> int:
        return self.awaiting_verdict + self.awaiting_training

    @property
    def balanced(self) -> bool:
        """The identity holds and nothing else is wrong."""
        return not self.breaches and self.admitted == (
            self.trained + self.rejected + self.filtered + self.failed + self.in_flight
        )


@dataclass(slots=True)
class Ledger:
    """Accounts of one run."""

    run_id: str
    _samples: dict[str, _Sample] = field(default_factory=dict)
    _groups: set[str] = field(default_factory=set)
    _steps: dict[int, TrainingStep] = field(default_factory=dict)
    _policy: PolicyVersion | None = None
    _bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By version, when its last record was published, and the bound that held from then on."""
    _why: Counter[str] = field(default_factory=Counter)
    _last_rejection_ms: int = 0
    _duplicates: int = 0
    _breaches: list[str] = field(default_factory=list)

    def add(self, message: Message) -> None:
        """Take one record into account; records of other runs and kinds are passed over."""
        match message:
            case Completion(run_id=self.run_id):
                self._see(message.sample_id, message.group_id).completed = True
            case Verdict(run_id=self.run_id):
                self._add_verdict(message)
            case Rejection(run_id=self.run_id):
                self._add_rejection(message)
            case TrainingStep(run_id=self.run_id):
                self._add_step(message)
            case PolicyVersion(run_id=self.run_id):
                self._add_policy(message)
            case _:
                pass

    def report(self) -> Report:
        """Close the books: check what only the whole log can show, and count."""
        breaches = [*self._breaches, *self._check_steps(), *self._check_counters()]
        ends = Counter(sample.end for sample in self._samples.values())
        open_samples = [sample for sample in self._samples.values() if sample.end is None]
        return Report(
            run_id=self.run_id,
            admitted=len(self._samples),
            trained=ends["trained"],
            rejected=ends["rejected"],
            filtered=ends["filtered"],
            failed=ends["failed"],
            awaiting_verdict=sum(not sample.judged for sample in open_samples),
            awaiting_training=sum(sample.judged for sample in open_samples),
            duplicates=self._duplicates,
            groups=len(self._groups),
            versions=len(self._steps),
            by_why=dict(sorted(self._why.items())),
            lags=dict(sorted(self._lags().items())),
            breaches=tuple(breaches[:MAX_BREACHES_KEPT]),
        )

    def _see(self, sample_id: str, group_id: str) -> _Sample:
        self._groups.add(group_id)
        return self._samples.setdefault(sample_id, _Sample())

    def _add_verdict(self, verdict: Verdict) -> None:
        if verdict.index < 0:
            self._groups.add(verdict.group_id)
            return
        sample = self._see(verdict.sample_id, verdict.group_id)
        if sample.judged:
            self._duplicates += 1
            return
        sample.judged = True
        sample.oldest_version = verdict.policy_version_oldest

    def _add_rejection(self, rejection: Rejection) -> None:
        self._groups.add(rejection.group_id)
        self._last_rejection_ms = max(self._last_rejection_ms, rejection.rejected_at_ms)
        end = END_OF.get(rejection.why)
        if end is None:
            return
        for sample_id in rejection.sample_ids:
            sample = self._see(sample_id, rejection.group_id)
            if sample.end is None:
                self._why[rejection.why] += 1
            self._close(sample_id, sample, end)

    def _add_step(self, step: TrainingStep) -> None:
        known = self._steps.get(step.step)
        if known is not None:
            if known.sample_ids != step.sample_ids:
                self._breach(f"step {step.step} was published twice with different samples")
            return
        self._steps[step.step] = step
        self._groups.update(step.group_ids)
        for sample_id in step.sample_ids:
            sample = self._samples.setdefault(sample_id, _Sample())
            if sample.step is not None:
                self._breach(f"{sample_id} was trained in step {sample.step} and again in step {step.step}")
            sample.step = step.step
            self._close(sample_id, sample, "trained")

    def _add_policy(self, policy: PolicyVersion) -> None:
        # A restart may change the bound; what was trained at a version was accepted under its last record.
        record = (policy.published_at_ms, policy.max_staleness)
        self._bounds[policy.version] = max(record, self._bounds.get(policy.version, record))
        last = self._policy
        if last is None or (policy.version, policy.admit_until) >= (last.version, last.admit_until):
            self._policy = policy

    def _close(self, sample_id: str, sample: _Sample, end: End) -> None:
        if sample.end is not None and sample.end != end:
            self._breach(f"{sample_id} ended twice: {sample.end} and {end}")
        sample.end = sample.end or end

    def _breach(self, text: str) -> None:
        if len(self._breaches) < MAX_BREACHES_KEPT:
            self._breaches.append(text)

    def _lags(self) -> Counter[int]:
        lags: Counter[int] = Counter()
        for step in self._steps.values():
            lags.update(step.version - 1 - version for version in step.policy_versions)
        return lags

    def _check_steps(self) -> list[str]:
        """Freshness and provenance of every trained sample, from the records alone."""
        found: list[str] = []
        for step in self._steps.values():
            accepted_at = step.version - 1
            _, bound = self._bounds.get(accepted_at, (0, None))
            for sample_id, version in zip(step.sample_ids, step.policy_versions, strict=True):
                sample = self._samples[sample_id]
                lag = accepted_at - version
                if not sample.judged:
                    found.append(f"{sample_id} was trained in step {step.step} but has no verdict")
                elif sample.oldest_version != version:
                    found.append(
                        f"{sample_id}: step {step.step} says version {version}, its verdict {sample.oldest_version}"
                    )
                if lag < 0 or (bound is not None and lag > bound):
                    found.append(f"{sample_id} was trained in step {step.step} with lag {lag}, the bound is {bound}")
        return found

    def _check_counters(self) -> list[str]:
        """The counters of the newest ``policies`` record against the replayed records."""
        policy = self._policy
        if policy is None:
            return []
        trained = sum(len(step.sample_ids) for step in self._steps.values() if step.version <= policy.version)
        ends = Counter(sample.end for sample in self._samples.values())
        replayed = {"rejected": ends["rejected"], "filtered": ends["filtered"], "failed": ends["failed"]}
        announced = {"rejected": policy.rejected, "filtered": policy.filtered, "failed": policy.failed}
        found = (
            [] if trained == policy.trained else [f"policies says {policy.trained} trained, training says {trained}"]
        )
        # Rejections are published before the counters that include them, so later ones may still be uncounted.
        settled = self._last_rejection_ms <= policy.published_at_ms
        for name, count in announced.items():
            if count > replayed[name] or (settled and count != replayed[name]):
                found.append(f"policies says {count} {name}, rejections say {replayed[name]}")
        return found
