"""The producer on a real broker: order, resumption after kill -9, bounded lead, dead letters."""

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gristmill.errors import ConfigError
from gristmill.messages import PolicyVersion, Problem
from gristmill.publisher import Publisher
from gristmill.reader import TopicReader, read_all
from gristmill.service import ServiceContext
from problem_producer.config import ProblemsConfig
from problem_producer.position import WINDOW, find_position
from problem_producer.producer import run_producer
from problem_producer.sequence import ProblemSequence
from problem_producer.service import SERVICE
from support.context import apply_topics, make_context
from support.processes import Process, wait_until

RUN = "run"


def context_for(broker: Any, prefix: str, section: dict[str, Any]) -> ServiceContext[ProblemsConfig]:
    config = ProblemsConfig.model_validate({"max_ahead": None, **section})
    return make_context(broker.bootstrap, prefix, config, name="problem_producer", run_id=RUN)


def timeless(problem: Problem) -> Problem:
    return msgspec.structs.replace(problem, created_at_ms=0)


def in_log(context: ServiceContext[ProblemsConfig]) -> dict[int, Problem]:
    """Problems of the run by ordinal; copies must be equal."""
    found: dict[int, Problem] = {}
    for record in read_all(context.common, context.codec, context.topics.problems, Problem):
        assert record.message is not None
        assert record.key == record.message.group_id
        if record.message.run_id == RUN:
            problem = timeless(record.message)
            assert found.setdefault(problem.ordinal, problem) == problem
    return found


def expected(section: dict[str, Any], count: int | None = None) -> dict[int, Problem]:
    sequence = ProblemSequence(ProblemsConfig.model_validate(section), RUN)
    size = sequence.size if count is None else count
    assert size is not None
    return {p.ordinal: timeless(p) for p, _ in zip(sequence.starting_at(1), range(size), strict=False)}


@contextmanager
def running(context: ServiceContext[ProblemsConfig]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=run_producer, args=(context,))
    thread.start()
    try:
        yield thread
    finally:
        context.stop.set()
        thread.join(30)
        assert not thread.is_alive()


def value(context: ServiceContext[ProblemsConfig], name: str, **labels: str) -> float:
    return context.metrics.registry.get_sample_value(f"gristmill_{name}", labels) or 0.0


CHILD = """
import sys
from support.context import make_context
from problem_producer.config import ProblemsConfig
from problem_producer.producer import run_producer
bootstrap, prefix, config = sys.argv[1:]
section = ProblemsConfig.model_validate_json(config)
run_producer(make_context(bootstrap, prefix, section, name="problem_producer", run_id="run"))
"""


def test_kills_at_any_moment_leave_the_same_sequence(broker: Any, prefix: str, tmp_path: Path) -> None:
    apply_topics(broker.bootstrap, prefix)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"problem": f"q{n}", "answer": n}) + "\n" for n in range(1000)))
    section = {
        "sources": [{"spec": f"jsonl:{rows}", "weight": 2}, "arithmetic:levels=1-3,limit=500"],
        "epochs": 2,
        "max_ahead": None,
    }
    context = context_for(broker, prefix, section)
    config = ProblemsConfig.model_validate(section).model_dump_json()
    chance = random.Random(prefix)
    status: int | None = None
    kills = 0
    while status is None:
        command = [sys.executable, "-c", CHILD, broker.bootstrap, prefix, config]
        with Process(command, tmp_path / "log") as child:
            if kills < 2:
                with TopicReader(context.common, context.codec, context.topics.problems, start="end") as reader:
                    wait_until(lambda child=child, reader=reader: child.status is not None or bool(reader.poll(0)))
                time.sleep(chance.uniform(0, 0.3))
                status = child.status
                child.kill()
                kills += status is None
            else:
                assert child.wait(60) == 0, child.text()
                status = 0
    assert status == 0
    assert in_log(context) == expected(section)


