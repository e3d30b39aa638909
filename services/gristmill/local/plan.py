"""What a line will need of this machine, settled before anything is started: GPUs, ports, servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gristmill.broker import free_port
from gristmill.config import merge
from gristmill.errors import ConfigError
from gristmill.local.config import LocalConfig
from gristmill.local.delivery import by_ipc, is_chosen, setting
from gristmill.local.gpus import visible_gpus
from gristmill.local.helpers import gristmill_command
from gristmill.local.options import ResolvedLine
from gristmill.local.placement import Engine, Gpu, Placement, Wishes, place
from gristmill.local.sglang_server import (
    AUTO_BATCH,
    LoraRoom,
    ServerNeeds,
    check_free,
    check_installed,
    server_command,
    server_env,
)

Machine = Callable[[], tuple[tuple[Gpu, ...], str]]


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine that the runner starts."""

    name: str
    url: str
    command: list[str]
    env: dict[str, str]
    start_timeout_s: float
    hang_timeout_s: float | None
    """Seconds without an answer after which it counts as hung; None when it is not watched."""


@dataclass(frozen=True, slots=True)
class LinePlan:
    """The engines, who gets which GPU, and the settings that follow."""

    kind: Engine
    urls: tuple[str, ...]
    ports: tuple[int, ...] = ()
    placement: Placement | None = None
    values: dict[str, Any] = field(default_factory=dict)
    """For the run's configuration."""
    remarks: tuple[str, ...] = ()

    @property
    def trainer_env(self) -> dict[str, str]:
        """Environment of the trainer."""
        seat = self.placement.trainer if self.placement else None
        return seat.env if seat else {}


def make_plan(resolved: ResolvedLine, machine: Machine = visible_gpus) -> LinePlan:
    """Look at the machine and decide; starts nothing.

    Raises:
        ConfigError: SGLang is not installed, a GPU is not there or not free, or settings contradict.
    """
    settings = resolved.settings
    local = settings.section("local", LocalConfig)
    kind: Engine = "running" if resolved.engines else local.engine
    wishes = _wishes(resolved, kind, local)
    if kind == "sglang":
        check_installed(local.sglang)
    gpus: tuple[Gpu, ...] = ()
    placement = None
    if kind == "sglang" or not wishes.none or (kind == "embedded" and not wishes.engine_on_cpu):
        gpus, hidden = machine()
        placement = place(gpus, wishes, hidden)
    if kind != "running":
        _check(resolved, kind, gpus, placement)
    ports = _ports(resolved, kind, placement, local)
    urls = resolved.engines or tuple(f"http://127.0.0.1:{port}" for port in ports)
    values: dict[str, Any] = {"generator": {"engines": list(urls)}}
    if kind == "embedded":
        values["engine"] = {"port": ports[0]}
    remarks = tuple(resolved.remarks)
    if placement is not None:
        values = merge(values, _placed_values(resolved, kind, placement))
        remarks = (*remarks, *placement.describe())
    backend = _group_backend(resolved, placement)
    return LinePlan(kind, urls, ports, placement, merge(values, backend), remarks)


def engine_plans(plan: LinePlan, resolved: ResolvedLine, policy_dir: Path, config_path: Path) -> list[EnginePlan]:
    """The engines to start; none when the user named running ones."""
    if plan.kind == "running":
        return []
    seats = plan.placement.engines if plan.placement else ()
    if plan.kind == "embedded":
        env = seats[0].env if seats else {}
        command = gristmill_command("engine", "--config", str(config_path))
        return [EnginePlan("engine", plan.urls[0], command, {**resolved.secrets, **env}, START_TIMEOUT_S, None)]
    config = resolved.settings.section("local", LocalConfig).sglang
    needs = _needs(resolved, plan)
    return [
        EnginePlan(
            name="engine" if len(seats) == 1 else f"engine-{number}",
            url=url,
            command=server_command(config, needs, policy_dir, port, seat),
            env=server_env(config, seat),
            start_timeout_s=config.start_timeout_s,
            hang_timeout_s=config.hang_timeout_s,
        )
        for number, (url, port, seat) in enumerate(zip(plan.urls, plan.ports, seats, strict=True))
    ]


START_TIMEOUT_S = 600.0
"""Seconds that an engine other than the runner's own SGLang may take until it answers."""


def _wishes(resolved: ResolvedLine, kind: Engine, local: LocalConfig) -> Wishes:
    settings = resolved.settings
    return Wishes(
        engine_kind=kind,
        trainer=local.gpus.trainer,
        engine=local.gpus.engine,
        share=local.gpus.share,
        tp=local.sglang.tp,
        trainer_on_cpu=setting(settings, "trainer.device") == "cpu",
        engine_on_cpu=kind == "embedded" and setting(settings, "engine.device") == "cpu",
        same_view=by_ipc(settings),
        engine_fraction=local.sglang.mem_fraction,
        trainer_fraction=setting(settings, "trainer.gpu_memory_fraction"),
    )


