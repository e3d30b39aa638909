"""The assembler against a model of the whole trainer: any order of verdicts, deadlines, steps and crashes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from trainer_synthetic import make_verdict

from gristmill.audit import END_OF
from gristmill.freshness import judge
from gristmill.messages import Rejection, Verdict
from grpo_trainer.account import Account
from grpo_trainer.assembler import Assembler, Batch, Rules
from grpo_trainer.groups import Position

SIZE = 3
PARTITIONS = 2


@dataclass
class Saved:
    """A durable checkpoint."""

    version: int
    account: Account
    read_from: dict[int, int]
    seen_until: dict[int, int]
    outbox: list[Rejection]


class Machine(RuleBasedStateMachine):
    """The log keeps every verdict; ``published`` is the rejections topic; ``steps`` the durable training steps."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = Rules("run", groups_per_step=2, max_staleness=1, incomplete_timeout_s=10, lost_timeout_s=30)
        self.assembler = Assembler(self.rules, temperature=1.0)
        self.log: dict[int, list[Verdict]] = {p: [] for p in range(PARTITIONS)}
        self.steps: list[tuple[str, ...]] = []
        self.published: list[Rejection] = []
        self.published_admit = self.assembler.admit_until
        self.batch: Batch | None = None
        self.now = 0.0
        self.saved = self._save()

    def _save(self) -> Saved:
        a = self.assembler
        return Saved(a.version, a.account.copy(), a.read_from(), a.seen_until(), list(a.outbox))

    def _send(self, verdict: Verdict) -> str:
        partition = verdict.ordinal % PARTITIONS
        self.log[partition].append(verdict)
        return self.assembler.offer(verdict, self.now, Position(partition, len(self.log[partition]) - 1))

    # Events

    @rule(
        ahead=st.integers(-6, 1),
        index=st.integers(0, SIZE - 1),
        back=st.integers(-1, 2),
        reward=st.sampled_from([0.0, 1.0]),
        kind=st.sampled_from(["scored"] * 8 + ["error", "timeout", "unparsable", "garbled"]),
        policy=st.sampled_from(["run"] * 12 + ["other"]),
    )
    def verdict(self, ahead: int, index: int, back: int, reward: float, kind: str, policy: str) -> None:
        ordinal = max(1, self.assembler.admit_until + ahead)
        version = max(0, self.assembler.version - back)
        status = {"scored": "correct" if reward else "wrong", "garbled": "correct"}.get(kind, kind)
        self._send(
            make_verdict(
                ordinal,
                index,
                group_size=SIZE,
                version=version,
                status=status,
                reward=reward if kind in ("scored", "garbled") else None,
                logprobs=[-1.0] if kind == "garbled" else None,
                policy_run_id=policy,
            )
        )

    @rule(ahead=st.integers(-4, 0), seed=st.integers(0, 7))
    def whole_group(self, ahead: int, seed: int) -> None:
        ordinal = max(1, self.assembler.admit_until + ahead)
        for index in range(SIZE):
            good = bool(seed >> index & 1)
            self._send(
                make_verdict(
                    ordinal,
                    index,
                    group_size=SIZE,
                    version=self.assembler.version,
                    reward=float(good),
                    status="correct" if good else "wrong",
                )
            )

    @rule(ahead=st.integers(-4, 0))
    def group_failure(self, ahead: int) -> None:
        ordinal = max(1, self.assembler.admit_until + ahead)
        self._send(make_verdict(ordinal, -1, group_size=0, status="error"))

    @rule(data=st.data())
    def redelivery(self, data: st.DataObject) -> None:
        old = [verdict for verdicts in self.log.values() for verdict in verdicts]
        if old:
            self._send(data.draw(st.sampled_from(old)))

    @rule()
    def foreign_run(self) -> None:
        before = self.assembler.account.to_json(), self.assembler.held_samples
        assert self._send(make_verdict(1, 0, run_id="another")) == "foreign"
        assert (self.assembler.account.to_json(), self.assembler.held_samples) == before

    @rule(seconds=st.sampled_from([1.0, 11.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.assembler.tick(self.now)

    @precondition(lambda self: self.batch is None)
    @rule()
    def cut(self) -> None:
        self.batch = self.assembler.cut()
        if self.batch is None:
            return
        assert len(self.batch.groups) == self.rules.groups_per_step
        for sample in self.batch.samples:
            verdict = sample.verdict
            judgement = judge(
                run_id="run",
                trainer_version=self.batch.version,
                max_staleness=self.rules.max_staleness,
                policy_run_id=verdict.policy_run_id,
                oldest_version=verdict.policy_version_oldest,
                newest_version=verdict.policy_version_newest,
            )
            assert judgement == "fresh"
            assert sample.reward is not None

    @precondition(lambda self: self.batch is not None)
    @rule(dies=st.booleans())
    def commit(self, dies: bool) -> None:
        """Train, checkpoint and publish; ``dies`` right after the checkpoint, before anything is published."""
        assert self.batch is not None
        self.assembler.commit(self.batch)
        self.steps.append(tuple(sample.verdict.sample_id for sample in self.batch.samples))
        self.batch = None
        self.saved = self._save()
        if dies:
            self.crash()
        else:
            self.publish()

    @rule()
    def publish(self) -> None:
        self.published.extend(self.assembler.outbox)
        self.assembler.outbox.clear()
        assert self.assembler.admit_until >= self.published_admit
        self.published_admit = self.assembler.admit_until

    @rule()
    def crash(self) -> None:
        """Everything in memory is gone; the log, the published rejections and the checkpoint are not."""
        saved = self.saved
        self.batch = None
        self.assembler = Assembler(
            self.rules,
            version=saved.version,
            account=saved.account.copy(),
            temperature=1.0,
            next_offsets=dict(saved.read_from),
            reread_below=dict(saved.seen_until),
        )
        self.assembler.outbox.extend(saved.outbox)
        for rejection in self.published:
            self.assembler.replay(rejection)
        assert self.assembler.admit_until >= self.published_admit
        for partition, verdicts in self.log.items():
            start = saved.read_from.get(partition, 0)
            for offset, verdict in enumerate(verdicts[start:], start):
                self.assembler.offer(verdict, self.now, Position(partition, offset))

    # What holds after every event

    @invariant()
    def nothing_trained_twice(self) -> None:
        trained = Counter(sample_id for step in self.steps for sample_id in step)
        assert not [sample_id for sample_id, times in trained.items() if times > 1]

    @invariant()
    def every_sample_is_accounted_for_once(self) -> None:
        ends: dict[str, str] = {sample_id: "trained" for step in self.steps for sample_id in step}
        for rejection in [*self.published, *self.assembler.outbox]:
            for sample_id in rejection.sample_ids:
                end = END_OF[rejection.why]
                assert ends.setdefault(sample_id, end) == end, f"{sample_id} is {ends[sample_id]} and {end}"
        held = {sample.verdict.sample_id for group in self.assembler._held() for sample in group.samples.values()}
        closed = (*self.assembler._ready.values(), *self.assembler._training.values())
        held |= {group.sample_id(index) for group in closed for index in group.missing}
        seen = {v.sample_id for verdicts in self.log.values() for v in verdicts if v.run_id == "run" and v.index >= 0}
        assert not held & ends.keys()
        assert seen <= held | ends.keys()
        counters = self.assembler.account.counters
        counts = Counter(ends.values())
        assert (counters.trained, counters.rejected, counters.filtered, counters.failed) == (
            counts["trained"],
            counts["rejected"],
            counts["filtered"],
            counts["failed"],
        )

    def teardown(self) -> None:
        """Nothing deadlocks: with time, every admitted ordinal that was ever spoken of or overtaken is settled."""
        self.batch = None
        self.crash()
        for _ in range(60):
            self.now += 40.0 * 2**10
            self.assembler.tick(self.now)
            batch = self.assembler.cut()
            if batch is not None:
                self.assembler.commit(batch)
        assert self.assembler.open_groups == 0
        assert self.assembler.ready_groups < self.rules.groups_per_step


Machine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAssembler = Machine.TestCase
