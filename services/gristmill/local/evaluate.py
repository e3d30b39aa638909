"""pass@1 on held-out problems, sampled by the line's own engines and scored by its own verifier."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gristmill.artifacts import from_uri
from gristmill.config import merge
from gristmill.errors import GristmillError
from gristmill.local.delivery import FULL, setting
from gristmill.local.engines import call
from gristmill.local.line import LocalLine
from gristmill.local.sglang_server import AUTO_BATCH
from gristmill.messages import PolicyVersion

BASE_VERSION = "default"
"""``weight_version`` of an engine that has not been given other weights than it started with."""
DELIVERY_TIMEOUT_S = 600.0
AUTO_CONCURRENCY = {"embedded": 64, "running": 256, "sglang": AUTO_BATCH}
"""Requests at once where the line finds the number itself, for which sampling a file is too short."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Outcome of sampling ``problems`` held-out problems ``samples`` times in all."""

    policy: str
    problems: int
    samples: int
    correct: int

    @property
    def pass_at_1(self) -> float:
        """Share of samples that were correct; 0 when nothing was sampled."""
        return self.correct / self.samples if self.samples else 0.0


def evaluate(line: LocalLine, problems: Path, label: str, policy: PolicyVersion | None) -> Evaluation:
    """Sample every problem of the file, shared out among the engines, and verify the completions.

    Args:
        problems: JSONL file of ``gristmill problems export``.
        label: names the policy in files and tables.
        policy: the version to sample from, None for the base policy.

    Raises:
        GristmillError: sampling or verification failed, or an engine does not serve the version.
    """
    folder = line.resolved.run_dir / "evaluation"
    folder.mkdir(exist_ok=True)
    try:
        expected = [serve_weights(line, url, policy) for url in line.engine_urls]
        completions = _sample(line, problems, folder, label, policy)
        for url, version in zip(line.engine_urls, expected, strict=True):
            if version is not None and (found := _weight_version(line, url)) != version:
                raise GristmillError(
                    f"the engine at {url} changed its weights from {version} to {found} while it was evaluated"
                )
    except GristmillError:
        line.check()  # a dead engine explains more than what asked it
        raise
    rows: list[dict[str, Any]] = []
    for kind, part in _by_kind(completions).items():
        verdicts = part.with_suffix(".verdicts.jsonl")
        verify = ["verify", kind, "--config", str(line.config_path), "--in", str(part), "--out", str(verdicts)]
        line.helpers.run(verify, f"verifying them ({label})")
        rows += [json.loads(row) for row in _lines(verdicts)]
    samples = line.local.eval_samples
    return Evaluation(label, len(rows) // samples, len(rows), sum(bool(row["correct"]) for row in rows))


def _sample(line: LocalLine, problems: Path, folder: Path, label: str, policy: PolicyVersion | None) -> Path:
    """Completions of all problems, one part per engine, in one file."""
    config = _sampling_config(line, folder)
    commands, parts = [], []
    for number, (url, rows) in enumerate(zip(line.engine_urls, _shares(line, problems), strict=True)):
        if not rows:
            continue
        asked = folder / f"{label}.problems-{number}.jsonl"
        asked.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        part = folder / f"{label}.completions-{number}.jsonl"
        command = ["sample", "--config", str(config), "--in", str(asked), "--out", str(part)]
        command += ["--engine", url, "--samples", str(line.local.eval_samples)]
        if policy is not None and policy.kind == "lora":
            command += ["--adapter", str(from_uri(policy.uri))]
        commands.append(command)
        parts.append(part)
    line.helpers.run_all(commands, f"sampling held-out problems ({label})")
    completions = folder / f"{label}.completions.jsonl"
    completions.write_text("".join(f"{row}\n" for part in parts for row in _lines(part)), encoding="utf-8")
    return completions


def _shares(line: LocalLine, problems: Path) -> list[list[str]]:
    """Rows of the problems for each engine, dealt out in turn."""
    rows, count = _lines(problems), len(line.engine_urls)
    return [rows[number::count] for number in range(count)]


def _sampling_config(line: LocalLine, folder: Path) -> Path:
    """The run's configuration with a concurrency in numbers."""
    if isinstance(setting(line.resolved.settings, "generator.engine_concurrency"), int):
        return line.config_path
    values = yaml.safe_load(line.config_path.read_text(encoding="utf-8"))
    fixed = {"generator": {"engine_concurrency": AUTO_CONCURRENCY[line.plan.kind]}}
    path = folder / "sampling.yaml"
    path.write_text(yaml.safe_dump(merge(values, fixed), sort_keys=False), encoding="utf-8")
    return path


def serve_weights(line: LocalLine, url: str, policy: PolicyVersion | None) -> str | None:
    """Make sure that an engine's own weights are those to be sampled; gives its ``weight_version`` where it matters.

    Adapters are loaded by ``gristmill sample`` itself. Whole weights are there already, unless the line ended before
    the last version was delivered, or a running engine has served another run.
    """
    if setting(line.resolved.settings, "generator.delivery") not in FULL:
        return None
    found = _weight_version(line, url)
    wanted = policy.name if policy is not None else BASE_VERSION
    if found == wanted:
        return wanted
    if policy is None:
        folder, wanted = line.policy_dir, f"{line.common.run_id}-base"
    else:
        folder = from_uri(policy.uri)
    body = {"model_path": str(folder), "weight_version": wanted}
    reply = call(f"{url}/update_weights_from_disk", body, _key(line, "admin_api_key", "api_key"), DELIVERY_TIMEOUT_S)
    if not reply.get("success"):
        raise GristmillError(f"the engine at {url} does not take the weights in {folder}: {reply.get('message')}")
    if (found := _weight_version(line, url)) != wanted:
        raise GristmillError(f"the engine at {url} reports the weights {found}, not {wanted} that it was given")
    return wanted


def _weight_version(line: LocalLine, url: str) -> str:
    return str(call(f"{url}/model_info", None, _key(line, "api_key"), 60.0).get("weight_version"))


def _key(line: LocalLine, *names: str) -> str | None:
    """The first of the engines' keys that is set."""
    keys = (setting(line.resolved.settings, f"generator.{name}") for name in names)
    return next((str(key.get_secret_value()) for key in keys if key is not None), None)


def _by_kind(completions: Path) -> dict[str, Path]:
    """The completions in a file for each verifier; those with tests are code."""
    parts: dict[str, list[str]] = {}
    for row in _lines(completions):
        parts.setdefault("code" if "tests" in json.loads(row) else "math", []).append(row)
    label = completions.name.removesuffix(".completions.jsonl")
    files = {kind: completions.with_name(f"{label}.{kind}.jsonl") for kind in parts}
    for kind, path in files.items():
        path.write_text("".join(f"{row}\n" for row in parts[kind]), encoding="utf-8")
    return files


def _lines(path: Path) -> list[str]:
    """Lines of a JSONL file; line separators inside JSON texts are no ends of lines."""
    return [row for row in path.read_text(encoding="utf-8").split("\n") if row]


def heldout_split(source: str | None, trained_on: Sequence[object]) -> str:
    """Which part of the problems to evaluate on is held out.

    A source that is not trained on is not split; of one that is (a file among ``trained_on``, or the generator of
    arithmetic), the held-out split. A split in the source's own text counts.
    """
    if source is None or source.partition(":")[0] == "arithmetic":
        return "heldout"
    location, *options = source.partition(":")[2].split(",")
    named = next((option.removeprefix("split=") for option in options if option.startswith("split=")), None)
    if named is not None:
        return named
    files = {str(path) for path in (getattr(item, "path", None) for item in trained_on) if path is not None}
    specs = {getattr(item, "spec", None) for item in trained_on}
    return "heldout" if location in files or source in specs else "all"
