"""Files that commands write: whole or not at all."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.cli import build
from gristmill.cli.output import complete_file
from gristmill.errors import BadInput


def test_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    with complete_file(target) as out:
        out.write("half a pair: \ud800\n")
        assert not target.exists()
    assert target.read_text(encoding="utf-8") == "half a pair: \\ud800\n"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_nothing_is_left_of_what_does_not_end(tmp_path: Path, error: type[BaseException]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error), complete_file(tmp_path / "out.jsonl"):
        raise error
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    source = (
        "import pathlib, signal, sys, time\nfrom gristmill.cli.output import complete_file\n"
        # A suite that runs in the background of a shell has it ignored, and children inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with complete_file(pathlib.Path(sys.argv[1])) as out:\n    print('in', flush=True)\n    time.sleep(60)\n"
    )
    arguments = [sys.executable, "-c", source, str(tmp_path / "out.jsonl")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        process.send_signal(number)
        assert process.wait(20) != 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["folder", "folder/", "none/out.jsonl"])
def test_target_that_cannot_be(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput), complete_file(tmp_path / target):
        raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("kind", ["code", "math"])
def test_verify_into_a_folder(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("{}\n", encoding="utf-8")
    outcome = CliRunner().invoke(build(), ["verify", kind, "--in", str(source), "--out", str(tmp_path)])
    assert isinstance(outcome.exception, BadInput)
    assert "is a directory" in str(outcome.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    assert not list(tmp_path.parent.glob("*.part"))
