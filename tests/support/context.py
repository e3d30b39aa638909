"""Contexts, topics and messages for tests."""

from __future__ import annotations

from typing import Any, TypeVar

from confluent_kafka.admin import AdminClient

from gristmill.codec import Codec
from gristmill.config import CommonConfig, Section
from gristmill.kafka import admin_config
from gristmill.messages import Problem, Sampling, make_group_id
from gristmill.service import ServiceContext
from gristmill.topics import Topics, apply

C = TypeVar("C", bound=Section)


def make_context(
    bootstrap: str, prefix: str, config: C | None = None, *, name: str = "test", partitions: int = 4, **common: Any
) -> ServiceContext[C]:
    """A service context on a broker, as ``gristmill run`` would make it. Creates no topics."""
    shared = CommonConfig(bootstrap=bootstrap, topic_prefix=prefix, **common)
    return ServiceContext(
        name=name,
        config=config if config is not None else Section(),  # type: ignore[arg-type]
        common=shared,
        codec=Codec(),
        topics=Topics(prefix, partitions),
    )


def apply_topics(bootstrap: str, prefix: str, partitions: int = 4) -> Topics:
    """Create all topics under ``prefix``."""
    topics = Topics(prefix, partitions)
    apply(AdminClient(admin_config(CommonConfig(bootstrap=bootstrap))), topics)
    return topics


def make_problem(ordinal: int, run_id: str = "run", **over: Any) -> Problem:
    """A small math problem."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "ordinal": ordinal,
        "group_id": make_group_id(run_id, ordinal),
        "problem_id": f"p{ordinal}",
        "kind": "math",
        "prompt": "1 + 1 =",
        "reference": "2",
        "source": "test",
        "group_size": 4,
        "sampling": Sampling(temperature=1.0, max_new_tokens=8),
        "created_at_ms": 1,
    }
    return Problem(**values | over)
