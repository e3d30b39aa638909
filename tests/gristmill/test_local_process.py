"""Supervised processes: a death is named, shown and never mistaken for success."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gristmill.errors import GristmillError
from gristmill.local import process
from gristmill.local.process import Part, PartDied, group_members, wait_until


def part(tmp_path: Path, code: str, *, may_finish: bool = False) -> Part:
    return Part("the_part", [sys.executable, "-c", code], tmp_path / "part.log", may_finish=may_finish)


def wait_for_end(item: Part) -> None:
    deadline = time.monotonic() + 20
    while item.status is None and time.monotonic() < deadline:
        time.sleep(0.02)


def test_death_names_the_part_its_status_and_last_lines(tmp_path: Path) -> None:
    item = part(tmp_path, "print('one'); print('the engine is gone'); raise SystemExit(3)")
    item.start()
    wait_for_end(item)
    with pytest.raises(PartDied) as caught:
        item.check()
    text = str(caught.value)
    assert "the_part exited with status 3" in text
    assert "the engine is gone" in text
    assert str(item.log) in text


def test_death_by_signal_is_named(tmp_path: Path) -> None:
    item = part(tmp_path, "import time; time.sleep(60)")
    item.start()
    assert item.pid is not None
    os.kill(item.pid, signal.SIGKILL)
    wait_for_end(item)
    with pytest.raises(PartDied, match="was killed by SIGKILL"):
        item.check()


def test_status_zero_is_a_death_unless_the_part_may_finish(tmp_path: Path) -> None:
    for may_finish in (False, True):
        item = part(tmp_path, "pass", may_finish=may_finish)
        item.start()
        wait_for_end(item)
        if may_finish:
            item.check()
            assert item.finished
        else:
            with pytest.raises(PartDied, match="status 0"):
                item.check()


def test_stop_terminates_then_kills(tmp_path: Path) -> None:
    willing = part(tmp_path, "import time\ntime.sleep(60)")
    willing.start()
    assert willing.stop(10) == -signal.SIGTERM
    deaf = part(
        tmp_path, "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(60)"
    )
    deaf.start()
    while "deaf" not in deaf.tail():
        time.sleep(0.02)
    assert deaf.stop(0.3) == -signal.SIGKILL


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from gristmill.local.process import Part
item = Part("child", [sys.executable, "-c", "import time; time.sleep(300)"], Path({str(tmp_path / "c.log")!r}))
item.start()
print(item.pid, flush=True)
time.sleep(300)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the child outlived its killed parent"
        time.sleep(0.05)


def test_waiting_ends_with_the_death_of_a_part_or_the_deadline(tmp_path: Path) -> None:
    dead = part(tmp_path, "raise SystemExit('no model here')")
    dead.start()
    with pytest.raises(PartDied, match="no model here"):
        wait_until(lambda: False, [dead], 20, "the engine")
    with pytest.raises(GristmillError, match="the engine was not ready after 0 s"):
        wait_until(lambda: False, [], 0.1, "the engine")


FAMILY = """
import os, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
children = [subprocess.Popen([sys.executable, "-c", code]) for code in (deaf, "import time; time.sleep(300)")]
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
print("family", *[child.pid for child in children], flush=True)
{then}
"""


def family(tmp_path: Path, then: str) -> tuple[Part, list[int]]:
    """A part with two children, which ends itself as SGLang does; and the children's ids."""
    item = Part("server", [sys.executable, "-c", FAMILY.format(then=then)], tmp_path / "f.log", has_children=True)
    item.start()
    deadline = time.monotonic() + 20
    while not {"deaf", "family"} <= {line.partition(" ")[0] for line in item.tail()}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    line = next(line for line in item.tail() if line.startswith("family"))
    return item, [int(word) for word in line.split()[1:]]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("then", ["time.sleep(300)", "time.sleep(0.2); raise SystemExit(3)"])
def test_children_of_a_part_do_not_outlive_it(then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when it is stopped, which counts as clean however it ends, nor when it dies on its own."""
    monkeypatch.setattr(process, "CHILDREN_S", 0.5)
    item, children = family(tmp_path, then)
    if "raise" in then:
        wait_for_end(item)
        with pytest.raises(PartDied, match="server exited with status 3"):
            item.check()
        assert item.stop(10) == 3
    else:
        assert item.stop(10) == 0
    assert all(gone(pid) for pid in children)
    assert item.pid is not None
    assert group_members(item.pid) == []


def test_a_part_with_children_that_has_to_be_killed_is_reported(tmp_path: Path) -> None:
    item, children = family(
        tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('calm', flush=True); time.sleep(300)"
    )
    while "calm" not in item.tail():
        time.sleep(0.02)
    assert item.stop(0.3) == -signal.SIGKILL
    assert all(gone(pid) for pid in children)


def test_what_was_not_ready_in_time_shows_the_end_of_its_log(tmp_path: Path) -> None:
    slow = part(tmp_path, "import time; print('still loading', flush=True); time.sleep(60)")
    slow.start()
    while "still loading" not in slow.tail():
        time.sleep(0.02)
    try:
        with pytest.raises(GristmillError, match=r"(?s)the engine was not ready after 0 s\. .*still loading"):
            wait_until(lambda: False, [slow], 0.1, "the engine")
    finally:
        slow.stop(10)