def test_holes_of_a_killed_predecessor_are_filled(embedded_broker: Any, prefix: str) -> None:
    apply_topics(embedded_broker.bootstrap, prefix)
    section = {"sources": ["arithmetic:levels=1-2", "arithmetic:levels=3"], "max_problems": 700}
    context = context_for(embedded_broker, prefix, section)
    whole = expected(section)
    lost = {700 - WINDOW, 500, 501, 640, 648}
    with Publisher(context.common, context.codec) as publisher:
        for ordinal in range(1, 651):
            if ordinal not in lost:
                publisher.publish(context.topics.problems, whole[ordinal])
        publisher.publish(
            context.topics.problems, msgspec.structs.replace(whole[1], run_id="other", group_id="other:00000900")
        )
        publisher.publish_raw(context.topics.problems, "run:not-a-number", b"garbage")
        publisher.publish_raw(context.topics.problems, None, b"garbage")
    position = find_position(context.common, context.codec, context.topics.problems)
    assert (position.highest, position.missing) == (650, tuple(sorted(lost)))
    run_producer(context)
    assert find_position(context.common, context.codec, context.topics.problems).missing == ()
    assert value(context, "problem_ordinal") == 700
    assert context.health.ready() == (True, "done")
    seen = {
        record.message.ordinal
        for record in read_all(context.common, context.codec, context.topics.problems, Problem)
        if record.message is not None and record.message.run_id == RUN
    }
    assert seen == set(range(1, 701))
    # A run that is done sends nothing more.
    run_producer(again := context_for(embedded_broker, prefix, section))
    assert value(again, "problems_produced_total", source="arithmetic") == 0


def test_another_configuration_is_refused_unless_told(embedded_broker: Any, prefix: str) -> None:
    apply_topics(embedded_broker.bootstrap, prefix)
    run_producer(context_for(embedded_broker, prefix, {"sources": "arithmetic:levels=1", "max_problems": 5}))
    changed = {"sources": "arithmetic:levels=2", "max_problems": 8}
    with pytest.raises(ConfigError, match="begun with other problem settings"):
        run_producer(context_for(embedded_broker, prefix, changed))
    context = context_for(embedded_broker, prefix, changed | {"on_config_change": "continue"})
    run_producer(context)
    assert [in_log(context)[n].difficulty for n in range(1, 9)] == [1.0] * 5 + [2.0] * 3


def announce(context: ServiceContext[ProblemsConfig], admit_until: int, run_id: str = RUN) -> None:
    version = PolicyVersion(
        run_id=run_id,
        version=0,
        step=0,
        name=f"{run_id}-v0",
        base_model="m",
        kind="lora",
        uri="file:///x",
        sha256="0",
        admit_until=admit_until,
        settled_groups=0,
        trained=0,
        rejected=0,
        filtered=0,
        failed=0,
        max_staleness=0,
        groups_per_step=1,
        published_at_ms=0,
    )
    with Publisher(context.common, context.codec) as publisher:
        publisher.publish(context.topics.policies, version)


def test_the_lead_over_the_trainer_is_bounded(broker: Any, prefix: str) -> None:
    apply_topics(broker.bootstrap, prefix)
    context = context_for(broker, prefix, {"sources": "arithmetic:levels=1", "max_ahead": 10})

    def stands_at(ordinal: int) -> None:
        wait_until(lambda: value(context, "problem_ordinal") >= ordinal, what=f"ordinal {ordinal}")
        time.sleep(0.3)
        assert value(context, "problem_ordinal") == ordinal
        assert sorted(in_log(context)) == list(range(1, ordinal + 1))

    with running(context):
        stands_at(10)
        assert context.health.ready() == (True, "waiting for a trainer")
        announce(context, 1000, run_id="other")
        stands_at(10)
        announce(context, 8)
        stands_at(18)
        assert context.health.ready() == (True, "sending")
        announce(context, 12)
        stands_at(22)
    # A new process knows the credit from the start.
    again = context_for(broker, prefix, {"sources": "arithmetic:levels=1", "max_ahead": 14})
    with running(again):
        wait_until(lambda: value(again, "problem_ordinal") == 26)


