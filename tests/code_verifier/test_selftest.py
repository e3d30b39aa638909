"""The self-test: every limit holds, and each one taken away is missed by its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from code_verifier import selftest
from code_verifier.config import CodeConfig
from code_verifier.container import Role
from code_verifier.selftest import Report, self_test
from gristmill.errors import ConfigError, GristmillError
from support.docker import PrivateDaemon

pytestmark = pytest.mark.docker

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def config(sandbox_image: str) -> CodeConfig:
    return CodeConfig(workers=1, image=sandbox_image, memory_limit_mb=128, output_limit_mb=1)


def _describe(report: Report) -> str:
    return "\n".join(f"{check.name}: {dict(check.found)}" for check in report.checks if not check.holds)


def test_every_limit_holds(config: CodeConfig) -> None:
    report = self_test(config)
    assert report.passed, _describe(report)
    assert len(report.checks) >= 30


def _host(**values: Any) -> Change:
    return lambda body: body["HostConfig"].update(values)


def _without_seccomp(body: dict[str, Any]) -> None:
    body["HostConfig"]["SecurityOpt"] = ["no-new-privileges:true", "seccomp=unconfined"]


def _without_no_new_privileges(body: dict[str, Any]) -> None:
    # Without it, runc needs more system calls to start a container than the profile has: the profile goes too.
    body["HostConfig"]["SecurityOpt"] = ["seccomp=unconfined"]


def _tmpfs(change: Callable[[str], str]) -> Change:
    def apply(body: dict[str, Any]) -> None:
        mounts = body["HostConfig"]["Tmpfs"]
        body["HostConfig"]["Tmpfs"] = {name: change(options) for name, options in mounts.items()}

    return apply


def _host_network(body: dict[str, Any]) -> None:
    body["NetworkDisabled"] = False
    body["HostConfig"]["NetworkMode"] = "host"
    del body["Hostname"]


SOCKET = "/var/run/docker.sock:/var/run/docker.sock:ro"
KERNEL_LOG = {"PathOnHost": "/dev/null", "PathInContainer": "/dev/kmsg", "CgroupPermissions": "r"}
SECCOMP = {"seccomp", "ptrace", "namespaces", "system calls"}
# What is taken away, and every limit that is then missing.
TAKEN_AWAY: dict[str, tuple[Change, set[str]]] = {
    "network": (_host_network, {"network"}),
    "user": (lambda body: body.update(User="10002:0"), {"user"}),
    "read-only root": (_host(ReadonlyRootfs=False), {"read-only root", "writable places", "host mounts"}),
    "capabilities": (_host(CapDrop=[]), {"capabilities"}),
    "no new privileges": (_without_no_new_privileges, {"no new privileges", *SECCOMP}),
    "seccomp": (_without_seccomp, SECCOMP),
    "memory": (_host(Memory=0, MemorySwap=0), {"memory", "swap"}),
    "swap": (_host(MemorySwap=-1), {"swap"}),
    "processes": (_host(PidsLimit=0), {"processes"}),
    "cores": (_host(NanoCpus=0), {"cores"}),
    "temporary space": (_tmpfs(lambda options: options.replace("size=", "size=1")), {"temporary space"}),
    "temporary files": (_tmpfs(lambda options: options.replace("nr_inodes=", "nr_inodes=9")), {"temporary files"}),
    "temporary programs": (_tmpfs(lambda options: options.replace("noexec", "exec")), {"temporary programs"}),
    "host mounts": (_host(Binds=["/etc:/mnt:ro"]), {"host mounts"}),
    "docker socket": (_host(Binds=[SOCKET]), {"docker socket", "host mounts"}),
    "devices": (_host(Devices=[KERNEL_LOG]), {"devices"}),
}
# A self-test takes seconds, so each takes away limits of both containers, and as many as do not hide each other.
ROUNDS: list[dict[Role, list[str]]] = [
    {"candidate": ["network"], "judge": ["user"]},
    {"candidate": ["read-only root"], "judge": ["seccomp"]},
    {"candidate": ["no new privileges", "capabilities", "swap", "docker socket"], "judge": ["memory"]},
    {"candidate": ["processes", "temporary programs"], "judge": ["cores", "temporary files", "host mounts"]},
    {"candidate": ["devices"], "judge": ["temporary space"]},
]


def test_every_limit_is_taken_away_once() -> None:
    assert sorted(name for each in ROUNDS for names in each.values() for name in names) == sorted(TAKEN_AWAY)


@pytest.mark.parametrize("each", ROUNDS, ids=lambda each: "-".join(name for names in each.values() for name in names))
def test_what_is_taken_away_is_missed(config: CodeConfig, each: dict[Role, list[str]]) -> None:
    def alter(role: Role, body: dict[str, Any]) -> dict[str, Any]:
        for name in each[role]:
            TAKEN_AWAY[name][0](body)
        return body

    report = self_test(config, alter=alter)
    for role, names in each.items():
        assert report.missing(role) == set().union(*(TAKEN_AWAY[name][1] for name in names)), _describe(report)


def test_a_sandbox_of_root_does_not_start(config: CodeConfig) -> None:
    def alter(which: Role, body: dict[str, Any]) -> dict[str, Any]:
        return body | {"User": "0:0"}

    with pytest.raises(GristmillError):
        self_test(config, alter=alter)


def test_a_warden_that_is_not_process_1_does_not_start(config: CodeConfig) -> None:
    def alter(which: Role, body: dict[str, Any]) -> dict[str, Any]:
        body["HostConfig"]["PidMode"] = "host"
        return body

    with pytest.raises(GristmillError):
        self_test(config, alter=alter)


def test_the_service_refuses_to_start(config: CodeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def weakened(config: CodeConfig) -> Report:
        return self_test(config, alter=lambda _role, body: body["HostConfig"].update(CapDrop=[]) or body)

    monkeypatch.setattr(selftest, "self_test", weakened)
    with pytest.raises(ConfigError, match=r"does not hold: capabilities .*CapBnd"):
        selftest.require(config)


def test_limits_hold_under_gvisor(config: CodeConfig, private_daemon: PrivateDaemon) -> None:
    """With what is different about it left aside: see ``Facts.gvisor``."""
    if shutil.which("runsc") is None:
        pytest.skip("no runsc: apt-get install runsc")
    report = self_test(config.model_copy(update={"docker_host": private_daemon.address, "runtime": "runsc"}))
    assert report.passed, _describe(report)
