"""A stand-in for the rest of the line: answers credit on ``policies`` with verdicts, as generators and verifiers do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from trainer_synthetic import make_group

from gristmill.audit import Ledger, Report
from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.kafka import admin_config
from gristmill.messages import PolicyVersion, Rejection, TrainingStep, Verdict
from gristmill.publisher import Publisher
from gristmill.reader import TopicReader, read_all
from gristmill.service import ServiceContext
from gristmill.topics import Topics, apply
from grpo_trainer.config import TrainerConfig

MakeGroup = Callable[[int, int], Iterable[Verdict]]
"""Verdicts of a group, from its ordinal and the policy version that samples it."""


def default_group(ordinal: int, version: int) -> list[Verdict]:
    return make_group(ordinal, version=version)


class Line(threading.Thread):
    """Samples every admitted ordinal of its share with the newest version it has seen, like one generator."""

    def __init__(
        self,
        common: CommonConfig,
        *,
        make: MakeGroup = default_group,
        share: tuple[int, int] = (0, 1),
        first: int = 1,
        last: int = 10_000,
    ) -> None:
        """``share``: remainder and modulus of the ordinals that are this generator's."""
        super().__init__(daemon=True)
        self._common, self._make, self._share, self._last = common, make, share, last
        self._next = first
        self.ending = threading.Event()
        self.emitted: list[Verdict] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._answer()
        except Exception as error:  # noqa: BLE001 (shown by close)
            self.failure = error

    def _answer(self) -> None:
        codec, topics = Codec(), Topics(self._common.topic_prefix)
        version = -1
        with (
            TopicReader(self._common, codec, topics.policies, PolicyVersion) as reader,
            Publisher(self._common, codec) as publisher,
        ):
            while not self.ending.is_set():
                for record in reader.poll(0.02):
                    policy = record.message
                    assert policy is not None
                    version = max(version, policy.version)
                    while self._next <= min(policy.admit_until, self._last):
                        if self._next % self._share[1] == self._share[0]:
                            for verdict in self._make(self._next, version):
                                publisher.publish(topics.verdicts, verdict)
                                self.emitted.append(verdict)
                        self._next += 1
                publisher.flush_acked()

    def close(self) -> None:
        self.ending.set()
        self.join(30)
        if self.failure is not None:
            raise self.failure


def make_common(bootstrap: str, prefix: str, data_dir: Path, run_id: str = "run") -> CommonConfig:
    """Settings of a line of its own, its topics made."""
    common = CommonConfig(bootstrap=bootstrap, topic_prefix=f"{prefix}.", run_id=run_id, data_dir=data_dir)
    apply(AdminClient(admin_config(common)), Topics(common.topic_prefix, partitions=2))
    return common


def make_context(common: CommonConfig, policy_dir: Path, **config: Any) -> ServiceContext[TrainerConfig]:
    """Context of a trainer with small steps."""
    settings = {"groups_per_step": 2, "max_staleness": 0, "learning_rate": 1e-3, "lora": {"r": 4, "alpha": 8}}
    return ServiceContext(
        name="grpo_trainer",
        config=TrainerConfig(base_model=str(policy_dir), **(settings | config)),
        common=common,
        codec=Codec(),
        topics=Topics(common.topic_prefix),
    )


def steps_of(common: CommonConfig) -> list[TrainingStep]:
    """Distinct training steps in the log, by number."""
    topics = Topics(common.topic_prefix)
    found = {r.message.step: r.message for r in read_all(common, Codec(), topics.training, TrainingStep) if r.message}
    return [found[step] for step in sorted(found)]


def policies_of(common: CommonConfig) -> list[PolicyVersion]:
    """Every record of ``policies``, in order."""
    topics = Topics(common.topic_prefix)
    return [r.message for r in read_all(common, Codec(), topics.policies, PolicyVersion) if r.message]


def rejections_of(common: CommonConfig) -> list[Rejection]:
    """Every record of ``rejections``."""
    topics = Topics(common.topic_prefix)
    return [r.message for r in read_all(common, Codec(), topics.rejections, Rejection) if r.message]


def audit(common: CommonConfig) -> Report:
    """The books of the run, from the topics alone."""
    codec, topics, ledger = Codec(), Topics(common.topic_prefix), Ledger(common.run_id)
    for topic in (topics.verdicts, topics.rejections, topics.training, topics.policies):
        for record in read_all(common, codec, topic, topic.message):
            if record.message is not None:
                ledger.add(record.message)
    return ledger.report()
