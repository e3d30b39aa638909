"""A process with a Ray cluster that is not the pools', for tests; prints a JSON line per step."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import psutil

from gristmill.errors import InfrastructureError
from math_verifier.config import MathPolicy
from math_verifier.pool_ray import RayPool, import_ray

POLICY = MathPolicy()


def say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def tree() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def main() -> None:
    """A cluster that somebody else started; at the end a check that hangs until this process is killed."""
    ray = import_ray(own=True)
    ray.init(address="local", num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    try:
        with RayPool(2, start_timeout_s=4):
            say(full="two actors on one CPU")
    except InfrastructureError as error:
        say(full=str(error))
    with RayPool(1) as pool:
        status = pool.submit("x+1", "1+x", POLICY).result(30).status
        actors = pool.actor_pids
    wait_gone(actors)
    say(status=status, initialized=ray.is_initialized(), resources=ray.cluster_resources().get("CPU"))
    with RayPool(1, queue_size=4) as pool:
        pool.submit("\\pi", "\\int_0^1 \\frac{\\sin(x^{7}+\\tan x)}{\\sqrt{1+x^{11}\\cos^3 x}} dx", POLICY)
        say(pids=[process.pid for process in tree()])
        time.sleep(60)


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 15
    while any(psutil.pid_exists(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise TimeoutError("actors outlive their pool")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
