"""From verdicts to batches: the trainer's state machine, without Kafka, torch or threads.

A group opens with its first verdict, closes when all its samples have arrived or its deadline passes, and is then
settled (rejected, filtered, failed) or made ready. Ready groups are cut into batches, and a batch is settled when
its training step commits. The invariants, which ``tests/grpo_trainer`` checks after every event:

* every distinct sample that was offered is open, trained, rejected, filtered or failed, exactly once;
* a batch holds only samples that are fresh at the version it was cut at, whatever happened before;
* the number of settled groups, and so the credit, never falls;
* every ordinal within the credit is settled in the end, also when nobody ever speaks of it.

Time is the *reading clock* that the caller passes in: seconds spent reading, so that a trainer that does not read
(back-pressure) does not take its own silence for that of the line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gristmill import freshness
from gristmill.errors import BadInput
from gristmill.messages import Rejection, RejectionReason, Verdict, make_group_id, now_ms, parse_sample_id
from grpo_trainer.account import Account
from grpo_trainer.advantages import has_variance
from grpo_trainer.groups import Group, Position, Sample, check_identity, read_sample, temperature_of

Offer: TypeAlias = Literal["accepted", "duplicate", "reread", "foreign", "late"]
"""What became of a verdict. ``reread``: settled before a restart and read again; ``late``: its group closed, or was
settled, without it."""

MAX_SILENCE_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Rules:
    """Which groups are taken."""

    run_id: str
    groups_per_step: int
    max_staleness: int
    min_group_size: int = 2
    filter_zero_variance: bool = True
    unparsable_reward: float | None = None
    incomplete_timeout_s: float = 600.0
    lost_timeout_s: float = 900.0
    vocab_size: int | None = None

    @property
    def window(self) -> int:
        """Groups that may be unsettled at any time."""
        return (self.max_staleness + 1) * self.groups_per_step


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups for one step, by ordinal, all fresh at ``version``."""

    version: int
    groups: tuple[Group, ...]

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.groups for sample in group.scored]


