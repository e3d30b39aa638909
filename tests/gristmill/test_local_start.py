"""How the runner fails to start, and how a user stops it before it runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from gristmill.broker import free_port
from gristmill.errors import ConfigError, GristmillError, InfrastructureError
from gristmill.local import helpers, line
from gristmill.local.helpers import Helpers, Interrupt, StoppedByUser, catch_interrupt
from gristmill.local.line import make_run_dir, open_line
from gristmill.local.options import LineOptions, resolve


def as_script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let helper commands run a script of ours instead."""
    monkeypatch.setattr(helpers, "gristmill_command", lambda *_: [sys.executable, "-c", text])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    resolved = resolve(LineOptions(flags={"data_dir": str(tmp_path / "file" / "data")}), "r")
    with pytest.raises(ConfigError, match=r"data_dir .*file/data: cannot write .*Not a directory.*--data_dir"):
        make_run_dir(resolved)


def test_a_cluster_that_does_not_answer_is_noticed_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "CLUSTER_TIMEOUT_S", 0.5)
    as_script(monkeypatch, "raise SystemExit('prepared too early')")
    options = LineOptions(bootstrap=f"127.0.0.1:{free_port()}", flags={"data_dir": str(tmp_path)})
    with (
        pytest.raises(InfrastructureError, match=r"does not answer within 0\.5 s .*--bootstrap"),
        open_line(resolve(options, "r"), lambda _: None, Interrupt()),
    ):
        pass


def test_a_signal_ends_a_helper_and_says_what_it_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    as_script(
        monkeypatch,
        f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(60)",
    )

    def interrupt_when_it_runs() -> None:
        while not pid_file.exists() or not pid_file.read_text():
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with catch_interrupt() as interrupt:
        threading.Thread(target=interrupt_when_it_runs, daemon=True).start()
        with pytest.raises(StoppedByUser, match="stopped while preparing the policy"):
            Helpers(interrupt).run(["policy", "prepare"], "preparing the policy")
        with pytest.raises(StoppedByUser):
            Helpers(interrupt).run(["policy", "prepare"], "preparing the policy")
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_a_helper_gets_the_secrets_and_its_failure_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Helpers(Interrupt(), {"GRISTMILL_SECURITY__SASL_PASSWORD": "hidden"})
    as_script(monkeypatch, "import os; print(os.environ['GRISTMILL_SECURITY__SASL_PASSWORD'])")
    assert tools.run([], "asking") == "hidden\n"
    as_script(monkeypatch, "raise SystemExit('no such thing')")
    with pytest.raises(GristmillError, match=r"asking failed with status 1:\n    no such thing"):
        tools.run([], "asking")
