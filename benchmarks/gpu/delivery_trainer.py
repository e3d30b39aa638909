"""The trainer's side of `delivery.py`, in a process of its own."""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 300.0
PUBLISH_TIMEOUT_S = 300.0
NOISE = {"lora": 0.005, "full": 0.002}
"""Standard deviation of what a step adds: to the adapter's B matrices, and to weights relative to theirs."""
KEPT = {"lora": 16, "full": 3}
"""Newest versions that stay on the disk."""


class TrainerProcess:
    """A trainer that publishes a new version on demand. Blocking."""

    def __init__(self, kind: str, arguments: argparse.Namespace) -> None:
        self.run_id = f"bench-{kind}-{int(time.time())}"
        settings = {
            "kind": kind,
            "run_id": self.run_id,
            "model": str(arguments.model),
            "device": arguments.trainer_device,
            "memory": arguments.trainer_memory,
            "rank": arguments.rank,
            "folder": str(Path(arguments.out).absolute() / f"policies-{kind}"),
        }
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, settings), daemon=True)
        self._process.start()
        theirs.close()
        self.source: str | None = self._answer(START_TIMEOUT_S)

    def publish(self) -> dict[str, Any]:
        """Make a new version; its record, and the seconds of its phases."""
        self._pipe.send("publish")
        answer: dict[str, Any] = self._answer(PUBLISH_TIMEOUT_S)
        return answer

    def stop(self) -> None:
        """End the process."""
        if self._process.is_alive():
            self._pipe.send("stop")
        self._process.join(20)
        self._process.kill()

    def _answer(self, timeout_s: float) -> Any:
        if not self._pipe.poll(timeout_s):
            raise TimeoutError(f"the trainer gave no answer in {timeout_s:g} s")
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def serve(pipe: Connection, settings: dict[str, Any]) -> None:
    """Load the policy, then publish as asked."""
    from gristmill.logs import configure_logging

    configure_logging("warning", "json")
    try:
        side = TrainerSide(settings)
        pipe.send(side.source.url if side.source is not None else None)
        while pipe.recv() == "publish":
            pipe.send(side.publish())
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 (reported to the other process)
        pipe.send(RuntimeError(f"trainer: {type(error).__name__}: {error}"))
        return
    if side.source is not None:
        side.source.close()


class TrainerSide:
    """The real loading, saving and weight source; noise in place of a step."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from grpo_trainer.config import LoraSettings, TrainerConfig, WeightSourceSettings
        from grpo_trainer.gpu import claim_gpu

        full = settings["kind"] == "full"
        self.config = TrainerConfig(
            base_model=settings["model"],
            weights=settings["kind"],
            device=settings["device"],
            gpu_memory_fraction=settings["memory"],
            lora=LoraSettings(r=settings["rank"], alpha=2 * settings["rank"]),
            weight_source=WeightSourceSettings(enabled=full),
        )
        claim_gpu(self.config.device)  # before torch looks at CUDA

        import torch

        from gristmill.logs import get_logger
        from grpo_trainer.model import load_policy
        from grpo_trainer.weight_source.server import WeightSource

        self.torch = torch
        self.run_id: str = settings["run_id"]
        self.folder = Path(settings["folder"])
        self.policy = load_policy(self.config)
        self.version = -1
        self.source: WeightSource | None = None
        if full:
            self.source = WeightSource(
                self.config.weight_source,
                run_id=self.run_id,
                device=self.policy.device,
                dtype=self.policy.dtype,
                log=get_logger(),
            )

    def publish(self) -> dict[str, Any]:
        """As the trainer does at the end of a step, without its checkpoint and its topics."""
        from grpo_trainer.phases import Phases
        from grpo_trainer.records import make_policy

        self._step()
        self.version += 1
        phases = Phases()
        folder = self.folder / f"v{self.version:06d}"
        digest = self.policy.publish_to(folder, phases)
        record = make_policy(self.run_id, self.version, self.config, self.policy.base_model, folder, digest)
        if self.source is not None:
            with phases.measure("hold"):
                self.source.hold(self.version, record.name, self.policy.weights())
        shutil.rmtree(self.folder / f"v{self.version - KEPT[self.config.weights]:06d}", ignore_errors=True)
        return {"record": record, "phases": phases.seconds}

    def _step(self) -> None:
        torch = self.torch
        with torch.no_grad():
            for name, parameter in self.policy.trained().items():
                if self.config.weights == "full":
                    parameter.add_(torch.randn_like(parameter) * parameter.std() * NOISE["full"])
                elif "lora_B" in name:
                    parameter.add_(torch.randn_like(parameter) * NOISE["lora"])
        if self.policy.device.type == "cuda":
            torch.cuda.synchronize(self.policy.device)