def test_malformed_rows_become_dead_letters_once(embedded_broker: Any, prefix: str, tmp_path: Path) -> None:
    apply_topics(embedded_broker.bootstrap, prefix)
    path = tmp_path / "train.jsonl"
    huge = b'{"question": "' + b"x" * 3_000_000 + b'"}'
    lines = [b'{"question": "1 + 1?", "answer": "#### 2"}', b"nonsense", b'{"question": "\xff"}', huge] * 2
    path.write_bytes(b"\n".join(lines))
    section = {"sources": [f"gsm8k:{path}"], "epochs": 3, "max_problems": 4}
    context = context_for(embedded_broker, prefix, section)
    run_producer(context)
    assert value(context, "malformed_rows_total", source="gsm8k") == 6
    assert value(context, "problems_produced_total", source="gsm8k") == 4
    assert [p.metadata["line"] for p in in_log(context).values()].count("1") == 2

    def letters() -> list[Any]:
        return list(read_all(context.common, context.codec, context.topics.dead_letters))

    found = letters()
    assert [record.header("line") for record in found] == ["2", "3", "4", "6", "7", "8"]
    assert [record.value for record in found[:2]] == lines[1:3]
    assert found[2].value == huge[: 1024 * 1024]
    assert found[2].header("truncated_from_bytes") == str(len(huge))
    first = found[0]
    assert (first.header("file"), first.header("source"), first.header("run_id")) == (str(path), "gsm8k", RUN)
    assert (first.header("service"), first.header("error_class")) == ("problem_producer", "MalformedRow")
    assert "not JSON" in (first.header("error") or "")
    run_producer(context_for(embedded_broker, prefix, section | {"max_problems": 6}))
    assert len(in_log(context)) == 6
    assert len(letters()) == 6


def test_a_stop_ends_it_with_everything_acknowledged(embedded_broker: Any, prefix: str) -> None:
    apply_topics(embedded_broker.bootstrap, prefix)
    context = context_for(embedded_broker, prefix, {"sources": "arithmetic:levels=1-3"})
    with running(context):
        wait_until(lambda: value(context, "problem_ordinal") > 300)
    assert sorted(in_log(context)) == list(range(1, int(value(context, "problem_ordinal")) + 1))
    assert context.health.ready()[1] != "done"


def test_trouble_with_the_cluster_is_waited_out(embedded_broker: Any, prefix: str) -> None:
    context = context_for(embedded_broker, prefix, {"sources": "arithmetic:levels=1", "max_problems": 20})
    with running(context) as thread:
        wait_until(lambda: "no such topic" in context.health.ready()[1], what="the complaint")
        assert not context.health.ready()[0]
        apply_topics(embedded_broker.bootstrap, prefix)
        thread.join(30)
        assert not thread.is_alive()
    assert len(in_log(context)) == 20


def test_the_service_is_declared() -> None:
    assert (SERVICE.name, SERVICE.section, SERVICE.config) == ("problem_producer", "problems", ProblemsConfig)


def test_holes_are_acknowledged_before_anything_new_is_sent(
    embedded_broker: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_topics(embedded_broker.bootstrap, prefix)
    section = {"sources": "arithmetic:levels=1", "max_problems": 400}
    context = context_for(embedded_broker, prefix, section)
    with Publisher(context.common, context.codec) as publisher:
        for ordinal, problem in expected(section, 60).items():
            if ordinal not in (20, 30):
                publisher.publish(context.topics.problems, problem)
    steps: list[int | str] = []
    publish, flush = Publisher.publish, Publisher.flush_acked

    def recorded(self: Publisher, topic: Any, message: Any) -> None:
        steps.append(message.ordinal)
        publish(self, topic, message)

    def flushed(self: Publisher) -> None:
        steps.append("flush")
        flush(self)

    monkeypatch.setattr(Publisher, "publish", recorded)
    monkeypatch.setattr(Publisher, "flush_acked", flushed)
    run_producer(context)
    assert steps[:4] == [20, 30, "flush", 61]
    waiting = 0
    for step in steps:
        waiting = 0 if step == "flush" else waiting + 1
        assert waiting <= WINDOW