@dataclass(slots=True)
class Assembler:
    """The state machine. One thread at a time; every method is quick."""

    rules: Rules
    version: int = 0
    account: Account = field(default_factory=Account)
    temperature: float | None = None
    """Sampling temperature of the run; adopted from the first sample when None."""
    wall_ms: Callable[[], int] = now_ms
    who: str = "grpo_trainer"

    next_offsets: dict[int, int] = field(default_factory=dict)
    """Next offset to read, by partition."""
    reread_below: dict[int, int] = field(default_factory=dict)
    """Offsets below these were read before a restart: what is settled among them is no duplicate."""
    outbox: deque[Rejection] = field(default_factory=deque)
    """Rejections decided and not yet handed over. The caller takes them out and publishes them."""
    foreign: int = 0
    """Verdicts of other runs that were dropped."""
    _open: dict[int, Group] = field(default_factory=dict)
    _ready: dict[int, Group] = field(default_factory=dict)
    _training: dict[int, Group] = field(default_factory=dict)
    _highest: int = 0
    _gaps: dict[int, float] = field(default_factory=dict)
    _heard_at: float | None = None
    _silences: int = 0

    def __post_init__(self) -> None:
        settled = self.account.settled.intervals()
        self._highest = settled[-1][1] if settled else 0

    # What the trainer may ask

    @property
    def admit_until(self) -> int:
        """Largest ordinal that generators may start."""
        return freshness.admit_until(
            settled_groups=len(self.account.settled),
            max_staleness=self.rules.max_staleness,
            groups_per_step=self.rules.groups_per_step,
        )

    @property
    def open_groups(self) -> int:
        return len(self._open)

    @property
    def ready_groups(self) -> int:
        return len(self._ready)

    @property
    def held_samples(self) -> int:
        """Samples that have arrived and are not settled."""
        return sum(len(group.samples) for group in self._held())

    @property
    def has_enough(self) -> bool:
        """Ready groups for two whole windows: reading on would only age them."""
        return len(self._ready) >= 2 * self.rules.window

    @property
    def is_full(self) -> bool:
        """More groups are open than credit explains: hold back until some are settled."""
        return len(self._open) >= max(64, 8 * self.rules.window)

    def read_from(self) -> dict[int, int]:
        """By partition, the offset to read from so that every unsettled group is seen whole."""
        low = dict(self.next_offsets)
        for group in self._held():
            for partition, offset in group.first_offsets.items():
                low[partition] = min(low.get(partition, offset), offset)
        return low

    def seen_until(self) -> dict[int, int]:
        """By partition, the offset up to which records were read, by this process or before a restart."""
        partitions = self.next_offsets.keys() | self.reread_below.keys()
        return {p: max(self.next_offsets.get(p, 0), self.reread_below.get(p, 0)) for p in partitions}

    # Events

    def offer(self, verdict: Verdict, now: float, position: Position | None = None) -> Offer:
        """Take a verdict in.

        Raises:
            BadInput: its identity contradicts itself or its group; nothing has changed.
        """
        reread = False
        if position is not None:
            reread = position.offset < self.reread_below.get(position.partition, 0)
            self.skip(position)
        if verdict.run_id != self.rules.run_id:
            self.foreign += 1
            return "foreign"
        check_identity(verdict)
        if verdict.ordinal in self.account.settled:
            return self._offer_settled(verdict, now, reread)
        group = self._training.get(verdict.ordinal) or self._ready.get(verdict.ordinal)
        if group is not None:
            if verdict.index in group.samples or verdict.index < 0:
                return self._count_duplicate(now)
            return "late"  # the group closed without it, and accounts for it when it is settled
        group = self._open.get(verdict.ordinal)
        if group is not None and verdict.index in group.samples:
            return self._count_duplicate(now)
        if group is not None and group.size and verdict.index >= 0 and verdict.group_size != group.size:
            raise BadInput(
                f"verdict {verdict.sample_id!r}: group_size {verdict.group_size}, its siblings said {group.size}"
            )
        self._heard(verdict.ordinal, now)
        if verdict.index < 0:
            self._close_failed(verdict, group)
            return "accepted"
        if group is None:
            group = self._open[verdict.ordinal] = Group(verdict.ordinal, verdict.group_id, verdict.group_size, now)
        group.samples[verdict.index] = self._read(verdict)
        if position is not None:
            group.first_offsets.setdefault(position.partition, position.offset)
        if len(group.samples) == group.size:
            self._close(group)
        return "accepted"

    def skip(self, position: Position) -> None:
        """Pass over a record that is no verdict."""
        known = self.next_offsets.get(position.partition, 0)
        self.next_offsets[position.partition] = max(known, position.offset + 1)

    def tick(self, now: float) -> None:
        """Close groups whose deadline has passed and settle those that were lost."""
        deadline = now - self.rules.incomplete_timeout_s
        for group in [group for group in self._open.values() if group.opened_at <= deadline]:
            self._close(group)
        self._settle_lost(now)

    def cut(self) -> Batch | None:
        """Take the next batch, lowest ordinals first, or None while too few fresh groups are ready."""
        self.sweep()
        if self._training or len(self._ready) < self.rules.groups_per_step:
            return None
        ordinals = sorted(self._ready)[: self.rules.groups_per_step]
        groups = tuple(self._ready.pop(ordinal) for ordinal in ordinals)
        self._training = {group.ordinal: group for group in groups}
        return Batch(self.version, groups)

    def sweep(self) -> None:
        """Reject ready groups that are no longer fresh."""
        for group in list(self._ready.values()):
            why = self._unfresh(group)
            if why is not None:
                del self._ready[group.ordinal]
                self._reject(group, *why)

    def commit(self, batch: Batch) -> None:
        """The batch has been trained on: settle it and move to the next version."""
        if batch.version != self.version or {group.ordinal for group in batch.groups} != set(self._training):
            raise ValueError(f"the batch cut at version {batch.version} is not the one in training")
        self._training = {}
        for group in batch.groups:
            self.account.counters.trained += len(group.scored)
            self._account_rest(group)
            self._settle(group.ordinal)
        self.version += 1
        self.sweep()

    def replay(self, rejection: Rejection) -> None:
        """Take over a decision that was published before a restart and is newer than the checkpoint."""
        if rejection.run_id != self.rules.run_id or rejection.who != self.who or rejection.why == "duplicate":
            return
        if rejection.ordinal in self.account.settled and rejection.ordinal not in self.account.open_ids:
            return
        self.account.settled.add(rejection.ordinal)
        self._highest = max(self._highest, rejection.ordinal)
        accounted = self.account.open_up(rejection.ordinal)
        fresh = [i for i in (parse_sample_id(s)[1] for s in rejection.sample_ids) if i not in accounted]
        accounted.update(fresh)
        self.account.counters.add(rejection.why, len(fresh))

    # Inside

    def _held(self) -> Iterable[Group]:
        return (*self._open.values(), *self._ready.values(), *self._training.values())

    def _heard(self, ordinal: int, now: float) -> None:
        self._highest = max(self._highest, ordinal)
        self._gaps.pop(ordinal, None)
        self._heard_at = now
        self._silences = 0

    def _settle(self, ordinal: int) -> None:
        """Every settled group extends the credit, which gives the line new time to be heard."""
        self.account.settled.add(ordinal)
        self._heard_at = None

    def _read(self, verdict: Verdict) -> Sample:
        sample = read_sample(
            verdict,
            unparsable_reward=self.rules.unparsable_reward,
            temperature=self.temperature,
            vocab_size=self.rules.vocab_size,
        )
        if sample.fault is None and self.temperature is None:
            self.temperature = temperature_of(verdict)
        return sample

    def _count_duplicate(self, now: float) -> Offer:
        self._heard_at = now
        self.account.counters.duplicates += 1
        return "duplicate"

    def _offer_settled(self, verdict: Verdict, now: float, reread: bool) -> Offer:
        accounted = self.account.open_ids.get(verdict.ordinal)
        if accounted is not None and verdict.index >= 0 and verdict.index not in accounted:
            accounted.add(verdict.index)
            if len(accounted) == verdict.group_size:
                del self.account.open_ids[verdict.ordinal]
            sample = self._read(verdict)
            self._record(verdict.ordinal, verdict.group_id, [sample], "incomplete", "the group was settled before")
            self._heard_at = now
            return "late"
        if accounted is not None and len(accounted) >= verdict.group_size > 0:
            del self.account.open_ids[verdict.ordinal]
        return "reread" if reread else self._count_duplicate(now)

    def _close_failed(self, verdict: Verdict, group: Group | None) -> None:
        """Nothing more will come of the group: settle it, or train on what is there."""
        if group is None:
            self._settle(verdict.ordinal)
            self.account.open_up(verdict.ordinal)
            reason = verdict.reason or "the whole group failed"
            self._record(verdict.ordinal, verdict.group_id, [], "failed", reason)
            return
        group.missing_why = "failed"
        self._close(group)

    def _close(self, group: Group) -> None:
        """No more samples are awaited: reject the group or make it ready."""
        del self._open[group.ordinal]
        scored = group.scored
        if len(scored) < self.rules.min_group_size:
            reason = f"{len(scored)} of {group.size} samples are scored, {self.rules.min_group_size} are needed"
            self._reject(group, "incomplete", reason)
            return
        why = self._unfresh(group)
        if why is not None:
            self._reject(group, *why)
        elif self.rules.filter_zero_variance and not has_variance([s.reward for s in scored if s.reward is not None]):
            self._reject(group, "zero_variance", f"all {len(scored)} rewards are {scored[0].reward}")
        else:
            self._ready[group.ordinal] = group

    def _unfresh(self, group: Group) -> tuple[RejectionReason, str] | None:
        """Why a group cannot be trained on at this version, by the worst of its samples."""
        stale: str | None = None
        for sample in group.scored:
            verdict = sample.verdict
            judgement = freshness.judge(
                run_id=self.rules.run_id,
                trainer_version=self.version,
                max_staleness=self.rules.max_staleness,
                policy_run_id=verdict.policy_run_id,
                oldest_version=verdict.policy_version_oldest,
                newest_version=verdict.policy_version_newest,
            )
            if judgement == "foreign_run":
                return "invalid", f"{verdict.sample_id} was sampled by a policy of run {verdict.policy_run_id!r}"
            if judgement == "unpublished":
                span = f"{verdict.policy_version_oldest} to {verdict.policy_version_newest}"
                return "invalid", f"{verdict.sample_id} claims versions {span}, the newest published is {self.version}"
            if judgement == "stale":
                behind = freshness.lag(self.version, verdict.policy_version_oldest)
                stale = f"{verdict.sample_id} has lag {behind}, the bound is {self.rules.max_staleness}"
        return None if stale is None else ("stale", stale)

    def _reject(self, group: Group, why: RejectionReason, reason: str) -> None:
        """Settle a group without training on it; faulty samples keep their own reason."""
        if group.scored:
            self._record(group.ordinal, group.group_id, group.scored, why, reason)
        self._account_rest(group)
        self._settle(group.ordinal)

    def _account_rest(self, group: Group) -> None:
        """Account for the samples of a group that were not scored."""
        for fault in ("failed", "invalid"):
            faulty = [sample for sample in group.samples.values() if sample.fault == fault]
            if faulty:
                reasons = sorted({sample.reason for sample in faulty})
                self._record(group.ordinal, group.group_id, faulty, fault, "; ".join(reasons)[:500])
        missing = group.missing
        if missing:
            self.account.counters.add(group.missing_why, len(missing))
            self._push(
                group.ordinal,
                group.group_id,
                why=group.missing_why,
                reason="did not arrive in time" if group.missing_why == "incomplete" else "generation failed",
                sample_ids=tuple(group.sample_id(index) for index in missing),
                lengths=(0,) * len(missing),
                rewards=(None,) * len(missing),
            )

    def _record(self, ordinal: int, group_id: str, samples: list[Sample], why: RejectionReason, reason: str) -> None:
        self.account.counters.add(why, len(samples))
        versions = [
            sample.verdict.policy_version_oldest
            for sample in samples
            if sample.verdict.policy_run_id == self.rules.run_id and sample.verdict.policy_version_oldest >= 0
        ]
        oldest = min(versions, default=None)
        self._push(
            ordinal,
            group_id,
            why=why,
            reason=reason,
            sample_ids=tuple(sample.verdict.sample_id for sample in samples),
            lag=None if oldest is None else freshness.lag(self.version, oldest),
            policy_version_oldest=oldest,
            lengths=tuple(sample.length for sample in samples),
            rewards=tuple(sample.reward for sample in samples),
        )

    def _push(
        self,
        ordinal: int,
        group_id: str,
        *,
        why: RejectionReason,
        reason: str,
        sample_ids: tuple[str, ...] = (),
        lag: int | None = None,
        policy_version_oldest: int | None = None,
        lengths: tuple[int, ...] = (),
        rewards: tuple[float | None, ...] = (),
    ) -> None:
        self.outbox.append(
            Rejection(
                run_id=self.rules.run_id,
                group_id=group_id,
                ordinal=ordinal,
                sample_ids=sample_ids,
                who=self.who,
                why=why,
                reason=reason,
                lag=lag,
                trainer_version=self.version,
                policy_version_oldest=policy_version_oldest,
                lengths=lengths,
                rewards=rewards,
                rejected_at_ms=self.wall_ms(),
            )
        )

    def _settle_lost(self, now: float) -> None:
        """Give up admitted ordinals that nobody speaks of.

        One that later ordinals have overtaken is lost after ``lost_timeout_s``. When the whole line has gone silent
        (the lost one may be the last that was admitted) all of them are, and the wait doubles each time until a
        verdict is heard again, so that a line that is down does not spend credit by the hour.
        """
        unheard = [o for o in self.account.settled.missing(self.admit_until) if not self._is_held(o)]
        overtaken = {o for o in unheard if o < self._highest}
        self._gaps = {o: self._gaps.get(o, now) for o in overtaken}
        lost = {o for o, since in self._gaps.items() if now - since >= self.rules.lost_timeout_s}
        if self._highest and self._heard_at is None:
            self._heard_at = now
        patience = self.rules.lost_timeout_s * 2**self._silences
        starved = not self._training and len(self._ready) < self.rules.groups_per_step
        if starved and self._heard_at is not None and now - self._heard_at >= patience:
            self._heard_at = now
            self._silences = min(self._silences + 1, MAX_SILENCE_DOUBLINGS)
            lost.update(unheard)
        for ordinal in sorted(lost):
            self._gaps.pop(ordinal, None)
            self._settle(ordinal)
            self.account.open_up(ordinal)
            self._record(ordinal, make_group_id(self.rules.run_id, ordinal), [], "failed", "nobody speaks of it")

    def _is_held(self, ordinal: int) -> bool:
        return ordinal in self._open or ordinal in self._ready or ordinal in self._training
