"""A line of real processes under test, and what its topics say afterwards."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gristmill.audit import Report
from gristmill.codec import Codec
from gristmill.config import CommonConfig, merge
from gristmill.local.line import gristmill_command
from gristmill.local.process import Part, wait_until
from gristmill.messages import PolicyVersion, TrainingStep, Verdict
from gristmill.reader import read_all
from gristmill.replay import audit_run
from gristmill.topics import Topics
from support.context import apply_topics

COIN_VERIFIER = Path(__file__).with_name("coin_verifier.py")


def write_problems(path: Path, count: int) -> Path:
    """Numbered one-line problems."""
    rows = [json.dumps({"problem": f"{number} + 1 = ", "answer": str(number + 1)}) for number in range(count)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@dataclass(slots=True)
class Line:
    """Services as processes, from one configuration file."""

    folder: Path
    bootstrap: str
    prefix: str
    run_id: str
    engines: Sequence[str]
    model: Path
    problems: Path
    settings: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def common(self) -> CommonConfig:
        return CommonConfig(bootstrap=self.bootstrap, topic_prefix=self.prefix, run_id=self.run_id)

    @property
    def topics(self) -> Topics:
        return Topics(self.prefix)

    def prepare(self) -> None:
        """Create the topics and write the configuration."""
        apply_topics(self.bootstrap, self.prefix)
        base: dict[str, Any] = {
            "bootstrap": self.bootstrap,
            "topic_prefix": self.prefix,
            "run_id": self.run_id,
            "data_dir": str(self.folder / "data"),
            "generator": {"engines": list(self.engines)},
            "problems": {
                "sources": [f"jsonl:{self.problems}"],
                "prompt": {"plain": "{{ problem }}"},
                "epochs": 0,
                "group_size": 4,
                "sampling": {"max_new_tokens": 6},
            },
            "trainer": {
                "base_model": str(self.model),
                "groups_per_step": 3,
                "max_versions": 4,
                "micro_batch_size": 12,
                "threads": 1,
                "lora": {"r": 4, "alpha": 8},
            },
        }
        self.config.write_text(yaml.safe_dump(merge(base, self.settings)), encoding="utf-8")

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def start(self, service: str, label: str | None = None) -> Part:
        """Start one service; ``label`` tells several of a kind apart."""
        name = label or service
        if service == "coin_verifier":
            command = [sys.executable, str(COIN_VERIFIER), str(self.config)]
        else:
            command = gristmill_command("run", service, "--config", str(self.config))
        part = Part(
            name, command, self.folder / f"{name}.log", may_finish=service in ("grpo_trainer", "problem_producer")
        )
        part.start()
        self.parts[name] = part
        return part

    def wait_trained(self, timeout_s: float = 240.0) -> None:
        """Wait until the trainer has reached its last version and ended."""
        parts = list(self.parts.values())
        wait_until(lambda: self.parts["grpo_trainer"].finished, parts, timeout_s, f"the run {self.run_id}")

    def stop(self) -> dict[str, int | None]:
        """Ask every part to stop, then wait for each; gives the exit statuses."""
        for part in self.parts.values():
            part.ask_to_stop()
        return {part.name: part.stop(40) for part in self.parts.values()}

    def steps(self) -> list[TrainingStep]:
        """Training steps of this run, each once, in order."""
        found = {
            record.message.step: record.message
            for record in read_all(self.common, Codec(), self.topics.training, TrainingStep)
            if record.message is not None and record.message.run_id == self.run_id
        }
        return [found[step] for step in sorted(found)]

    def verdicts(self) -> dict[str, Verdict]:
        """First verdict of every sample, of any run."""
        found: dict[str, Verdict] = {}
        for record in read_all(self.common, Codec(), self.topics.verdicts, Verdict):
            if record.message is not None:
                found.setdefault(record.message.sample_id, record.message)
        return found

    def policies(self) -> list[PolicyVersion]:
        """Every record of the ``policies`` topic of this run, in order."""
        records = read_all(self.common, Codec(), self.topics.policies, PolicyVersion)
        return [r.message for r in records if r.message is not None and r.message.run_id == self.run_id]

    def audit(self) -> Report:
        return audit_run(self.common)
