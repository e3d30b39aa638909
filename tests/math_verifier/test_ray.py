"""What only the pool of Ray actors can suffer: lost actors, deaf ones, clusters of others, a killed owner."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gristmill.errors import InfrastructureError
from gristmill.publisher import Publisher
from math_verifier.config import MathConfig, MathPolicy
from support.context import apply_topics, make_context
from support.math import HANGS, all_verdicts, completion
from support.processes import Process, gristmill, wait_until

pytest.importorskip("ray", reason="Ray is not installed: pip install 'gristmill[math-ray]'")

from math_verifier import pool_ray
from math_verifier.pool_base import Limits
from math_verifier.pool_ray import RayPool

POLICY = MathPolicy()
HANG = (HANGS[1], HANGS[0])


@pytest.fixture(scope="module")
def actors(ray_cluster: Any) -> Iterator[RayPool]:
    with RayPool(1, limits=Limits(time_limit_s=3.0)) as running:
        yield running


def kill_actor(pool: RayPool, number: signal.Signals = signal.SIGKILL) -> None:
    wait_until(lambda: bool(pool.actor_pids), 30, "an actor")
    os.kill(pool.actor_pids[0], number)


def test_a_check_whose_actor_is_killed_is_tried_again(actors: RayPool) -> None:
    crashed, (actor,) = actors.counts.crashed, actors.actor_pids
    workers = [child.pid for child in psutil.Process(actor).children(recursive=True)]
    hung = actors.submit(*HANG, POLICY)
    others = [actors.submit("x+1", f"{number}-{number}+1+x", POLICY) for number in range(20)]
    time.sleep(0.3)
    kill_actor(actors)
    assert hung.result(60).status == "timeout"
    assert [future.result(60).status for future in others] == ["correct"] * 20
    assert actors.counts.crashed == crashed + 1
    assert actors.broken() is None
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in workers), 15, "the end of the lost actor's workers")


def test_a_check_that_loses_two_actors_is_an_error(actors: RayPool) -> None:
    assert actors.submit("x+1", "1+x", POLICY).result(60).status == "correct"
    first = actors.actor_pids
    hung = actors.submit(*HANG, POLICY)
    time.sleep(0.2)
    kill_actor(actors)
    wait_until(lambda: actors.actor_pids not in ([], first), 60, "a new actor")
    kill_actor(actors)
    outcome = hung.result(60)
    assert (outcome.status, outcome.stage) == ("error", "limit")
    assert "twice" in outcome.reason
    assert actors.submit("x+1", "1+x", POLICY).result(60).status == "correct"


def test_an_actor_that_does_not_answer_is_given_up(actors: RayPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_ray, "GRACE_S", 0.5)
    assert actors.submit("x+1", "1+x", POLICY).result(60).status == "correct"
    (deaf,) = actors.actor_pids
    kill_actor(actors, signal.SIGSTOP)
    assert actors.submit("x+1", "1+x", POLICY).result(60).status == "correct"
    wait_until(lambda: not psutil.pid_exists(deaf), 15, "the end of the deaf actor")


def test_where_no_actor_can_be_had_the_caller_is_told_and_health_shows_it(
    actors: RayPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of infrastructure: the service's worker loop tries the completion again."""

    def none(_: RayPool) -> Any:
        raise ConnectionError("no such cluster")

    with monkeypatch.context() as patch:
        patch.setattr(RayPool, "new_actor", none)
        kill_actor(actors)
        with pytest.raises(InfrastructureError, match="no such cluster"):
            actors.submit("x+1", "1+x", POLICY).result(60)
        assert "no such cluster" in (actors.broken() or "")
    assert actors.submit("x+1", "1+x", POLICY).result(60).status == "correct"
    assert actors.broken() is None


def driver(what: str, tmp_path: Path) -> Process:
    return Process([sys.executable, str(Path(__file__).with_name("ray_driver.py")), what], tmp_path / "driver.log")


def steps(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.text().splitlines() if line.startswith("{") and line.endswith("}")]


def test_a_cluster_of_our_own_listens_on_loopback_and_goes_with_us(tmp_path: Path) -> None:
    with driver("own", tmp_path) as process:
        assert process.wait(90) == 0, process.text()
        first, second = steps(process)
    assert first["status"] == "correct"
    assert first["broken"] is None
    assert first["caught"] == [signal.SIGTERM]
    assert "SIGTERM" not in process.text()
    assert first["listening"]
    assert all(address in {"127.0.0.1", "::1", "::ffff:127.0.0.1"} for address in first["listening"])
    assert second == {"left": [], "initialized": False}


def test_a_cluster_of_others_stays_and_a_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    with driver("theirs", tmp_path) as process:
        wait_until(lambda: len(steps(process)) == 3 or process.status is not None, 90)
        assert process.status is None, process.text()
        full, used, hung = steps(process)
        assert "did not come up in 4 s" in full["full"]
        assert used == {"status": "correct", "initialized": True, "resources": 1.0}
        children = [psutil.Process(pid) for pid in hung["pids"] if psutil.pid_exists(pid)]
        # Ray's two agents look for their dead cluster for about a minute more, on loopback; they run no check.
        agents = [child for child in children if child.name().endswith("Agent") or "Agent" in child.cmdline()[0]]
        rest = [child.pid for child in children if child not in agents]
        assert len(rest) >= 6
        process.kill()
    try:
        wait_until(lambda: not any(running(pid) for pid in rest), 30, "the end of every process")
    finally:
        for agent in agents:
            if agent.is_running():
                agent.kill()


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_service_by_environment(embedded_broker: Any, prefix: str, tmp_path: Path) -> None:
    """``GRISTMILL_MATH__POOL=ray gristmill run math_verifier``, from the first completion to SIGTERM."""
    apply_topics(embedded_broker.bootstrap, prefix)
    ctx = make_context(embedded_broker.bootstrap, prefix, MathConfig())
    sent = [
        completion(1, index, f"so \\boxed{{\\frac{{1}}{{2}}x-\\frac{{{index}}}{{8}}x}}", "x/2") for index in range(8)
    ]
    sent.append(completion(2, 0, f"\\boxed{{{HANG[1]}}}", HANG[0]))
    with Publisher(ctx.common, ctx.codec) as publisher:
        for item in sent:
            publisher.publish(ctx.topics.completions_math, item, {"sample_id": item.sample_id})
        publisher.flush_acked(30)
    environ = {
        "GRISTMILL_BOOTSTRAP": ctx.common.bootstrap,
        "GRISTMILL_TOPIC_PREFIX": prefix,
        "GRISTMILL_MATH__POOL": "ray",
        "GRISTMILL_MATH__WORKERS": "1",
        "GRISTMILL_MATH__TIME_LIMIT_S": "1",
    }
    with gristmill("run", "math_verifier", log=tmp_path / "service.log", environ=environ) as service:
        wait_until(lambda: len(all_verdicts(ctx)) == len(sent) or service.status is not None, 90)
        assert service.status is None, service.text()
        children = psutil.Process(service.pid).children(recursive=True)
        assert any(child.name().startswith("raylet") for child in children)
        service.terminate()
        assert service.wait(60) == 0, service.text()
    found = {verdict.sample_id: verdict.status for verdict in all_verdicts(ctx)}
    assert [found[item.sample_id] for item in sent] == ["correct", *["wrong"] * 7, "timeout"]
    assert "*** SIGTERM" not in service.text()
    wait_until(lambda: not any(running(child.pid) for child in children), 30, "the end of every process")
