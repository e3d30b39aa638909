"""What a program sees of its sandbox. Never imported here: the self-test sends this file's text as a program.

``look()`` collects facts and ``try_*`` do what must not work; every fact is a plain value, judged outside.
"""

# Plain system calls, by their own names, are the point here.
# ruff: noqa: PTH101, PTH108, PTH110, PTH112, PTH114, PTH118, PTH123, PTH208, S108, S606

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NAMESPACE_USER = 0x10000000
CLONE_NUMBER = {"x86_64": 56, "aarch64": 220}
# Names with their numbers on x86-64 and 64-bit ARM, and arguments that get as far as possible.
FORBIDDEN = {
    "ptrace": (101, 117, (0, 0, 0, 0)),
    "process_vm_readv": (310, 270, (os.getpid(), 0, 0, 0, 0, 0)),
    "pidfd_getfd": (438, 438, (-1, 0, 0)),
    "kcmp": (312, 272, (os.getpid(), os.getpid(), 0, 0, 1)),
    "unshare": (272, 97, (NAMESPACE_USER,)),
    "setns": (308, 268, (-1, 0)),
    "mount": (165, 40, (0, 0, 0, 0, 0)),
    "umount2": (166, 39, (0, 0)),
    "fsopen": (430, 430, (0, 0)),
    "open_tree": (428, 428, (-100, 0, 0)),
    "pivot_root": (155, 41, (0, 0)),
    "chroot": (161, 51, (0,)),
    "keyctl": (250, 219, (0, 0, 0, 0, 0)),
    "add_key": (248, 217, (0, 0, 0, 0, 0)),
    "request_key": (249, 218, (0, 0, 0, 0)),
    "bpf": (321, 280, (0, 0, 0)),
    "userfaultfd": (323, 282, (1,)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "io_uring_setup": (425, 425, (1, 0)),
    "io_setup": (206, 0, (1, 0)),
    "personality": (135, 92, (0xFFFFFFFF,)),
    "fanotify_init": (300, 262, (0, 0)),
    "inotify_init1": (294, 26, (0,)),
    "name_to_handle_at": (303, 264, (-100, 0, 0, 0, 0)),
    "open_by_handle_at": (304, 265, (-1, 0, 0)),
    "init_module": (175, 105, (0, 0, 0)),
    "finit_module": (313, 273, (-1, 0, 0)),
    "kexec_load": (246, 104, (0, 0, 0, 0)),
    "reboot": (169, 142, (0, 0, 0, 0)),
    "swapon": (167, 224, (0, 0)),
    "quotactl": (179, 60, (0, 0, 0, 0)),
    "acct": (163, 89, (0,)),
    "settimeofday": (164, 170, (0, 0)),
    "clock_settime": (227, 112, (0, 0)),
    "sethostname": (170, 161, (0, 0)),
    "syslog": (103, 116, (10, 0, 0)),
    "sync": (162, 81, ()),
    "mlockall": (151, 230, (1,)),
    "memfd_create": (319, 279, (0, 0)),
    "shmget": (29, 194, (0, 4096, 0o1600)),
    "semget": (64, 190, (0, 1, 0o1600)),
    "msgget": (68, 186, (0, 0o1600)),
    "mq_open": (240, 180, (0, 0, 0, 0)),
    "seccomp": (317, 277, (2, 0, 0)),
    "prlimit64 of another": (302, 261, (1, 7, 0, 0)),
}
FAMILIES = {"netlink": 16, "packet": 17, "alg": 38, "vsock": 40, "bluetooth": 31, "can": 29}


def outcome(call: Callable[[], object]) -> str:
    """``done``, or the name of the error."""
    try:
        call()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


def status() -> dict[str, str]:
    """Fields of ``/proc/self/status``."""
    with open("/proc/self/status") as lines:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def system_call(numbers: tuple[int, int], arguments: tuple[int, ...]) -> str:
    """``done`` or the error's name; a call that ends the process would be seen by the asker."""
    number = numbers[0] if platform.machine() == "x86_64" else numbers[1]
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))
    return "done" if result >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")


