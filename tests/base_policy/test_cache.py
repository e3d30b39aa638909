"""The cache of prepared policies: built once, whole or absent."""

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from base_policy.cache import content_key, copy_to, obtain
from gristmill.errors import ConfigError


def build_slowly(folder: Path) -> None:
    (folder / "part").write_text("1")
    time.sleep(0.3)
    (folder / "sub").mkdir()
    (folder / "sub" / "whole").write_text(str(os.getpid()))


def contend(root: str, builds: str) -> None:
    def build(folder: Path) -> None:
        with Path(builds).open("a") as file:
            file.write("x")
        build_slowly(folder)

    path, _ = obtain(Path(root), "tiny", "k", build)
    assert (path / "sub" / "whole").exists()


def hang(root: str, started: Event) -> None:
    def build(folder: Path) -> None:
        (folder / "part").write_text("1")
        started.set()
        time.sleep(60)

    obtain(Path(root), "tiny", "k", build)


def test_many_processes_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    builds = tmp_path / "builds"
    processes = [context.Process(target=contend, args=(str(tmp_path / "cache"), str(builds))) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert builds.read_text() == "x"


def test_found_the_second_time(tmp_path: Path) -> None:
    first, built = obtain(tmp_path, "tiny", "k", build_slowly)
    assert built
    assert first == tmp_path / "tiny-k"
    assert obtain(tmp_path, "tiny", "k", pytest.fail) == (first, False)


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "part").write_text("1")
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        obtain(tmp_path, "tiny", "k", fail)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert obtain(tmp_path, "tiny", "k", build_slowly)[1]


def test_a_killed_build_is_cleared_away(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    process = context.Process(target=hang, args=(str(tmp_path), started))
    process.start()
    assert started.wait(30)
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
    path, built = obtain(tmp_path, "tiny", "k", build_slowly)
    assert built
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [path]


def test_copies_whole_or_not(tmp_path: Path) -> None:
    source, _ = obtain(tmp_path / "cache", "tiny", "k", build_slowly)
    copy_to(source, tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "whole").read_text() == (source / "sub" / "whole").read_text()
    with pytest.raises(ConfigError, match="exists already"):
        copy_to(source, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    copy_to(source, tmp_path / "empty")
    assert (tmp_path / "empty" / "part").exists()


def test_keys_depend_on_the_content_alone() -> None:
    assert content_key({"a": 1, "b": [2, 3]}) == content_key({"b": [2, 3], "a": 1})
    assert content_key({"a": 1}) != content_key({"a": 2})
