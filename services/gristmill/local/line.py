"""The whole line on one machine: what its parts are, in which order they start and stop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
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
from gristmill.local.engines import EngineWatch, engine_part, wait_for_engine
from gristmill.local.helpers import Helpers, Interrupt, gristmill_command
from gristmill.local.options import ResolvedLine
from gristmill.local.plan import START_TIMEOUT_S, LinePlan, engine_plans, make_plan
from gristmill.local.process import Part
from gristmill.local.stats import LineWatcher
from gristmill.registry import open_codec
from gristmill.topics import Topics, apply

Say = Callable[[str], None]

CLUSTER_TIMEOUT_S = 10.0
STOP_ORDER = ("problem_producer", "sglang_generator", "math_verifier", "code_verifier", "grpo_trainer")
"""Upstream first, so that what was begun flows through and is committed; the engines come last."""


@dataclass(slots=True)
class LocalLine:
    """A running line. Made by :func:`open_line`."""

    resolved: ResolvedLine
    common: CommonConfig
    topics: Topics
    policy_dir: Path
    config_path: Path
    plan: LinePlan
    helpers: Helpers
    broker: EmbeddedBroker | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    engines: dict[str, Part] = field(default_factory=dict)
    """Those of the parts that are engines, by URL."""
    watcher: LineWatcher | None = None
    engine_watch: EngineWatch | None = None

    def start_engines(self, say: Say) -> None:
        """Start the planned engines, all at once, and wait until they and those that the user named answer.

        Raises:
            GristmillError: one does not, or the user stopped it.
        """
        started = time.monotonic()
        plans = engine_plans(self.plan, self.resolved, self.policy_dir, self.config_path)
        watched: dict[str, tuple[Part, float]] = {}
        for plan in plans:
            part = self.parts[plan.name] = self.engines[plan.url] = engine_part(plan, self.log_dir)
            part.start()
            if plan.hang_timeout_s is not None:
                watched[plan.url] = (part, plan.hang_timeout_s)
        patience = {plan.url: plan.start_timeout_s for plan in plans}
        for url in self.plan.urls:
            left = patience.get(url, START_TIMEOUT_S) - (time.monotonic() - started)
            self._wait_for_engine(url, max(left, 1.0), say)
        if watched:
            self.engine_watch = EngineWatch(watched)
            self.engine_watch.start()

    def _wait_for_engine(self, url: str, timeout_s: float, say: Say) -> None:
        slow = self.plan.kind == "embedded"  # ready within seconds, or its log says why not
        wait_for_engine(
            url,
            self.engines.get(url),
            list(self.parts.values()),
            timeout_s,
            self.helpers.interrupt.check,
            (lambda _: None) if slow else say,
        )
        say(f"engine at {url} serves {self.policy_dir.name}")

    @property
    def engine_urls(self) -> tuple[str, ...]:
        """Where the engines listen."""
        return self.plan.urls

    @property
    def log_dir(self) -> Path:
        """Where the parts log to."""
        return self.resolved.run_dir / "logs"

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
                self.log_dir / f"{name}.log",
                env={**self.resolved.secrets, **(self.plan.trainer_env if name == "grpo_trainer" else {})},
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
        if self.engine_watch is not None:
            self.engine_watch.check()
        if self.watcher is not None and self.watcher.error is not None:
            raise GristmillError(f"the line cannot be watched: {self.watcher.error}") from self.watcher.error

    @property
    def local(self) -> LocalConfig:
        """Settings of the local runner."""
        return self.resolved.settings.section("local", LocalConfig)

    def finished(self, name: str) -> bool:
        return name in self.parts and self.parts[name].finished

    def stop_services(self, keep_engines: bool = False) -> dict[str, int]:
        """Stop what runs, upstream first, and all engines at once; gives the exit statuses that are not 0."""
        bad: dict[str, int] = {}
        engines = {part.name for part in self.engines.values()}
        for name in (*STOP_ORDER, *(() if keep_engines else engines)):
            part = self.parts.get(name)
            if part is None:
                continue
            if name in engines:
                self._ask_engines_to_stop()
            status = part.stop(self.common.exit_timeout_s + 5)
            if status:
                bad[name] = status
        return bad

    def _ask_engines_to_stop(self) -> None:
        if self.engine_watch is not None:
            self.engine_watch.stop()
            self.engine_watch = None
        for part in self.engines.values():
            part.ask_to_stop()

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
    plan = make_plan(resolved)
    make_run_dir(resolved)
    for remark in plan.remarks:
        say(remark)
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
        config_path = write_config(resolved, bootstrap, policy_dir, plan)
        line = LocalLine(resolved, common, topics, policy_dir, config_path, plan, helpers, broker)
        line.start_engines(say)
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


def write_config(resolved: ResolvedLine, bootstrap: str, policy_dir: Path, plan: LinePlan) -> Path:
    """The file that every part reads: what the user chose and what was found out. Secrets are not in it."""
    values = merge(
        resolved.values,
        {
            "bootstrap": bootstrap,
            "data_dir": str(resolved.settings.data_dir.absolute()),
            "trainer": {"base_model": str(policy_dir)},
            "engine": {"model_path": str(policy_dir)},
        },
    )
    values = merge(values, plan.values)
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


def make_run_id(prefix: str) -> str:
    """A run id that sorts by time and does not repeat on one machine."""
    return f"{prefix}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
