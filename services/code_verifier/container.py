"""The two containers of a sandbox: how they are made, and how they go.

A container is asked for as one document, :func:`container_config`, so that everything it may and may not do can be read
in one place. Its standard input closes with the connection that holds it (``StdinOnce``), its first process ends at
that, and Docker removes it (``AutoRemove``): a verifier that is killed leaves nothing running. What it created and had
not started yet is removed by the next one, see :mod:`code_verifier.gc`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import docker.errors

from code_verifier.engine import Engine, EngineAway
from code_verifier.job import Limits
from code_verifier.seccomp import profile_json
from gristmill.errors import InfrastructureError

Role: TypeAlias = Literal["candidate", "judge"]

SANDBOX_LABEL = "gristmill.sandbox"
OWNER_LABEL = "gristmill.sandbox.owner"
ROLE_LABEL = "gristmill.sandbox.role"
POOL_LABEL = "gristmill.sandbox.pool"

FIRST_UID = 10001
UIDS = 2000
WRITABLE, SHARED_MEMORY = "/tmp", "/dev/shm"  # noqa: S108 - inside the container
OVERHEAD_BYTES = 64 << 20
"""Memory of a container beyond a program's own: the warden, and the kernel's for both."""
SHM_BYTES = 16 << 20
_COUNTS = {
    "memory": (
        *("max_usage_in_bytes", "failcnt", "memsw.max_usage_in_bytes", "memsw.failcnt", "kmem.max_usage_in_bytes"),
        *("kmem.failcnt", "kmem.tcp.max_usage_in_bytes", "kmem.tcp.failcnt", "stat", "numa_stat", "peak", "swap.peak"),
        *("pressure", "swap.events", "zswap.current"),
    ),
    "cpuacct": (
        *("usage", "usage_all", "usage_percpu", "usage_percpu_sys", "usage_percpu_user", "usage_sys", "usage_user"),
        "stat",
    ),
    "cpu": ("stat", "pressure"),
    "pids": ("events", "peak"),
    "io": ("stat", "pressure"),
}
MASKED = (
    # Docker's own list, which this one replaces.
    *("/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"),
    "/sys/devices/virtual/powercap",
    # What control groups count, of either version: one program would read there what the last one used.
    *("/sys/fs/cgroup/blkio", "/sys/fs/cgroup/hugetlb", "/sys/fs/cgroup/perf_event", "/sys/fs/cgroup/cgroup.stat"),
    *(
        f"/sys/fs/cgroup/{folder}{kind}.{name}"
        for kind, names in _COUNTS.items()
        for name in names
        for folder in ("", f"{kind}/", *(("cpu,cpuacct/",) if kind.startswith("cpu") else ()))
    ),
)
"""Files that a container does not see; those that there are not are nobody's trouble."""
INODES = 16_384


@dataclass(frozen=True, slots=True)
class Plan:
    """What all sandboxes of a pool have in common.

    Attributes:
        image: id or name of the image.
        owner: whose they are, see :func:`owner_label`.
        limits: what a program may use.
        runtime: container runtime, None for the engine's default.
        pool: name of the pool, by which its containers can be found.
        alter: last hand on the engine's create call; for tests that take a limit away.
    """

    image: str
    owner: str
    limits: Limits
    runtime: str | None = None
    pool: str = ""
    alter: Callable[[Role, dict[str, Any]], dict[str, Any]] = lambda _role, config: config


@cache
def _machine() -> str:
    """This machine, since its last start, as the process sees it: process ids mean something only there."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    parts = [socket.gethostname(), boot.read_text().strip() if boot.exists() else "?"]
    parts.append(str(namespace.stat().st_ino) if namespace.exists() else "?")
    return "/".join(parts)


def start_time(pid: int) -> str | None:
    """When a process started, in ticks since the machine's start; None where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else rest[18]


def owner_label(pid: int | None = None) -> str:
    """``host/boot/namespace:pid:start`` of a process, this one unless another is given."""
    pid = os.getpid() if pid is None else pid
    return f"{_machine()}:{pid}:{start_time(pid) or '?'}"


def owner_state(label: str) -> Literal["alive", "dead", "unknown"]:
    """Whether a container's owner lives; unknown where it was on another machine, or cannot be looked up."""
    machine, pid, start = [*label.rsplit(":", 2), "", ""][:3]
    if machine != _machine() or not pid.isdigit() or not Path("/proc/self/stat").exists():
        return "unknown"
    return "alive" if start_time(int(pid)) == start else "dead"


def _processes(plan: Plan) -> int:
    """The program's, and the warden. gVisor's own threads count too, and about two for each process in it."""
    count = plan.limits.processes + 8
    return 2 * count + 64 if plan.runtime == "runsc" else count


