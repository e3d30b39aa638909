"""How the runner starts SGLang: the flags that follow from the line's settings, and whether it is installed at all."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill.errors import ConfigError
from gristmill.local.config import SglangConfig
from gristmill.local.placement import Seat

HOST = "127.0.0.1"
MODULE = ("-m", "sglang.launch_server")
AUTO_BATCH = 512
"""Largest captured decode batch when the concurrency is found automatically: its upper bound there."""
OWN_ENV = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}
"""Else /health samples a token, and waits while generation is paused."""
SERVED_TARGETS = frozenset(
    {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj"}
)
_PROBE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
_PROBE_S = 120.0


@dataclass(frozen=True, slots=True)
class LoraRoom:
    """What a server must be ready for when policies come as adapters."""

    rank: int
    targets: tuple[str, ...]
    max_staleness: int
    keep_versions: int

    @property
    def loaded(self) -> int:
        """Adapters held: those that samples within the bound may still use, the drained that stay, the next one while
        it is loaded, and one to spare, which evaluation uses."""
        return self.max_staleness + 1 + self.keep_versions + 1 + 1

    @property
    def per_batch(self) -> int:
        """Adapters in one batch: those within the bound, one that is overdue, and the base model, which counts."""
        return self.max_staleness + 3


@dataclass(frozen=True, slots=True)
class ServerNeeds:
    """What all servers of a line have in common."""

    decode_batch: int
    """Largest batch that a CUDA graph must be there for; above it SGLang falls to half its speed."""
    lora: LoraRoom | None
    mem_fraction: float | None


def base_command(config: SglangConfig) -> tuple[str, ...]:
    """What starts a server, before any flags."""
    return config.command or (sys.executable, *MODULE)


def server_command(config: SglangConfig, needs: ServerNeeds, model: Path, port: int, seat: Seat) -> list[str]:
    """The command line of one server; the user's own flags come last, so they win."""
    flags = ["--model-path", str(model), "--host", HOST, "--port", str(port), "--enable-metrics"]
    flags += ["--tp-size", str(config.tp), "--cuda-graph-max-bs-decode", str(needs.decode_batch)]
    if seat.first:
        flags += ["--base-gpu-id", str(seat.first)]
    if needs.mem_fraction is not None:
        flags += ["--mem-fraction-static", f"{needs.mem_fraction:g}"]
    if needs.lora is not None:
        targets = needs.lora.targets if set(needs.lora.targets) <= SERVED_TARGETS else ("all",)
        flags += ["--enable-lora", "--max-lora-rank", str(needs.lora.rank), "--lora-target-modules", *targets]
        flags += ["--max-loaded-loras", str(needs.lora.loaded), "--max-loras-per-batch", str(needs.lora.per_batch)]
    return [*base_command(config), *flags, *config.args]


def server_env(config: SglangConfig, seat: Seat) -> dict[str, str]:
    """What a server's environment has besides the runner's own."""
    return {**OWN_ENV, **seat.env, **config.env}


def check_installed(config: SglangConfig, environ: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError when the command cannot start SGLang, before anything else is started."""
    command = base_command(config)
    env = {**environ, **config.env}
    if shutil.which(command[0], path=env.get("PATH")) is None:
        raise ConfigError(f"local.sglang.command: there is no program {command[0]!r} to start SGLang with")
    if command[1:3] != MODULE:
        return  # a wrapper: only it knows
    try:
        found = subprocess.run([command[0], "-c", _PROBE], env=env, capture_output=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"local.sglang.command: {command[0]} cannot be asked for SGLang: {error}") from error
    if found.returncode != 0:
        raise ConfigError(
            f"SGLang is not installed for {command[0]}: pip install sglang==0.5.16; for an environment of its "
            f"own, name its interpreter with --local.sglang.command='PYTHON {' '.join(MODULE)}', or its folder with "
            "--local.sglang.env.PYTHONPATH=FOLDER"
        )


def check_free(ports: Sequence[int]) -> None:
    """Raises ConfigError when a port that the user chose is taken."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise ConfigError(f"local.sglang.port_base: port {port} cannot be used: {error.strerror}") from error
