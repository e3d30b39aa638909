"""The processes behind the pool: a template that imports SymPy once, and the workers that it forks.

The template reads requests from a socket: each brings one end of a connection, on which the new worker then
answers checks until it closes. A fork takes milliseconds where a fresh interpreter with SymPy takes half a second,
and no module of the caller is imported again. When the caller goes away, however it ends, so do template and workers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

from gristmill.children import die_with_parent
from math_verifier.check import Outcome, check
from math_verifier.framing import Channel

RECURSION = 20_000
MEBIBYTE = 1024 * 1024


def warm() -> None:
    """Import and run what the first check would otherwise wait for."""
    from math_verifier.compare import symbolic
    from math_verifier.config import MathPolicy
    from math_verifier.parse.grammar import parse

    policy = MathPolicy()
    check("\\frac{1}{2}", "\\sin^2 x + \\sqrt{2}", policy)
    symbolic.symbolic(parse("\\sin^2 x"), parse("1-\\cos^2 x"))
    for left, right in (
        ("\\sum_{n=0}^\\infty \\frac{1}{n!}", "e"),
        ("\\int_0^\\infty e^{-x} dx", "1"),
        ("\\lim_{x\\to0} \\frac{\\sin x}{x}", "1"),
    ):
        symbolic.symbolic(parse(left), parse(right))


def serve(channel: Channel, memory_limit_mb: int) -> None:
    """Answer checks until the connection closes. A check that hits the memory limit is the worker's last.

    A message is a list of ``(gold, answer, policy)``, where the policy is None if it is that of the check before. Each
    check is answered on its own, as soon as it is done: ``(status, outcome, peak memory in MiB)``.
    """
    limit = memory_limit_mb * MEBIBYTE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(RECURSION)
    policy: Any = None
    while True:
        try:
            checks = channel.receive()
        except EOFError:
            return
        for gold, answer, own in checks:
            policy = own or policy
            start = time.perf_counter()
            outcome: Outcome | None
            try:
                outcome = check(gold, answer, policy)
            except (MemoryError, SystemError):
                # CPython 3.11 sometimes loses a MemoryError and raises SystemError ("returned NULL") in its place.
                outcome = None
            except RecursionError:
                outcome = Outcome("unparsable", answer, "string", "nested too deeply")
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            if outcome is None:
                channel.send(("memory", None, peak_mb))
                return
            seconds = time.perf_counter() - start
            found = (outcome.status, outcome.extracted, outcome.stage, outcome.reason, seconds)
            channel.send(("done", found, peak_mb))


def template(control: socket.socket, memory_limit_mb: int) -> None:
    """Fork a worker per request until the control socket closes; then take the workers along."""
    children: set[int] = set()
    tie = die_with_parent()
    control.sendall(b"R")
    while True:
        ready, _, _ = select.select([control], [], [], 0.2)
        _reap(children)
        if not ready:
            continue
        message, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            break
        process = os.fork()
        if process == 0:
            if tie is not None:
                tie()  # Else a hung check whose template and owner are both killed would run on for ever.
            control.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                serve(Channel(socket.socket(fileno=handles[0])), memory_limit_mb)
            except (BrokenPipeError, ConnectionResetError):
                os._exit(0)
            os._exit(0)
        for handle in handles:
            os.close(handle)
        children.add(process)
        control.sendall(process.to_bytes(8, "big"))
    for process in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    _reap(children)


def _reap(children: set[int]) -> None:
    while children:
        try:
            process, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            children.clear()
            return
        if process == 0:
            return
        children.discard(process)


def main() -> None:
    """Entry point: ``python -m math_verifier.worker_main FD MEMORY_MB``; signals meant for the service pass it by."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    # What is made now stays for good: it is looked through once, at the end, and not while it grows.
    gc.disable()
    warm()
    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        template(control, int(sys.argv[2]))
    except (BrokenPipeError, ConnectionResetError):
        return


if __name__ == "__main__":
    main()