def container_config(plan: Plan, role: Role, serial: int) -> dict[str, Any]:
    """The body of the engine's create call.

    Args:
        plan: what all sandboxes share.
        role: which of the two.
        serial: number of the sandbox. Live sandboxes have users of their own, for the kernel counts some things per
            user over all containers (queued signals, pages in pipes).
    """
    limits = plan.limits
    uid = FIRST_UID + 2 * (serial % UIDS) + (role == "judge")
    # noexec: a program needs to execute nothing but what the image brings; python runs scripts from there all the same.
    tmpfs = f"rw,nosuid,nodev,noexec,mode=1777,nr_inodes={INODES},size="
    host: dict[str, Any] = {
        "AutoRemove": True,
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "Tmpfs": {WRITABLE: f"{tmpfs}{limits.tmpfs_bytes}", SHARED_MEMORY: f"{tmpfs}{SHM_BYTES}"},
        # An IPC namespace of its own, without Docker's /dev/shm: the one above has a bound on files.
        "IpcMode": "none",
        "MaskedPaths": list(MASKED),
        "CapDrop": ["ALL"],
        "CapAdd": [],
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={profile_json()}"],
        "Memory": limits.memory_bytes + OVERHEAD_BYTES,
        "MemorySwap": limits.memory_bytes + OVERHEAD_BYTES,
        "OomKillDisable": False,
        # When the host itself is short of memory, a sandbox goes before anything else.
        "OomScoreAdj": 500,
        "NanoCpus": 1_000_000_000,
        "PidsLimit": _processes(plan),
        "Ulimits": [
            {"Name": name, "Soft": value, "Hard": value}
            for name, value in (
                ("core", 0),
                ("fsize", limits.file_bytes),
                ("memlock", 0),
                # No POSIX message queue, not even by creating a file in /dev/mqueue.
                ("msgqueue", 0),
                ("nofile", limits.open_files),
                ("rtprio", 0),
                ("sigpending", 1024),
            )
        ],
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "Init": False,
        "Binds": [],
        "Mounts": [],
        "Devices": [],
    }
    if plan.runtime is not None:
        host["Runtime"] = plan.runtime
    return {
        "Image": plan.image,
        "User": f"{uid}:{uid}",
        "Hostname": "sandbox",
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", f"HOME={WRITABLE}", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"],
        "WorkingDir": WRITABLE,
        "NetworkDisabled": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        # An engine that is told to stop waits for its containers: these have nothing to finish.
        "StopSignal": "SIGKILL",
        "StopTimeout": 1,
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {SANDBOX_LABEL: "1", OWNER_LABEL: plan.owner, ROLE_LABEL: role, POOL_LABEL: plan.pool},
        "HostConfig": host,
    }


class Container:
    """A running container with the connection that keeps it alive.

    Attributes:
        id: Docker's.
        role: which of the two.
        socket: the connection to its first process: what is written goes to standard input; standard output and
            standard error come in Docker's stream frames.
    """

    def __init__(self, engine: Engine, role: Role, config: dict[str, Any]) -> None:
        """Create and start it.

        Raises:
            EngineAway: the engine is.
            InfrastructureError: it does not start; the message is the engine's.
        """
        self.role = role
        try:
            with engine.calls() as api:
                self.id = str(api.create_container_from_config(config)["Id"])
        except docker.errors.APIError as error:
            raise InfrastructureError(f"no {role} container: {error.explanation or error}") from error
        self._stream: Any = None
        try:
            with engine.calls() as api:
                # Attached before it starts, so that nothing it says is lost and standard input is never without a hold.
                self._stream = api.attach_socket(self.id, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
                self.socket: socket.socket = getattr(self._stream, "_sock", self._stream)
                api.start(self.id)
        except docker.errors.APIError as error:
            self.remove(engine)
            raise InfrastructureError(f"the {role} container does not start: {error.explanation or error}") from error
        except EngineAway:
            with contextlib.suppress(EngineAway):
                self.remove(engine)
            raise

    def hang_up(self) -> None:
        """End the connection without closing it: whoever reads it reads its end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection: the container's first process reads the end of its input and ends."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        self.hang_up()
        response = getattr(stream, "_response", None)
        for thing in (stream, self.socket):
            with contextlib.suppress(OSError, ValueError):
                thing.close()
        if response is not None:
            # Its descriptor is closed already, which it complains of.
            with contextlib.suppress(OSError, ValueError):
                response.close()

    def remove(self, engine: Engine) -> None:
        """Remove it, whatever it does; returns when it is gone.

        Raises:
            EngineAway: the engine is away, so that nothing is known.
        """
        self.close()
        remove_container(engine, self.id)


def remove_container(engine: Engine, container: str, *, wait_s: float = 30.0) -> bool:
    """Kill and remove a container; returns when it is gone. False if it was gone already.

    Raises:
        EngineAway: the engine is away, or does not get rid of it.
    """
    deadline = time.monotonic() + wait_s
    found = False
    while True:
        try:
            with engine.calls() as api:
                api.remove_container(container, force=True, v=True)
            found, trouble = True, "it is still listed"
        except docker.errors.NotFound:
            return found
        except docker.errors.APIError as error:
            # Most often its own AutoRemove is at work already.
            found, trouble = True, str(error.explanation)
        except EngineAway as error:
            # An engine that was killed needs a while to get rid of what it finds.
            if not engine.answers():
                raise
            trouble = str(error)
        if time.monotonic() > deadline:
            raise EngineAway(f"container {container[:12]} is not removed after {wait_s:g} s: {trouble}")
        time.sleep(0.02)
