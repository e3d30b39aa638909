"""`gristmill problems`: export, check, show."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill.errors import ConfigError, InfrastructureError, MissingExtra
from problem_producer import hub
from problem_producer.commands import problems
from problem_producer.config import SourceConfig


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(problems, arguments, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output


def exported(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_rows(path: Path, count: int, extra: str = "") -> str:
    path.write_text("".join(json.dumps({"problem": f"q{n}", "answer": n}) + "\n" for n in range(count)) + extra)
    return f"jsonl:{path}"


def test_export_of_arithmetic_is_distinct_and_split(tmp_path: Path) -> None:
    found = {}
    for split in ("train", "heldout"):
        out = tmp_path / "deep" / f"{split}.jsonl"
        run("export", "--source", "arithmetic:levels=1-2", "--n", "150", "--split", split, "--out", str(out))
        found[split] = exported(out)
        assert len({row["problem_id"] for row in found[split]}) == len(found[split]) == 150
    assert not {row["problem_id"] for row in found["train"]} & {row["problem_id"] for row in found["heldout"]}
    row = found["train"][0]
    assert row["kind"] == "math"
    assert row["sampling"]["max_new_tokens"] == 512
    assert row["level"] in (1.0, 2.0)
    assert row["solution"].endswith(f"\\boxed{{{row['answer']}}}")
    assert row["messages"][0]["content"].endswith("put the final answer in \\boxed{}.")
    assert list(tmp_path.rglob("*.partial")) == []


def test_export_takes_all_of_a_small_source(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run("export", "--source", write_rows(tmp_path / "rows.jsonl", 30), "--n", "100", "--out", str(out))
    assert sorted(int(row["answer"]) for row in exported(out)) == list(range(30))
    run("export", "--source", "arithmetic:levels=1,topics=addition", "--n", "5000", "--out", str(out))
    assert 20 < len(exported(out)) < 200


def test_export_uses_the_configured_sources_and_prompts(tmp_path: Path) -> None:
    config = tmp_path / "line.yaml"
    spec = write_rows(tmp_path / "rows.jsonl", 200)
    section = {"sources": [spec, {"spec": "arithmetic:levels=1", "split": "train"}], "prompt": "Q {{ problem }}"}
    config.write_text(json.dumps({"problems": section}))
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "gristmill", "problems", "export", "--config", str(config), "--split", "heldout"]
    subprocess.run([*command, "--n", "30", "--out", str(out)], check=True, timeout=60)
    rows = exported(out)
    assert {row["source"] for row in rows} == {"rows", "arithmetic"}
    assert all(row["messages"][0]["content"].startswith("Q ") for row in rows)


def test_check_lists_lines_and_fails(tmp_path: Path) -> None:
    spec = write_rows(tmp_path / "rows.jsonl", 3, extra='{"problem": "q"}\n[broken\n{}\n')
    output = run("check", "--source", spec, "--limit", "2", status=1)
    assert f"{tmp_path / 'rows.jsonl'}: line 4: field 'answer' is missing" in output
    assert "line 5: not JSON" in output
    assert "... and 1 more" in output
    assert "rows: 3 usable, 3 malformed" in output
    assert "rows: 3 usable, 0 malformed" in run("check", "--source", write_rows(tmp_path / "rows.jsonl", 3))
    assert "arithmetic: without end, 0 malformed" in run("check", "--source", "arithmetic:levels=1")


def test_show_prints_prompts_and_golds() -> None:
    output = run("show", "--source", "arithmetic:levels=1", "--n", "2")
    assert output.count("[user]") == output.count("[answer]") == 2
    assert "\\boxed{}" in output


def test_bad_requests_raise_named_errors(tmp_path: Path) -> None:
    for arguments, message in (
        (["check", "--source", "gsm9k:x"], "no kind 'gsm9k'"),
        (["check", "--source", f"gsm8k:{tmp_path}/absent.jsonl"], "No such file"),
        (["show", "--source", "arithmetic:levels=9"], "no level 9"),
        (["show", "--source", "arithmetic", "--prompt", "nonsense"], "no prompt template"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(*arguments)


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom problem_producer.commands import problems\nimport problem_producer.config\n"
        "import problem_producer.service\nheavy = {'jinja2', 'pyarrow', 'datasets', 'sympy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_hub_sources_name_their_datasets() -> None:
    def located(spec: str) -> tuple[str, str | None, str]:
        return tuple(hub.locate(SourceConfig.model_validate(spec)))

    assert located("gsm8k:hf") == ("openai/gsm8k", "main", "train")
    assert located("gsm8k:hf/test") == ("openai/gsm8k", "main", "test")
    assert located("mbpp:hf,config=sanitized") == ("google-research-datasets/mbpp", "sanitized", "train")
    assert located("hf:owner/name/validation") == ("owner/name", None, "validation")


def test_a_hub_that_cannot_be_reached_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    # Offline mode is what no network looks like, without the library's half minute of retries.
    script = (
        "from problem_producer.sources import open_sources\nfrom problem_producer.config import ProblemsConfig\n"
        "from gristmill.errors import GristmillError\n"
        "try:\n    open_sources(ProblemsConfig(sources=['gsm8k:hf']))\n"
        "except GristmillError as error:\n    print(type(error).__name__, error)"
    )
    environ = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(InfrastructureError.__name__)
    assert "hf:openai/gsm8k/main/train: cannot fetch" in done.stdout
    assert "gsm8k:train.jsonl" in done.stdout


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"source hf:openai/gsm8k/main/train needs datasets.*gristmill\[hub\]"):
        hub.HubRows(SourceConfig.model_validate("gsm8k:hf"))


def test_a_hub_dataset_in_the_cache_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"question": ["1 + 1?", None, "2 + 2?"], "answer": ["#### 2", "#### 3", "#### 4"]}
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_dict(rows))
    output = run("check", "--source", "gsm8k:hf", status=1)
    assert "hf:openai/gsm8k/main/train: row 2: field 'question' is null" in output
    assert "gsm8k: 2 usable, 1 malformed" in output
