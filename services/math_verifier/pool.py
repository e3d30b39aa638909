"""The pool of worker processes of this machine, and the choice between the kinds of pool."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from gristmill.errors import InfrastructureError
from math_verifier.config import MathConfig
from math_verifier.pool_base import Counts, Limits, Pool, Slot, Task
from math_verifier.pool_host import Host, Template


class MathPool(Pool):
    """Runs checks in ``workers`` processes, all forked from one template."""

    def __init__(
        self,
        workers: int = 1,
        *,
        time_limit_s: float = 2.0,
        memory_limit_mb: int = 512,
        queue_size: int = 256,
        tasks_per_worker: int = 20_000,
    ) -> None:
        super().__init__(workers, Limits(time_limit_s, memory_limit_mb, tasks_per_worker), queue_size)
        self._template = Template(memory_limit_mb)
        self._hosts: dict[int, Host] = {}

    @property
    def pids(self) -> list[int]:
        return [pid for host in list(self._hosts.values()) if (pid := host.pid) is not None]

    @property
    def template_pid(self) -> int | None:
        """Process id of the process that forks workers."""
        return self._template.pid

    def _open(self) -> None:
        self._template.start()

    def _slot(self, number: int) -> Slot:
        host = self._hosts[number] = Host(self._template, self.limits, self.counts)
        return _LocalSlot(host, self)

    def _shut(self) -> None:
        self._template.close()


class _LocalSlot:
    def __init__(self, host: Host, pool: MathPool) -> None:
        self._host = host
        self._pool = pool

    def run(self, tasks: Sequence[Task]) -> Sequence[Task]:
        done = 0
        checks = [(task.gold, task.answer, task.policy) for task in tasks]
        try:
            with closing(self._host.run(checks)) as outcomes:
                for outcome in outcomes:
                    tasks[done].result.set_result(outcome)
                    done += 1
                    if self._pool.closing and done < len(tasks):
                        self._host.close()
                        break
        except InfrastructureError:
            if not done:
                raise
        return tasks[done:]

    def close(self) -> None:
        self._host.close()


def open_pool(config: MathConfig, *, workers: int | None = None, time_limit_s: float | None = None) -> Pool:
    """The pool that the configuration names, not started yet; arguments that are given go before it.

    Raises:
        MissingExtra: ``ray`` is chosen and not installed.
    """
    count = workers or config.workers
    limits = Limits(time_limit_s or config.time_limit_s, config.memory_limit_mb, config.tasks_per_worker)
    if config.pool == "ray":
        from math_verifier.pool_ray import RayPool

        return RayPool(
            count,
            limits=limits,
            queue_size=config.queue_size,
            address=config.ray_address,
            cpus=config.ray_cpus,
            start_timeout_s=config.ray_start_timeout_s,
            runtime_env=config.ray_runtime_env,
        )
    return MathPool(
        count,
        time_limit_s=limits.time_limit_s,
        memory_limit_mb=limits.memory_limit_mb,
        tasks_per_worker=limits.tasks_per_worker,
        queue_size=config.queue_size,
    )


__all__ = ["Counts", "MathPool", "Pool", "open_pool"]
