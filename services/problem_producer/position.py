"""Where a run stands, read from the `problems` topic itself: there is no other record of it that could disagree.

A producer killed in the middle of a burst may have had ordinal 105 acknowledged and 104 not, in another partition.
Since it waits for acknowledgement of every :data:`WINDOW` problems, such holes lie within the last ``WINDOW``
ordinals; whoever resumes fills them first. What is older and missing was removed by the topic's retention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.errors import BadInput
from gristmill.messages import Message, Problem, parse_group_id
from gristmill.reader import TopicReader
from gristmill.topics import Topic
from problem_producer.sequence import DIGEST_KEY

WINDOW = 256
"""Problems that may be unacknowledged at once."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run has come."""

    highest: int
    """Largest ordinal in the log, 0 for a run that has not begun."""
    missing: tuple[int, ...]
    """Ordinals below it that a killed producer left out, rising."""
    digest: str | None
    """Digest of the settings that the highest problem was made with; None where it does not say."""


def find_position(common: CommonConfig, codec: Codec, topic: Topic) -> Position:
    """Read the whole topic once. Keys are enough, so records are not decoded, but for the highest one.

    Raises:
        InfrastructureError: the cluster does not answer, or lacks the topic.
        DecodeError: the run's highest problem cannot be decoded.
    """
    highest, value = 0, b""
    recent: set[int] = set()
    with TopicReader[Message](common, codec, replace(topic, message=None)) as reader:
        for record in reader.read_to_end():
            ordinal = _ordinal(record.key, common.run_id)
            if ordinal <= highest - WINDOW or record.value is None:
                continue
            recent.add(ordinal)
            if ordinal > highest:
                highest, value = ordinal, record.value
                if len(recent) > 2 * WINDOW:
                    recent = {seen for seen in recent if seen > highest - WINDOW}
    if highest == 0:
        return Position(0, (), None)
    missing = tuple(n for n in range(max(1, highest - WINDOW + 1), highest) if n not in recent)
    return Position(highest, missing, codec.decode(value, Problem).metadata.get(DIGEST_KEY))


def _ordinal(key: str | None, run_id: str) -> int:
    """Ordinal of a key of this run, 0 for any other key."""
    if key is None or not key.startswith(f"{run_id}:"):
        return 0
    try:
        return parse_group_id(key)[1]
    except BadInput:
        return 0