def try_forbidden() -> dict[str, str]:
    """The forbidden system calls that did something else than fail with EPERM or ENOSYS."""
    got = {name: system_call((x86, arm), arguments) for name, (x86, arm, arguments) in FORBIDDEN.items()}
    flags = NAMESPACE_USER | signal.SIGCHLD
    number = CLONE_NUMBER[platform.machine()]
    ctypes.set_errno(0)
    child = LIBC.syscall(ctypes.c_long(number), ctypes.c_long(flags), *(ctypes.c_long(0) for _ in range(4)))
    if child == 0:
        os._exit(0)
    got["clone with a namespace"] = "done" if child > 0 else errno.errorcode[ctypes.get_errno()]
    if child > 0:
        os.waitpid(child, 0)
    for name, family in FAMILIES.items():
        got[f"socket {name}"] = outcome(partial(socket.socket, family, socket.SOCK_RAW))
    return {name: how for name, how in got.items() if how not in ("EPERM", "ENOSYS", "EAFNOSUPPORT")}


def try_network() -> dict[str, Any]:
    """How leaving the sandbox ends."""
    results: dict[str, Any] = {
        "interfaces": sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else ["lo"]
    }
    for name, family, address in (
        ("internet", socket.AF_INET, ("1.1.1.1", 53)),
        ("host", socket.AF_INET, ("172.17.0.1", 2375)),
        ("internet 6", socket.AF_INET6, ("2606:4700:4700::1111", 53)),
    ):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind) as link:
                    link.settimeout(2.0)
                    link.connect(address)
                    results[f"{name} {kind.name}"] = "done"
            except OSError as error:
                results[f"{name} {kind.name}"] = errno.errorcode.get(error.errno or 0, str(error))
    try:
        socket.getaddrinfo("example.com", 80)
        results["dns"] = "done"
    except OSError as error:
        results["dns"] = type(error).__name__
    return results


def mounts() -> list[list[str]]:
    """Mount point, root, file system and options of every mount."""
    found = []
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            left, _, right = line.partition(" - ")
            fields, (kind, *_) = left.split(), right.split()
            found.append([fields[4], fields[3], kind, fields[5]])
    return found


def writable() -> list[str]:
    """Folders in which a file could be created."""
    roots = {
        "/",
        "/opt/gristmill/inside",
        "/opt",
        "/etc",
        "/usr/lib",
        "/var/tmp",
        "/var/lock",
        "/run",
        "/home",
        "/root",
    }
    found = []
    for folder in sorted(roots | {entry[0] for entry in mounts()}):
        path = os.path.join(folder, ".probe")
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
            os.unlink(path)
            found.append(folder)
    return found


def space(folder: str) -> dict[str, int]:
    """Bytes, files and flags of the file system at ``folder``, and whether it lets a file be executed."""
    about = os.statvfs(folder)
    script = os.path.join(folder, ".run")
    with open(script, "w") as out:
        out.write("#!/bin/sh\n")
    os.chmod(script, 0o700)
    child = os.fork()
    if child == 0:
        try:
            os.execv(script, [script])
        finally:
            os._exit(99)
    ran = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 99
    os.unlink(script)
    return {
        "bytes": about.f_blocks * about.f_frsize,
        "files": about.f_files,
        "nosuid": bool(about.f_flag & os.ST_NOSUID),
        "nodev": bool(about.f_flag & os.ST_NODEV),
        "executes": ran,
    }


def try_fill(folder: str, limit: int) -> list[Any]:
    """Bytes written into ``folder`` until it was full, ``limit`` at most, and how it ended."""
    paths: list[str] = []
    block, written, how = b"x" * (1 << 20), 0, "done"
    try:
        while written < limit:
            paths.append(os.path.join(folder, f".fill{len(paths)}"))
            with open(paths[-1], "wb", buffering=0) as out:
                for _ in range(8):
                    written += out.write(block)
    except OSError as error:
        how = errno.errorcode[error.errno or 0]
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return [written, how]


def try_large_file(folder: str, limit: int) -> str:
    """How writing one byte beyond ``limit`` into a sparse file ends."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = os.path.join(folder, ".large")
    with open(path, "wb", buffering=0) as out:
        out.seek(limit)
        how = outcome(lambda: out.write(b"x"))
    os.unlink(path)
    return how


def try_open_files(limit: int) -> int:
    """How many descriptors could be open, ``limit`` at most."""
    opened: list[int] = []
    with contextlib.suppress(OSError):
        while len(opened) < limit:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    for descriptor in opened:
        os.close(descriptor)
    return len(opened)


def try_processes(limit: int) -> int:
    """How many processes there could be at a time, ``limit`` at most."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        while len(children) < limit:
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    return len(children)


