"""Boot script of PID 1 of a sandbox container; the loop is :mod:`.supervisor`.

It refuses to be anything but PID 1: it kills every process that it can see. It starts itself again with a clean
environment and a fixed hash seed, whatever flags and variables it was given, so that verdicts repeat and no variable of
the image or the engine reaches a program.
"""

from __future__ import annotations

import os
import sys
from typing import Any

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp/work",  # noqa: S108 - the container's own
    "TMPDIR": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    # Each further arena of a thread reserves 64 MiB of the address space that a program may have.
    "MALLOC_ARENA_MAX": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
FLAGS = "-sPB"


def main() -> int:
    """Boot, or refuse."""
    if os.getpid() != 1:
        sys.stderr.write("warden: kills every process that it can see, so it runs as PID 1 of a container only\n")
        return 2
    if dict(os.environ) != ENVIRONMENT:
        os.execve(sys.executable, [sys.executable, FLAGS, os.path.abspath(__file__)], ENVIRONMENT)  # noqa: S606, PTH100
    # Hooks of threading and random cost every fork here a millisecond. The children register them for their own forks.
    hooks: list[dict[str, Any]] = []
    register = os.register_at_fork
    os.register_at_fork = lambda **hook: hooks.append(hook)
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    sys.path.insert(0, folder)
    supervisor = __import__("inside.supervisor", fromlist=["serve"])
    sys.path.remove(folder)
    child = supervisor.serve(hooks, register)
    return int(child()) if child is not None else 0


if __name__ == "__main__":
    sys.exit(main())
