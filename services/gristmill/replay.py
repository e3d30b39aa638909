"""Replays the topics of a run into the ledger."""

from __future__ import annotations

from gristmill.audit import Ledger, Report
from gristmill.config import CommonConfig
from gristmill.reader import read_all
from gristmill.registry import open_codec
from gristmill.topics import Topic, Topics


def audited_topics(topics: Topics) -> tuple[Topic, ...]:
    """The topics that say where samples began and ended, in an order that never shows an end before its beginning."""
    return (
        topics.completions_math,
        topics.completions_code,
        topics.verdicts,
        topics.rejections,
        topics.training,
        topics.policies,
    )


def audit_run(common: CommonConfig) -> Report:
    """Read everything that was written of run ``common.run_id`` and close its books.

    Undecodable records are passed over: they are on the dead letters of the service that met them.

    Raises:
        InfrastructureError: the cluster does not answer, or the topics do not exist.
    """
    codec = open_codec(common)
    ledger = Ledger(common.run_id)
    for topic in audited_topics(Topics(common.topic_prefix)):
        for record in read_all(common, codec, topic, topic.message):
            if record.message is not None:
                ledger.add(record.message)
    return ledger.report()
