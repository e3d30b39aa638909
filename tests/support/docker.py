"""Docker for tests: whether there is any, and engines that a test may stop and kill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import docker
import docker.errors
import psutil

BASES = ("gristmill-sandbox-base:bookworm", "python:3.12-slim", "python:3.11-slim")


@cache
def missing_for_docker() -> str | None:
    """Why tests that need a Docker engine cannot run, None if they can."""
    try:
        client = docker.from_env(timeout=10)
    except docker.errors.DockerException as error:
        return f"no Docker engine: {error}; .ci/docker.sh installs and starts one"
    with contextlib.closing(client):
        if sandbox_base(client) is None:
            return f"none of the images {', '.join(BASES)}: compose/sandbox/base.sh makes the first"
    return None


def sandbox_base(client: docker.DockerClient) -> str | None:
    """A base image that is there."""
    for name in BASES:
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.get(name)
            return name
    return None


def missing_for_private_daemon() -> str | None:
    """Why a test cannot have an engine of its own."""
    if os.geteuid() != 0:
        return "only root can start a Docker engine"
    if shutil.which("dockerd") is None:
        return "no dockerd"
    return missing_for_docker()


def _is_containerd(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() == "containerd"
    return False


class PrivateDaemon:
    """A Docker engine of a test's own, beside the machine's.

    Args:
        folder: where everything of it lies.
        runtimes: further container runtimes, as in ``daemon.json``.
    """

    def __init__(self, folder: Path, runtimes: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/docker.sock"
        self._config = folder / "daemon.json"
        self._config.write_text(json.dumps({"runtimes": dict(runtimes or {})}))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        folder = self.folder
        # One that was killed left process ids, of itself and its containerd: the next would take them for running.
        for left in (folder / "pid", folder / "exec" / "containerd" / "containerd.pid"):
            left.unlink(missing_ok=True)
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "dockerd",
                    *("--config-file", str(self._config), "--data-root", str(folder / "data")),
                    *("--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"), "--host", self.address),
                    *("--bridge", "none", "--iptables=false", "--ip6tables=false", "--log-level", "warn"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 60
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the engine does not start: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def answers(self) -> bool:
        try:
            with contextlib.closing(docker.DockerClient(self.address, version="1.41", timeout=5)) as client:
                return bool(client.ping())
        except (docker.errors.DockerException, OSError):
            return False

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; its containers go on until the next start."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(60)
            # Its containerd goes with it, a moment later.
            deadline = time.monotonic() + 20
            while any(_is_containerd(process) for process in self.processes()) and time.monotonic() < deadline:
                time.sleep(0.05)

    def copy_image(self, name: str) -> None:
        """Bring an image of the machine's engine here."""
        with (
            contextlib.closing(docker.from_env(timeout=60)) as source,
            contextlib.closing(docker.DockerClient(self.address, timeout=60)) as target,
        ):
            target.images.load(b"".join(source.images.get(name).save(named=name)))

    def processes(self) -> list[psutil.Process]:
        """Every process of it: the engine, its containerd, its shims."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(str(self.folder) in part for part in process.cmdline()) and process.pid != os.getpid():
                    found.append(process)
        return found

    def close(self) -> None:
        """Stop it, and leave nothing behind."""
        self._end(signal.SIGTERM)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(f"{self.folder}/")), key=len, reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> PrivateDaemon:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
