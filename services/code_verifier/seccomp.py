"""The sandbox's seccomp profile: what programs of CPython need, and nothing else.

Every system call that is not listed fails with EPERM. The profile is in Docker's own format and holds for x86-64 and
64-bit ARM; other call conventions of the same processor (32 bit, x32) are not listed, so they end the process.

Left out on purpose, beside everything that needs a capability anyway:

* looking into other processes: ``ptrace``, ``process_vm_*``, ``pidfd_getfd``, ``kcmp``, ``get_robust_list``,
  ``prlimit64`` and ``sched_*`` on others;
* what would outlive a program in its container: System V IPC, POSIX message queues, keyrings;
* what is counted per user over all containers of the host: ``inotify``, ``io_setup``;
* wide surfaces of the kernel: ``bpf``, ``io_uring``, ``userfaultfd``, ``perf_event_open``, ``mount`` and its kin,
  namespaces, ``personality``, modules, sockets but UNIX and Internet ones;
* what the whole host feels: ``sync``, ``mlock``, ``memfd_create`` (files to execute beside the ``noexec`` tmpfs).
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

ENOSYS = 38

_FILES = """
access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64
fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fstat fstatfs
fsync ftruncate futimesat getcwd getdents getdents64 getxattr ioctl lchown lgetxattr link linkat listxattr llistxattr
lseek lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2 pipe pipe2 pread64 preadv preadv2 pwrite64
pwritev pwritev2 read readahead readlink readlinkat readv rename renameat renameat2 rmdir sendfile splice stat statfs
statx symlink symlinkat tee truncate umask unlink unlinkat utime utimensat utimes write writev
"""
# pselect is gVisor's name of pselect6.
_WAITING = """
epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 poll ppoll pselect pselect6
select signalfd signalfd4 timerfd_create timerfd_gettime timerfd_settime
"""
_SOCKETS = """
accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg sendto
setsockopt shutdown
"""
_MEMORY = "brk madvise membarrier mincore mmap mprotect mremap msync munmap"
_TIME = """
alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
timer_delete timer_getoverrun timer_gettime timer_settime times
"""
_PROCESSES = """
arch_prctl capget execve execveat exit exit_group fork futex getcpu getegid geteuid getgid getgroups getpgid getpgrp
getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid kill pause
pidfd_open pidfd_send_signal prctl restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_yield set_robust_list
set_tid_address setgid setpgid setregid setresgid setresuid setreuid setrlimit setsid setuid sigaltstack sysinfo tgkill
tkill uname vfork wait4 waitid
"""

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NAMESPACES = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
_UNIX, _INET, _INET6 = 1, 2, 10


def _allow(names: str | list[str], *args: dict[str, int | str]) -> dict[str, Any]:
    return {
        "names": names.split() if isinstance(names, str) else names,
        "action": "SCMP_ACT_ALLOW",
        "args": list(args),
    }


def _equal(index: int, value: int) -> dict[str, int | str]:
    return {"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_EQ"}


def profile() -> dict[str, Any]:
    """The profile as Docker reads it."""
    everything = " ".join((_FILES, _WAITING, _SOCKETS, _MEMORY, _TIME, _PROCESSES)).split()
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": [
            _allow(sorted(everything)),
            # No new namespaces. The flags of clone3 lie in memory, where no filter sees them: it does not exist here,
            # so that the C library falls back to clone.
            _allow("clone", {"index": 0, "value": _NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}),
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS, "args": []},
            *(_allow("socket socketpair", _equal(0, family)) for family in (_UNIX, _INET, _INET6)),
            # One's own only: 0 is the caller.
            _allow("prlimit64", _equal(0, 0)),
            _allow("sched_setaffinity", _equal(0, 0)),
            _allow("setpriority", _equal(0, 0), _equal(1, 0)),
        ],
    }


@cache
def profile_json() -> str:
    """The profile as the value of Docker's ``seccomp=`` option."""
    return json.dumps(profile(), separators=(",", ":"))
