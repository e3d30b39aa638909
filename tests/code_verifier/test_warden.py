"""The warden's parts that are safe on a host: it refuses to run there, and it removes what programs leave."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from code_verifier.inside import cleaning, warden


def test_refuses_to_be_anything_but_pid_1() -> None:
    done = subprocess.run([sys.executable, warden.__file__], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "PID 1" in done.stderr


def _empty(folder: Path, seconds: float = 60.0) -> None:
    cleaning.empty(str(folder), 0o700, time.monotonic() + seconds)


def test_everything_is_removed_and_nothing_beside_it(tmp_path: Path) -> None:
    folder, outside = tmp_path / "tmp", tmp_path / "outside"
    folder.mkdir(mode=0o700)
    outside.mkdir()
    (outside / "kept").write_text("x")
    (folder / "a" / "b" / "c").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("x")
    (folder / "a" / "link").symlink_to(outside)
    (folder / "to").symlink_to(outside, target_is_directory=True)
    (folder / "loop").symlink_to(folder)
    (folder / ".gristmill-1").mkdir()
    (folder / ".gristmill-1" / ".gristmill-2").mkdir()
    (folder / ".gristmill-1" / ".gristmill-2" / "x").mkdir()
    os.mkfifo(folder / "a" / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder / "a" / "s"))
    (folder / "a" / "b").chmod(0)
    (folder / "a").chmod(0)
    folder.chmod(0o500)
    _empty(folder)
    assert list(folder.iterdir()) == []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (outside / "kept").read_text() == "x"


def test_depth_beyond_any_path_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o700)
    at = os.open(folder, os.O_RDONLY)
    for number in range(1500):
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        if number % 100 == 0:
            os.close(os.open("f", os.O_CREAT, dir_fd=below))
        os.close(at)
        at = below
    os.close(at)
    _empty(folder)
    assert list(folder.iterdir()) == []


def test_too_much_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o700)
    (folder / "x").touch()
    with pytest.raises(cleaning.Litter, match="too much"):
        _empty(folder, -1.0)
    assert cleaning.clean({str(tmp_path / "gone"): 0o700}, {}) is not None
