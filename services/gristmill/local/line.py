"""The whole line on one machine: what its parts are, in which order they start and stop."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from confluent_kafka.admin import AdminClient

from gristmill.broker import EmbeddedBroker, free_port
from gristmill.config import CommonConfig, merge
from gristmill.errors import ConfigError, GristmillError
from gristmill.kafka import admin_config
from gristmill.local.config import LocalConfig
from gristmill.local.helpers import Helpers, Interrupt, gristmill_command
from gristmill.local.options import ResolvedLine
from gristmill.local.process import Part, wait_until
from gristmill.local.stats import LineWatcher
from gristmill.registry import open_codec
from gristmill.topics import Topics, apply

Say = Callable[[str], None]

CLUSTER_TIMEOUT_S = 10.0
ENGINE_START_TIMEOUT_S = 600.0
STOP_ORDER = ("problem_producer", "sglang_generator", "math_verifier", "code_verifier", "grpo_trainer", "engine")
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
    helpers: Helpers
    broker: EmbeddedBroker | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    watcher: LineWatcher | None = None

    def start_engine(self, say: Say) -> None:
        """Start the embedded engine unless the user named engines, and wait until all answer.

        Raises:
            GristmillError: one does not, or the user stopped it.
        """
        if not self.resolved.engines:
            command = gristmill_command("engine", "--config", str(self.config_path))
            log = self.resolved.run_dir / "logs" / "engine.log"
            self.parts["engine"] = Part("engine", command, log, env=self.resolved.secrets)
            self.parts["engine"].start()
        for url in self.engine_urls:
            self._wait_for_engine(url, say)

    def _wait_for_engine(self, url: str, say: Say) -> None:
        what = f"the engine at {url}"
        told = self.resolved.engines == ()

        def ready() -> bool:
            nonlocal told
            self.helpers.interrupt.check(f"waiting for {what}")
            if answers(f"{url}/health"):
                return True
            if not told:
                say(f"{what} does not answer yet: waiting up to {ENGINE_START_TIMEOUT_S:.0f} s")
                told = True
            return False

        wait_until(ready, list(self.parts.values()), ENGINE_START_TIMEOUT_S, what)
        say(f"engine at {url} serves {self.policy_dir.name}")

    def start_services(self) -> None:
        """Trainer first (it publishes version 0 and the credit), producer last."""
        for name in ("grpo_trainer", *self.resolved.verifiers, "sglang_generator", "problem_producer"):
            port = free_port()
            finite = name == "problem_producer" or (
                name == "grpo_trainer" and self.resolved.options.versions is not None
            )
            part = Part(
                name,
                gristmill_command("run", name, "--config", str(self.config_path), "--metrics-port", str(port)),
                self.resolved.run_dir / "logs" / f"{name}.log",
                env=self.resolved.secrets,
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
def open_line(resolved: ResolvedLine, say: Say, interrupt: Interrupt) -> Iterator[LocalLine]:
    """Start the broker, apply the topics, prepare the policy, start the engine; ``start_services`` starts the rest.

    What costs nothing and can fail, a folder that cannot be written or a cluster that does not answer, comes first.

    Raises:
        GristmillError: a step failed, or the user stopped it; everything started so far is stopped.
    """
    make_run_dir(resolved)
    helpers = Helpers(interrupt, resolved.secrets)
    broker: EmbeddedBroker | None = None
    bootstrap = resolved.bootstrap
    if bootstrap is None:
        broker = EmbeddedBroker(log=resolved.run_dir / "logs" / "broker.log")
        broker.start()
        bootstrap = broker.bootstrap
        say(f"embedded broker on {bootstrap}")
    line: LocalLine | None = None
    try:
        common = resolved.settings.common.model_copy(update={"bootstrap": bootstrap})
        topics = Topics(common.topic_prefix)
        apply(AdminClient(admin_config(common)), topics, timeout_s=CLUSTER_TIMEOUT_S)
        if "code_verifier" in resolved.verifiers:
            check_sandbox(resolved, helpers, say)
        policy_dir = prepare_policy(resolved, helpers, say)
        port = resolved.engine_port or free_port()
        urls = resolved.engines or (f"http://127.0.0.1:{port}",)
        config_path = write_config(resolved, bootstrap, policy_dir, port, urls)
        line = LocalLine(resolved, common, topics, policy_dir, config_path, urls, helpers, broker)
        line.start_engine(say)
        yield line
    finally:
        if line is not None:
            line.close()
        elif broker is not None:
            broker.stop()


def make_run_dir(resolved: ResolvedLine) -> None:
    """Make the run's folder.

    Raises:
        ConfigError: ``data_dir`` cannot be written.
    """
    try:
        resolved.run_dir.mkdir(parents=True, exist_ok=True)
        (resolved.run_dir / "config.yaml").touch()
    except OSError as error:
        raise ConfigError(
            f"data_dir {resolved.settings.data_dir.absolute()}: cannot write {error.filename}: {error.strerror}; "
            "give another one with --data_dir"
        ) from error


def write_config(resolved: ResolvedLine, bootstrap: str, policy_dir: Path, port: int, engines: Sequence[str]) -> Path:
    """The file that every part reads: what the user chose and what was found out. Secrets are not in it."""
    values = merge(
        resolved.values,
        {
            "bootstrap": bootstrap,
            "data_dir": str(resolved.settings.data_dir.absolute()),
            "generator": {"engines": list(engines)},
            "trainer": {"base_model": str(policy_dir)},
            "engine": {"model_path": str(policy_dir), "port": port},
        },
    )
    path = resolved.run_dir / "config.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def check_sandbox(resolved: ResolvedLine, helpers: Helpers, say: Say) -> None:
    """Prove the code verifier's sandbox before anything is made ready for problems that it could not score.

    Raises:
        GristmillError: no Docker engine, no image, or a limit that does not hold; the message says what to do.
    """
    config = resolved.run_dir / "sandbox.yaml"
    config.write_text(yaml.safe_dump(resolved.values, sort_keys=False), encoding="utf-8")
    helpers.run(["sandbox", "selftest", "--config", str(config)], "the self-test of the code sandbox")
    say("the code sandbox holds")


def prepare_policy(resolved: ResolvedLine, helpers: Helpers, say: Say) -> Path:
    """Folder of the base policy, made on first use; ``tiny`` is warmed up on problems of the line's own source."""
    policy = resolved.options.policy
    arguments = ["policy", "prepare", policy]
    config = resolved.run_dir / "policy.yaml"
    config.write_text(yaml.safe_dump(resolved.values, sort_keys=False), encoding="utf-8")
    arguments += ["--config", str(config)]
    if policy == "tiny":
        data = resolved.run_dir / "warmup.jsonl"
        count = resolved.settings.section("local", LocalConfig).warmup_problems
        helpers.export_problems(config, data, count=count, split="train")
        arguments += ["--warmup-data", str(data)]
        say("preparing the tiny policy (a minute on the first run, then cached)")
    output = helpers.run(arguments, f"preparing the policy {policy!r}")
    lines = output.strip().splitlines()
    folder = Path(lines[-1]) if lines else Path()
    if not lines or not folder.is_dir():
        raise GristmillError(f"preparing the policy {policy!r} printed no folder:\n{output}")
    return folder


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
