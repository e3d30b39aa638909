"""The whole line on one machine: what its parts are, in which order they start and stop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml
from confluent_kafka.admin import AdminClient

from gristmill.broker import EmbeddedBroker, free_port
from gristmill.config import CommonConfig, merge
from gristmill.errors import GristmillError
from gristmill.kafka import admin_config
from gristmill.local.config import LocalConfig
from gristmill.local.options import ResolvedLine
from gristmill.local.process import Part, wait_until
from gristmill.local.stats import LineWatcher
from gristmill.registry import open_codec
from gristmill.topics import Topics, apply

Say = Callable[[str], None]

ENGINE_START_TIMEOUT_S = 600.0
STOP_ORDER = ("problem_producer", "sglang_generator", "math_verifier", "grpo_trainer", "engine")
"""Upstream first, so that what was begun flows through and is committed."""


@dataclass(slots=True)
class LocalLine:
    """A running line. Made by :func:`open_line`."""

    resolved: ResolvedLine
    common: CommonConfig
    topics: Topics
    policy_dir: Path
    config_path: Path
    engine_urls: tuple[str, ...]
    broker: EmbeddedBroker | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    watcher: LineWatcher | None = None

    def start_services(self) -> None:
        """Trainer first (it publishes version 0 and the credit), producer last."""
        for name in ("grpo_trainer", "math_verifier", "sglang_generator", "problem_producer"):
            port = free_port()
            finite = name == "problem_producer" or (
                name == "grpo_trainer" and self.resolved.options.versions is not None
            )
            part = Part(
                name,
                [*gristmill_command("run", name, "--config", str(self.config_path), "--metrics-port", str(port))],
                self.resolved.run_dir / "logs" / f"{name}.log",
                metrics_port=port,
                may_finish=finite,
            )
            part.start()
            self.parts[name] = part
        ports = {name: part.metrics_port for name, part in self.parts.items() if part.metrics_port is not None}
        self.watcher = LineWatcher(self.common, self.topics, open_codec(self.common), ports)
        self.watcher.start()

    def check(self) -> None:
        """Raises PartDied, or what the watcher met, when something ended that should run."""
        if self.broker is not None:
            self.broker.check()
        for part in self.parts.values():
            part.check()
        if self.watcher is not None and self.watcher.error is not None:
            raise GristmillError(f"the line cannot be watched: {self.watcher.error}") from self.watcher.error

    @property
    def local(self) -> LocalConfig:
        """Settings of the local runner."""
        return self.resolved.settings.section("local", LocalConfig)

    def finished(self, name: str) -> bool:
        return name in self.parts and self.parts[name].finished

    def stop_services(self, keep: Sequence[str] = ()) -> dict[str, int]:
        """Stop what runs, upstream first; gives the exit statuses that are not 0."""
        bad: dict[str, int] = {}
        for name in STOP_ORDER:
            part = self.parts.get(name)
            if part is None or name in keep:
                continue
            status = part.stop(self.common.exit_timeout_s + 5)
            if status:
                bad[name] = status
        return bad

    def close(self) -> None:
        """Stop everything, the broker last."""
        if self.watcher is not None:
            self.watcher.stop()
        self.stop_services()
        if self.broker is not None:
            self.broker.stop()


@contextmanager
def open_line(resolved: ResolvedLine, say: Say) -> Iterator[LocalLine]:
    """Prepare the policy, start broker and engine, apply the topics; services start with ``start_services``.

    Raises:
        GristmillError: a step failed; everything started so far is stopped.
    """
    run_dir = resolved.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    policy_dir = prepare_policy(resolved, say)
    broker: EmbeddedBroker | None = None
    bootstrap = resolved.options.bootstrap or resolved.values.get("bootstrap")
    if bootstrap is None:
        broker = EmbeddedBroker(log=run_dir / "logs" / "broker.log")
        broker.start()
        bootstrap = broker.bootstrap
        say(f"embedded broker on {bootstrap}")
    line: LocalLine | None = None
    try:
        line = _assemble(resolved, policy_dir, bootstrap, broker, say)
        yield line
    finally:
        if line is not None:
            line.close()
        elif broker is not None:
            broker.stop()


def _assemble(
    resolved: ResolvedLine, policy_dir: Path, bootstrap: str, broker: EmbeddedBroker | None, say: Say
) -> LocalLine:
    engines = resolved.options.engines
    port = free_port()
    urls = engines or (f"http://127.0.0.1:{port}",)
    values = merge(
        resolved.values,
        {
            "bootstrap": bootstrap,
            "data_dir": str(resolved.settings.data_dir.absolute()),
            "generator": {"engines": list(urls)},
            "trainer": {"base_model": str(policy_dir)},
            "engine": {"model_path": str(policy_dir), "port": port},
        },
    )
    config_path = resolved.run_dir / "config.yaml"
    config_path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    common = resolved.settings.common.model_copy(update={"bootstrap": bootstrap})
    topics = Topics(common.topic_prefix)
    apply(AdminClient(admin_config(common)), topics)
    line = LocalLine(resolved, common, topics, policy_dir, config_path, urls, broker)
    if not engines:
        engine = Part(
            "engine",
            gristmill_command("engine", "--config", str(config_path)),
            resolved.run_dir / "logs" / "engine.log",
        )
        engine.start()
        line.parts["engine"] = engine
    try:
        running = list(line.parts.values())
        for url in urls:
            health = f"{url}/health"
            wait_until(partial(answers, health), running, ENGINE_START_TIMEOUT_S, f"the engine at {url}")
            say(f"engine at {url} serves {policy_dir.name}")
    except GristmillError:
        line.stop_services()
        raise
    return line


def prepare_policy(resolved: ResolvedLine, say: Say) -> Path:
    """Folder of the base policy, made on first use; ``tiny`` is warmed up on problems of the line's own source."""
    policy = resolved.options.policy
    arguments = ["policy", "prepare", policy]
    config = resolved.run_dir / "policy.yaml"
    config.write_text(yaml.safe_dump(resolved.values, sort_keys=False), encoding="utf-8")
    arguments += ["--config", str(config)]
    if policy == "tiny":
        data = resolved.run_dir / "warmup.jsonl"
        count = resolved.settings.section("local", LocalConfig).warmup_problems
        export_problems(config, data, count=count, split="train")
        arguments += ["--warmup-data", str(data)]
        say("preparing the tiny policy (a minute on the first run, then cached)")
    output = run_to_end(arguments, f"preparing the policy {policy!r}")
    lines = output.strip().splitlines()
    folder = Path(lines[-1]) if lines else Path()
    if not lines or not folder.is_dir():
        raise GristmillError(f"preparing the policy {policy!r} printed no folder:\n{output}")
    return folder


def export_problems(config: Path, out: Path, *, count: int, split: str, source: str | None = None) -> None:
    """Write problems of the configured source with the line's own prompts to a JSONL file."""
    arguments = ["problems", "export", "--config", str(config), "--n", str(count), "--split", split, "--out", str(out)]
    if source is not None:
        arguments += ["--source", source]
    run_to_end(arguments, "exporting problems")


def run_to_end(arguments: Sequence[str], what: str) -> str:
    """Run a ``gristmill`` command and give its standard output.

    Raises:
        GristmillError: it failed; the message shows the end of its standard error.
    """
    done = subprocess.run(gristmill_command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(f"    {line}" for line in (done.stderr or done.stdout).strip().splitlines()[-15:])
        raise GristmillError(f"{what} failed with status {done.returncode}:\n{tail}")
    return done.stdout


def gristmill_command(*arguments: str) -> list[str]:
    """The command line of another ``gristmill`` process under the same interpreter."""
    return [sys.executable, "-m", "gristmill", *arguments]


def answers(url: str) -> bool:
    """Whether a GET answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 (the user's own engine)
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def make_run_id(prefix: str) -> str:
    """A run id that sorts by time and does not repeat on one machine."""
    return f"{prefix}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
