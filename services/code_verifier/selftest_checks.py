"""What the self-test expects of the probe's facts: one function per limit, each saying what it saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from code_verifier.container import INODES, OVERHEAD_BYTES, SHM_BYTES, Role
from code_verifier.job import Limits


@dataclass(frozen=True, slots=True)
class Facts:
    """What the probe said.

    Attributes:
        look: its facts.
        answers: its answers by name, None where it did not live to give one.
        told: by the same names, how that program ended.
        role: the container it was in.
        limits: what was asked of the sandbox.
    """

    look: Mapping[str, Any]
    answers: Mapping[str, Any]
    told: Mapping[str, str]
    role: Role
    limits: Limits

    @property
    def gvisor(self) -> bool:
        """Whether the kernel is gVisor's, which shows no control groups."""
        return str(self.look["kernel"]) == "4.4.0" and not self.look["control_groups"]


Result: TypeAlias = tuple[bool, str]

# Where Docker puts files of its own: read-only, and empty of secrets.
DOCKER_FILES = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
# File systems that show nothing of the host's disks.
PSEUDO = {"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"}
ENVIRONMENT = {"HOME", "HOSTNAME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED"}
ENVIRONMENT |= {
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "PYTHONUNBUFFERED",
    "PWD",
    "TMPDIR",
    "MALLOC_ARENA_MAX",
    "TERM",
    "USER",
    "LOGNAME",
    "TZ",
}
DEVICES = {"core", "fd", "full", "fuse", "mqueue", "net", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin"}
DEVICES |= {"stdout", "tty", "urandom", "zero"}
WRITABLE = {"/tmp", "/dev/shm"}  # noqa: S108 - inside the container
CORES = 1.35
"""Processor seconds per second that four busy processes may have got: one core, and what measuring blurs."""


def _list(values: Any) -> str:
    return ", ".join(map(str, values)) or "none"


def _user(facts: Facts) -> Result:
    ids = facts.look["ids"]
    return all(ids) and bool(ids), f"ids {_list(sorted(set(ids)))}"


def _capabilities(facts: Facts) -> Result:
    held = {name: value for name, value in facts.look["capabilities"].items() if int(value, 16)}
    return not held, _list(f"{name} {value}" for name, value in held.items())


def _no_new_privileges(facts: Facts) -> Result:
    value = facts.look["no_new_privileges"]
    # gVisor does not show it before 2023; it has no programs that lend rights either, see below.
    return value == "1" or (value is None and facts.gvisor), f"NoNewPrivs {value}"


def _seccomp(facts: Facts) -> Result:
    return facts.look["seccomp"] == "2", f"Seccomp {facts.look['seccomp']}"


def _ptrace(facts: Facts) -> Result:
    got = facts.look["forbidden"].get("ptrace")
    return got is None, got or "refused"


def _namespaces(facts: Facts) -> Result:
    names = ("unshare", "setns", "clone with a namespace", "mount", "pivot_root")
    got = {name: how for name, how in facts.look["forbidden"].items() if name in names}
    return not got, _list(f"{name}: {how}" for name, how in got.items()) if got else "refused"


def _system_calls(facts: Facts) -> Result:
    got = facts.look["forbidden"]
    return not got, _list(f"{name}: {how}" for name, how in got.items()) if got else "refused"


def _network(facts: Facts) -> Result:
    seen = facts.look["network"]
    reached = [name for name, how in seen.items() if how == "done"]
    strange = [name for name in seen["interfaces"] if name != "lo"]
    return not reached and not strange, _list(seen["interfaces"] + reached)


def _names(facts: Facts) -> Result:
    how = facts.look["network"]["dns"]
    return how != "done", f"getaddrinfo: {how}"


def _root(facts: Facts) -> Result:
    options = next((entry[3] for entry in reversed(facts.look["mounts"]) if entry[0] == "/"), "?")
    return "ro" in options.split(","), options


def _writable(facts: Facts) -> Result:
    found = set(facts.look["writable"])
    return found <= WRITABLE, _list(sorted(found))


def _temporary_size(facts: Facts) -> Result:
    filled, look = facts.answers["fill"], facts.look
    small = look["tmp"]["bytes"] <= facts.limits.tmpfs_bytes and look["shm"]["bytes"] <= SHM_BYTES
    if filled is None:
        return False, facts.told["fill"]
    written, how = filled
    return small and how == "ENOSPC" and written <= facts.limits.tmpfs_bytes, f"{written >> 20} MiB, then {how}"


def _temporary_files(facts: Facts) -> Result:
    counts = [facts.look[name]["files"] for name in ("tmp", "shm")]
    # gVisor keeps its files in the sandbox's own memory and counts none.
    return facts.gvisor or all(0 < count <= INODES for count in counts), _list(counts)


def _temporary_programs(facts: Facts) -> Result:
    runs = [name for name in ("tmp", "shm") if facts.look[name]["executes"]]
    return not runs, f"{_list(runs)} executable"


def _memory(facts: Facts) -> Result:
    shown = facts.look["control_groups"].get("memory", ["", "not shown"])[1]
    left = facts.answers["memory"]
    limit = facts.limits.memory_bytes + OVERHEAD_BYTES
    within = facts.gvisor or (shown.isdigit() and int(shown) <= limit)
    # Ended itself, or one of its children: either way not all of them had their memory.
    return within and (left is None or left < 4), f"limit {shown}; " + (
        facts.told["memory"] if left is None else f"{left} of 4 processes of 60 % each live"
    )


def _swap(facts: Facts) -> Result:
    if facts.gvisor:
        return True, "not shown"
    file, shown = facts.look["control_groups"].get("swap", ("", "not shown"))
    allowed = "0" if file == "memory.swap.max" else str(facts.limits.memory_bytes + OVERHEAD_BYTES)
    return shown == allowed, f"{file.rpartition('/')[2]} {shown}"


def _processes(facts: Facts) -> Result:
    shown = facts.look["control_groups"].get("pids", ["", "not shown"])[1]
    forks = facts.answers["forks"]
    got = facts.told["forks"] if forks is None else f"{forks} forked"
    bounded = forks is None or forks < facts.limits.processes + 64
    return bounded and (facts.gvisor or shown.isdigit()), f"limit {shown}; {got}"


def _cores(facts: Facts) -> Result:
    file, shown = facts.look["control_groups"].get("cpu", ("", "not shown"))
    if facts.gvisor:
        # It counts a process as running whenever it wants to run, and shows no control groups.
        return True, "not to be seen from inside (gVisor)"
    used = facts.answers["cores"]
    quota, _, period = shown.partition(" ")
    if file == "cpu.max":
        within = quota.isdigit() and int(quota) <= int(period or 100_000)
    else:
        within = quota.isdigit() and int(quota) <= 100_000
    measured = used is not None and used <= CORES
    return within and measured, f"quota {shown}; " + (facts.told["cores"] if used is None else f"{used:.2f} cores used")


def _processor_time(facts: Facts) -> Result:
    seconds = facts.look["limits"]["CPU"]
    return seconds > 0, f"RLIMIT_CPU {seconds}"


def _file_size(facts: Facts) -> Result:
    how = facts.answers["large"]
    hard = facts.look["limits"]["FSIZE"]
    return how == "EFBIG" and 0 < hard <= facts.limits.file_bytes, f"{hard} bytes, then {how or facts.told['large']}"


def _open_files(facts: Facts) -> Result:
    count = facts.answers["files"]
    if count is None:
        return False, facts.told["files"]
    return count <= facts.limits.open_files, f"{count} could be opened"


def _core_dumps(facts: Facts) -> Result:
    return facts.look["limits"]["CORE"] == 0, f"RLIMIT_CORE {facts.look['limits']['CORE']}"


def _docker_socket(facts: Facts) -> Result:
    return not facts.look["docker_socket"], _list(facts.look["docker_socket"])


def _host_mounts(facts: Facts) -> Result:
    strange = []
    for point, root, kind, options in facts.look["mounts"]:
        read_only = "ro" in options.split(",")
        if kind in PSEUDO or (point == "/" and kind in {"overlay", "9p", "btrfs", "zfs", "fuse", "ext4", "xfs"}):
            continue
        if point in DOCKER_FILES and read_only:
            continue
        strange.append(f"{point} ({kind} {root}, {options})")
    return not strange, _list(strange)


def _devices(facts: Facts) -> Result:
    strange = sorted(set(facts.look["devices"]) - DEVICES)
    return not strange, _list(strange) if strange else f"{len(facts.look['devices'])} harmless"


def _environment(facts: Facts) -> Result:
    strange = sorted(set(facts.look["environment"]) - ENVIRONMENT)
    return not strange, _list(strange if strange else facts.look["environment"])


def _first_process(facts: Facts) -> Result:
    got = {name for name, how in facts.look["first_process"].items() if how == "done"}
    # gVisor lets a user look at all processes of his, traceable or not. A program that speaks for its warden gains
    # nothing: what comes out of a candidate's container makes no verdict.
    allowed = {"environ", "maps", "cwd", "fd/0", "root/etc/passwd"} if facts.gvisor else set()
    return got <= allowed, f"open: {_list(sorted(got))}" if got else "closed"


def _signals(facts: Facts) -> Result:
    sent = facts.answers["signals"]
    if sent is None and facts.gvisor:
        # Its process 1 is one like any other. A program that ends its sandbox fails for it, and that is all.
        return True, "end the sandbox (gVisor)"
    return sent is not None, facts.told["signals"] if sent is None else f"{sent} outlived"


def _other_processes(facts: Facts) -> Result:
    # The warden, the program, and at most a helper of its own; never anything of the host or of the other container.
    count = len(facts.look["processes"])
    return count <= 4 and max(facts.look["processes"]) < 100_000, f"{count} processes visible"


def _set_user_ids(facts: Facts) -> Result:
    return not facts.look["set_user_ids"], _list(facts.look["set_user_ids"])


CHECKS: dict[str, Callable[[Facts], Result]] = {
    "user": _user,
    "capabilities": _capabilities,
    "no new privileges": _no_new_privileges,
    "set-user-id programs": _set_user_ids,
    "seccomp": _seccomp,
    "ptrace": _ptrace,
    "namespaces": _namespaces,
    "system calls": _system_calls,
    "network": _network,
    "name resolution": _names,
    "read-only root": _root,
    "writable places": _writable,
    "host mounts": _host_mounts,
    "docker socket": _docker_socket,
    "devices": _devices,
    "environment": _environment,
    "first process": _first_process,
    "signals": _signals,
    "other processes": _other_processes,
    "temporary space": _temporary_size,
    "temporary files": _temporary_files,
    "temporary programs": _temporary_programs,
    "memory": _memory,
    "swap": _swap,
    "processes": _processes,
    "cores": _cores,
    "processor time": _processor_time,
    "file size": _file_size,
    "open files": _open_files,
    "core dumps": _core_dumps,
}