def try_memory(each: int, count: int) -> int:
    """How many of ``count`` processes that use ``each`` bytes at the same time were left alive."""
    read, write = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            try:
                part = b"x" * (1 << 20)
                with mmap.mmap(-1, each) as block:
                    for offset in range(0, each - len(part), len(part)):
                        block[offset : offset + len(part)] = part
                    os.write(write, b"x")
                    signal.pause()
            finally:
                os._exit(1)
        children.append(child)
    os.close(write)
    seen, deadline = 0, time.monotonic() + 20.0
    os.set_blocking(read, False)
    while seen < count and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            seen += len(os.read(read, count))
        ended, _ = os.waitpid(-1, os.WNOHANG)
        if ended:
            children.remove(ended)
            break
        time.sleep(0.01)
    left = len(children)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return left


def try_cores(seconds: float) -> float:
    """Processor seconds that four busy children got in a second of wall time."""
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
            os._exit(0)
        children.append(child)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    for child in children:
        os.waitpid(child, 0)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) / wall


def first_process() -> dict[str, str]:
    """How looking into process 1 goes."""
    looked = {}
    for name in ("mem", "environ", "maps", "fd/0", "cwd", "root/etc/passwd"):
        looked[name] = outcome(partial(os.open, f"/proc/1/{name}", os.O_RDONLY))
    looked["memory written"] = outcome(lambda: os.close(os.open("/proc/1/mem", os.O_WRONLY)))
    return looked


def try_signals() -> int:
    """How many signals process 1 was sent; that somebody hears of it is what matters."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    sent = [(signal.SIGTERM, -1), (signal.SIGINT, -1)]
    sent += [(number, 1) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGSTOP, signal.SIGKILL)]
    for number, target in sent:
        with contextlib.suppress(OSError):
            os.kill(target, number)
    time.sleep(0.05)
    return len(sent)


def control_groups() -> dict[str, list[str]]:
    """The limits that the kernel's control groups show in here, in either version's files."""
    files = {
        "memory": ("memory/memory.limit_in_bytes", "memory.max"),
        "swap": ("memory/memory.memsw.limit_in_bytes", "memory.swap.max"),
        "pids": ("pids/pids.max", "pids.max"),
        "cpu": ("cpu/cpu.cfs_quota_us", "cpu.max"),
    }
    found = {}
    for name, choices in files.items():
        for choice in choices:
            with contextlib.suppress(OSError), open(f"/sys/fs/cgroup/{choice}") as file:
                found[name] = [choice, file.read().strip()]
                break
    return found


def set_user_ids() -> list[str]:
    """Programs of the image that run with their owner's rights."""
    found = []
    for folder in ("/bin", "/sbin", "/usr", "/opt", "/lib", "/etc"):
        for at, _, names in os.walk(folder) if not os.path.islink(folder) else ():
            for name in names:
                with contextlib.suppress(OSError):
                    path = os.path.join(at, name)
                    mode = os.lstat(path).st_mode
                    if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                        found.append(path)
    return found


def look() -> dict[str, Any]:
    """Everything that can be seen without doing harm."""
    about = status()
    ids = [*os.getresuid(), *os.getresgid(), *os.getgroups()]
    return {
        "ids": ids,
        "capabilities": {name: about.get(name, "0") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")},
        "no_new_privileges": about.get("NoNewPrivs"),
        "seccomp": about.get("Seccomp"),
        "kernel": platform.release(),
        "limits": {
            name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
            for name in ("CORE", "FSIZE", "NOFILE", "CPU", "AS", "MEMLOCK", "MSGQUEUE", "RTPRIO")
        },
        "control_groups": control_groups(),
        "mounts": mounts(),
        "writable": writable(),
        "tmp": space("/tmp"),
        "shm": space("/dev/shm"),
        "network": try_network(),
        "environment": sorted(os.environ),
        "docker_socket": [path for path in ("/var/run/docker.sock", "/run/docker.sock") if os.path.exists(path)],
        "devices": sorted(os.listdir("/dev")),
        "forbidden": try_forbidden(),
        "first_process": first_process(),
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "set_user_ids": set_user_ids(),
        "python": sys.version.split()[0],
    }
