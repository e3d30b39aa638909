"""The command line: quick and light at the start, clear when something is missing or unknown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from gristmill import __version__
from gristmill.cli import build, report_errors
from gristmill.errors import BadInput, ConfigError, MissingExtra

HEAVY = ("torch", "transformers", "trl", "peft", "ray", "sympy", "datasets", "pyarrow", "fastapi", "uvicorn", "httpx")


@pytest.fixture
def cli() -> Callable[..., Result]:
    app = build()

    def invoke(*arguments: str, **environ: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env=dict(environ))

    return invoke


def test_help_imports_nothing_heavy() -> None:
    script = f"""
import sys
from typer.testing import CliRunner
from gristmill.cli import build
done = CliRunner().invoke(build(), ["--help"])
assert done.exit_code == 0, done.output
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_names_the_commands_of_kernel_and_services(cli: Any) -> None:
    text = cli("--help").output
    for name in (
        "run",
        "up",
        "demo",
        "config",
        "schemas",
        "topics",
        "tap",
        "audit",
        "engine",
        "policy",
        "problems",
        "verify",
    ):
        assert name in text


@pytest.mark.parametrize("path", ["config", "schemas", "topics", "run", "config show", "schemas check", "topics apply"])
def test_every_kernel_command_has_help(cli: Any, path: str) -> None:
    done = cli(*path.split(), "--help")
    assert done.exit_code == 0
    assert "Usage" in done.output


def test_version(cli: Any) -> None:
    done = cli("--version")
    assert (done.exit_code, done.output.strip()) == (0, f"gristmill {__version__}")


def test_the_console_script_and_the_module_are_one() -> None:
    for command in (["-m", "gristmill"], ["-c", "from gristmill.cli import main; main()"]):
        done = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == f"gristmill {__version__}"


def test_an_unknown_service_is_refused_with_the_known_ones(cli: Any) -> None:
    error = cli("run", "math_verifer").exception
    assert isinstance(error, ConfigError)
    assert "math_verifier" in str(error)


def test_an_unknown_setting_is_refused(cli: Any) -> None:
    error = cli("run", "math_verifier", "--botstrap=x").exception
    assert isinstance(error, ConfigError)
    assert "did you mean bootstrap?" in str(error)


def test_a_missing_dependency_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from gristmill import cli as module

    points = [
        EntryPoint("lacking", "no_such_module.commands:app", "gristmill.commands"),
        EntryPoint("verify.lacking", "no_such_module.commands:app", "gristmill.commands"),
    ]
    monkeypatch.setattr(module, "entry_points", lambda group: points)
    app = build()
    assert "pip install 'gristmill" in CliRunner().invoke(app, ["--help"]).output.replace("\n", " ")
    for path in (["lacking"], ["verify", "lacking"]):
        error = CliRunner().invoke(app, path).exception
        assert isinstance(error, MissingExtra)
        assert "needs no_such_module, which is not installed: pip install 'gristmill[" in str(error)


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConfigError("key [x] is bad"), 2, "configuration error: key [x] is bad"),
        (BadInput("line 7 " + "is long " * 40), 1, "error: line 7 " + "is long " * 40),
    ],
)
def test_errors_on_purpose_are_one_line(
    error: Exception, status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        report_errors(fail)
    assert caught.value.code == status
    assert capsys.readouterr().err.strip() == text.strip()


def test_config_show_merges_masks_and_reads_back(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("run_id: from-file\nmetrics_port: 1\n")
    done = cli(
        "config", "show", f"--config={file}", "--metrics-port=9000",
        GRISTMILL_SECURITY__SASL_PASSWORD="hidden-thing", GRISTMILL_TOPIC_PREFIX="env.",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "hidden-thing" not in done.output
    shown = yaml.safe_load(done.output)
    assert (shown["run_id"], shown["metrics_port"], shown["topic_prefix"]) == ("from-file", 9000, "env.")
    assert shown["security"]["sasl_password"] == "***"
    file.write_text(done.output)
    assert cli("config", "show", f"--config={file}").exit_code == 0


def test_schemas_list_and_check(cli: Any) -> None:
    listed = cli("schemas", "list").output
    for name in ("problem", "completion", "verdict", "policy_version", "rejection", "training_step"):
        assert name in listed
    done = cli("schemas", "check")
    assert done.exit_code == 0, done.exception
    assert "6 schemas" in done.output


def test_topics_list_and_apply(cli: Any, embedded_broker: Any, prefix: str) -> None:
    assert f"{prefix}completions.math" in cli("topics", "list", GRISTMILL_TOPIC_PREFIX=prefix, COLUMNS="300").output
    arguments = ("topics", "apply", f"--bootstrap={embedded_broker.bootstrap}", f"--topic-prefix={prefix}")
    first = cli(*arguments, COLUMNS="300")
    assert first.exit_code == 0, first.exception
    assert first.output.count("created") == 8
    assert cli(*arguments, COLUMNS="300").output.count("existed") == 8


def test_json_values_reach_their_settings(cli: Any) -> None:
    done = cli("config", "show", '--security={"ssl_ca": "/x"}')
    assert yaml.safe_load(done.output)["security"]["ssl_ca"] == "/x"
    assert json.dumps(yaml.safe_load(done.output)["security"])
