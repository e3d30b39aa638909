"""Proof, from inside, that a sandbox holds what it promises.

The probe (:mod:`code_verifier.probe`) goes the way of any program: once as a candidate's, once as tests that the judge
runs. What it saw is judged here. A verifier whose engine leaves out a single limit must not serve: an option that the
engine or the kernel does not know may be dropped without a word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from code_verifier.config import CodeConfig, limits_from
from code_verifier.container import Plan, Role, owner_label
from code_verifier.engine import Engine, EngineAway, connect
from code_verifier.image import check_image
from code_verifier.job import AssertTests, Case, Job, Limits, Outcome, StdioTests
from code_verifier.link import SandboxBroken
from code_verifier.sandbox import Sandbox, check_runtime
from code_verifier.selftest_checks import CHECKS, Facts
from gristmill.errors import ConfigError, InfrastructureError

BREAKING = frozenset(("memory", "signals"))
"""Questions that may cost a sandbox its life, where the kernel is gVisor's."""
ROLES: tuple[Role, Role] = ("candidate", "judge")


@dataclass(frozen=True, slots=True)
class Check:
    """One limit.

    Attributes:
        name: what it is called.
        missing: the containers in which it does not hold.
        found: by role, what was seen.
    """

    name: str
    missing: frozenset[Role]
    found: Mapping[Role, str]

    @property
    def holds(self) -> bool:
        return not self.missing