def _check(resolved: ResolvedLine, kind: Engine, gpus: tuple[Gpu, ...], placement: Placement | None) -> None:
    """Raises ConfigError for settings that a placement would overrule, or that the GPUs cannot serve."""
    settings = resolved.settings
    trainer = placement is not None and placement.trainer is not None
    engine = placement is not None and bool(placement.engines)
    for role, path, seated in (
        ("trainer", "trainer.device", trainer),
        ("engine", "engine.device", engine and kind == "embedded"),
    ):
        device = str(setting(settings, path, ""))
        if seated and device.startswith("cuda:"):
            raise ConfigError(
                f"{path} is {device}, but the local runner says which GPU the {role} sees: leave {path} out and say "
                f"--gpus {role}={device.removeprefix('cuda:')}"
            )
    if by_ipc(settings) and not (trainer and engine) and (placement is not None or not gpus):
        raise ConfigError(
            "generator.tensor_transfer ipc hands over GPU memory, and trainer and engine are not both on a GPU: "
            "use inline"
        )
    if setting(settings, "generator.delivery") != "nccl":
        return
    shared = placement.shared if placement is not None else gpus[:1]
    if shared:
        raise ConfigError(
            f"generator.delivery nccl needs a GPU each for trainer and engine, and they share {shared[0]}: on one GPU "
            "use --generator.delivery=tensor --generator.tensor_transfer=ipc"
        )
    if kind == "sglang" and not trainer:
        raise ConfigError("generator.delivery nccl needs the trainer on a GPU, and trainer.device is cpu: use disk")


def _ports(resolved: ResolvedLine, kind: Engine, placement: Placement | None, local: LocalConfig) -> tuple[int, ...]:
    if kind == "running":
        return ()
    if kind == "embedded":
        return (resolved.engine_port or free_port(),)
    count = len(placement.engines) if placement else 0
    base = local.sglang.port_base
    if base is not None:
        ports = tuple(range(base, base + count))
        check_free(ports)
        return ports
    free: set[int] = set()
    while len(free) < count:
        free.add(free_port())
    return tuple(sorted(free))


def _placed_values(resolved: ResolvedLine, kind: Engine, placement: Placement) -> dict[str, Any]:
    """The placement as settings, so that the run's configuration tells it."""
    settings = resolved.settings
    gpus: dict[str, Any] = {}
    values: dict[str, Any] = {"local": {"gpus": gpus}}
    if placement.trainer is not None:
        gpus["trainer"] = [str(gpu.index) for gpu in placement.trainer.gpus]
        device = _device(resolved, "trainer", kind, placement.trainer.first)
        trainer: dict[str, Any] = {} if device is None else {"device": device}
        if placement.trainer_fraction is not None:
            trainer["gpu_memory_fraction"] = placement.trainer_fraction
        values["trainer"] = trainer
    if placement.engines:
        gpus["engine"] = [str(gpu.index) for seat in placement.engines for gpu in seat.gpus]
        if kind == "embedded":
            device = _device(resolved, "engine", kind, placement.engines[0].first)
            values["engine"] = {} if device is None else {"device": device}
        elif placement.engine_fraction is not None:
            values["local"]["sglang"] = {"mem_fraction": placement.engine_fraction}
    gpus["share"] = setting(settings, "local.gpus.share")
    return values


def _device(resolved: ResolvedLine, role: str, kind: Engine, place_in_view: int) -> str | None:
    """Device setting of a role that sits on a GPU; None leaves the user's ``auto`` or ``cuda`` alone.

    Not ``auto`` by itself, which would quietly take the CPU where torch has no CUDA; except for the embedded engine
    and its trainer when nobody asked for a GPU, which run anywhere.
    """
    settings = resolved.settings
    if by_ipc(settings):
        return f"cuda:{place_in_view}"
    asked = kind != "embedded" or is_chosen(settings, f"local.gpus.{role}")
    return None if is_chosen(settings, f"{role}.device") or not asked else "cuda"


def _group_backend(resolved: ResolvedLine, placement: Placement | None) -> dict[str, Any]:
    """NCCL connects GPUs only: on CPUs the group of trainer and engine uses gloo."""
    settings = resolved.settings
    if setting(settings, "generator.delivery") != "nccl" or is_chosen(settings, "generator.group_backend"):
        return {}
    on_gpus = placement is not None and placement.trainer is not None and bool(placement.engines)
    return {} if on_gpus or resolved.engines else {"generator": {"group_backend": "gloo"}}


def _needs(resolved: ResolvedLine, plan: LinePlan) -> ServerNeeds:
    settings = resolved.settings
    concurrency = setting(settings, "generator.engine_concurrency")
    lora = None
    if setting(settings, "generator.delivery") == "lora":
        lora = LoraRoom(
            rank=setting(settings, "trainer.lora.r"),
            targets=tuple(setting(settings, "trainer.lora.target_modules")),
            max_staleness=setting(settings, "trainer.max_staleness"),
            keep_versions=setting(settings, "generator.keep_versions"),
        )
    return ServerNeeds(
        decode_batch=concurrency if isinstance(concurrency, int) else AUTO_BATCH,
        lora=lora,
        mem_fraction=plan.placement.engine_fraction if plan.placement else None,
    )