@dataclass(frozen=True, slots=True)
class Report:
    """All limits."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.holds for check in self.checks)

    def missing(self, role: Role) -> set[str]:
        """Names of the limits that do not hold in a container."""
        return {check.name for check in self.checks if role in check.missing}


def _probe_source() -> str:
    return Path(__file__).with_name("probe.py").read_text(encoding="utf-8")


def expressions(limits: Limits) -> dict[str, str]:
    """What the probe is asked, by name. Each is a program of its own, for some bring themselves down."""
    each = int(limits.memory_bytes * 0.6)
    return {
        "look": "look()",
        "fill": f"try_fill('/tmp', {limits.tmpfs_bytes + (32 << 20)})",
        "large": f"try_large_file('/tmp', {limits.file_bytes})",
        "files": f"try_open_files({limits.open_files + 64})",
        "forks": f"try_processes({limits.processes + 64})",
        "memory": f"try_memory({each}, 4)",
        "cores": "try_cores(0.4)",
        "signals": "try_signals()",
    }


class _Subject:
    """A sandbox under test; another one where it breaks."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan
        self._sandbox: Sandbox | None = None
        self._serial = 0

    def run(self, job: Job) -> Outcome:
        """Run a program; one that broke its sandbox gets ``sandbox_error``."""
        if self._sandbox is None:
            self._sandbox = Sandbox(self._engine, self._plan, self._serial)
            self._serial += 1
        try:
            return self._sandbox.run(job)
        except SandboxBroken as broken:
            self.close()
            if not self._engine.answers():
                raise EngineAway(f"the engine went away in the self-test: {broken}") from broken
            return Outcome("sandbox_error", f"broke its sandbox: {broken}")

    def close(self) -> None:
        """Remove the sandbox."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.remove(self._engine)


def _ask(subject: _Subject, role: Role, expression: str) -> tuple[Any, Outcome]:
    """The value of an expression over the probe in a container; None where none came back."""
    if role == "candidate":
        source = f"{_probe_source()}\nimport json\nprint(json.dumps({expression}))\n"
        job = Job(source, StdioTests((Case("", ""),), "exact"))
    else:
        # The judge says nothing to anybody but a verdict; what it found leaves by a candidate that prints it.
        # Its source is a text of theirs: tests that prepare files are refused, for no program could see them.
        probe = f"exec(compile({_probe_source()!r}, 'probe.py', 'exec'), globals())\n"
        tests = f"{probe}import json\nassert tell(json.dumps({expression})) == 1\n"
        job = Job("def tell(text):\n    print(text, flush=True)\n    return 1\n", AssertTests(tests))
    outcome = subject.run(job)
    try:
        return json.loads(outcome.stdout), outcome
    except ValueError:
        return None, outcome


def _facts(subject: _Subject, role: Role, limits: Limits) -> Facts:
    answers, told = {}, {}
    for name, expression in expressions(limits).items():
        answers[name], outcome = _ask(subject, role, expression)
        if outcome.status == "sandbox_error" and name not in BREAKING:
            # The question before may have brought the sandbox down with a delay.
            answers[name], outcome = _ask(subject, role, expression)
        told[name] = f"{outcome.status}: {outcome.reason} {outcome.stderr[-300:]}".strip()
    if answers["look"] is None:
        raise InfrastructureError(f"the self-test's probe does not run in the {role} container: {told['look']}")
    return Facts(answers["look"], answers, told, role, limits)


def _statuses(subject: _Subject, limits: Limits) -> dict[str, str]:
    """What programs that take too much end as."""
    size = limits.output_bytes + (1 << 20)
    hog = f"x = bytearray({int(limits.memory_bytes * 1.5)})\nfor i in range(0, len(x), 4096): x[i] = 1"
    programs = {
        "endless loop": Job("while True: pass", StdioTests((Case("", ""),)), time_s=0.5),
        "output flood": Job(f"print('x' * {size})", StdioTests((Case("", ""),))),
        "memory hog": Job(hog, StdioTests((Case("", ""),))),
    }
    return {name: subject.run(job).status for name, job in programs.items()}


EXPECTED_STATUS = {"endless loop": "time_limit", "output flood": "output_limit", "memory hog": "memory_limit"}


def _as_is(_role: Role, config: dict[str, Any]) -> dict[str, Any]:
    return config


def self_test(config: CodeConfig, *, alter: Callable[[Role, dict[str, Any]], dict[str, Any]] = _as_is) -> Report:
    """Start a sandbox as the pool would and look at it from inside.

    Args:
        config: as the service has it.
        alter: changes the engine's create call; for tests that take a limit away.

    Raises:
        ConfigError: no engine, image or runtime.
        InfrastructureError: the sandbox does not start, or the probe does not run.
    """
    limits = replace(limits_from(config), kept_bytes=256 << 10)
    with connect(config.docker_host) as engine:
        check_runtime(engine, config.runtime)
        plan = Plan(check_image(engine, config.image), owner_label(), limits, config.runtime, alter=alter)
        subject = _Subject(engine, plan)
        try:
            facts = {role: _facts(subject, role, limits) for role in ROLES}
            statuses = _statuses(subject, limits)
        finally:
            subject.close()
    checks = []
    for name, check in CHECKS.items():
        results = {role: check(facts[role]) for role in ROLES}
        missing = frozenset(role for role in ROLES if not results[role][0])
        checks.append(Check(name, missing, {role: results[role][1] for role in ROLES}))
    for name, status in statuses.items():
        lacking: frozenset[Role] = frozenset() if status == EXPECTED_STATUS[name] else frozenset(("candidate",))
        checks.append(Check(name, lacking, {"candidate": status, "judge": ""}))
    return Report(tuple(checks))


def require(config: CodeConfig) -> Report:
    """:func:`self_test`, for a service that is about to start.

    Raises:
        ConfigError: a limit is missing; the message names each with what was seen.
    """
    report = self_test(config)
    if not report.passed:
        lacking = "; ".join(
            f"{check.name} ({check.found['candidate']} / {check.found['judge']})"
            for check in report.checks
            if not check.holds
        )
        raise ConfigError(
            f"the sandbox does not hold: {lacking}. Nothing is run in it; 'gristmill sandbox selftest' shows the rest, "
            "docs/code-sandbox.md says what each limit needs"
        )
    return report
