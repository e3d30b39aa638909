"""When a gradient is no number: finding the micro-batch it came from, the arithmetic to take it again, the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import get_total_norm

from grpo_trainer.assembler import Batch
from grpo_trainer.batch import MicroBatch, TensorDict, lines_of

NAMED = 3
FILES_KEPT = 8

Recovered = Literal["repeated", "float32"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """A step whose gradient was no number, and how it became one."""

    version: int
    """Version that the step makes."""
    how: Recovered
    """``float32``: one micro-batch was taken again in float32. ``repeated``: the whole step was taken again, and no
    micro-batch of it failed; what is known of none is empty then."""
    micro_batch: int | None = None
    """Its number, from 1."""
    micro_batches: int = 0
    rows: int = 0
    width: int = 0
    """Columns of the forward pass, padding included."""
    prompt_lengths: tuple[int, ...] = ()
    completion_lengths: tuple[int, ...] = ()
    group_ids: tuple[str, ...] = ()
    max_log_ratio: float = 0.0
    """Largest distance between the engine's and our logprobs, nats."""
    parameters: tuple[str, ...] = ()
    """First parameters, in the order of the backward pass, whose gradient was not finite."""
    parameters_broken: int = 0
    file: str = ""


class Trained:
    """The trained parameters of a model, and their gradients."""

    def __init__(self, model: torch.nn.Module, *, keep_on_cpu: bool) -> None:
        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._keep_on_cpu = keep_on_cpu
        self._kept: dict[str, torch.Tensor] = {}

    def clear(self) -> None:
        """Forget the gradients that the parameters hold."""
        for _, parameter in self._named:
            parameter.grad = None

    def norm(self) -> torch.Tensor:
        """Norm of all gradients, on the device; not finite when any of them is not."""
        return get_total_norm([p.grad for _, p in self._named if p.grad is not None])

    def broken(self) -> list[str]:
        """Parameters whose gradient is not finite, those that the backward pass reaches first coming first."""
        return [n for n, p in reversed(self._named) if p.grad is not None and not bool(p.grad.isfinite().all())]

    def keep(self) -> None:
        """Move the gradients into the kept sum."""
        for name, parameter in self._named:
            if parameter.grad is None:
                continue
            gradient = parameter.grad.cpu() if self._keep_on_cpu else parameter.grad
            parameter.grad = None
            if name in self._kept:
                self._kept[name] += gradient
            else:
                self._kept[name] = gradient

    def give_back(self) -> None:
        """Make the kept sum the gradients of the parameters."""
        for name, parameter in self._named:
            kept = self._kept.pop(name, None)
            parameter.grad = None if kept is None else kept.to(parameter.device)


@contextmanager
def in_float32(model: torch.nn.Module) -> Iterator[None]:
    """All weights in float32, no autocast, and attention by plain matrix products, meanwhile.

    Weights are cast one after another, each freeing its own memory, so this costs the difference of the two sizes.
    Back to bfloat16 is exact: that is where the values come from.
    """
    values = [*model.parameters(), *model.buffers()]
    cast = [value for value in values if value.is_floating_point() and value.dtype != torch.float32]
    done: list[tuple[torch.Tensor, torch.dtype]] = []
    device = next(model.parameters()).device.type
    try:
        for value in cast:
            dtype = value.dtype
            value.data = value.data.float()
            done.append((value, dtype))
        with torch.autocast(device, enabled=False), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for value, dtype in done:
            value.data = value.data.to(dtype)


def describe(
    batch: Batch,
    chunk: MicroBatch,
    *,
    number: int,
    of: int,
    broken: list[str],
    max_log_ratio: float,
    facts: dict[str, object],
    folder: Path,
) -> Recovery:
    """What is known of a micro-batch whose gradient is no number, kept as a file too.

    Args:
        number: its place among ``of``, from 1.
        broken: parameters whose gradient is not finite, in the order of the backward pass.
        facts: what else the file is to hold.
        folder: where it is kept.
    """
    tensors, version = chunk.tensors, batch.version + 1
    samples = [batch.samples[place].verdict for place in tensors["order"].tolist()]
    group_ids = [sample.group_id for sample in samples]
    known: dict[str, object] = {
        "version": batch.version,
        "micro_batch": number,
        "micro_batches": of,
        "parameters": broken,
        "group_ids": group_ids,
        "sample_ids": [sample.sample_id for sample in samples],
        "max_log_ratio": max_log_ratio,
    }
    file = keep_evidence(folder, f"v{version:06d}-{number}", known | facts, tensors)
    return Recovery(
        version=version,
        how="float32",
        micro_batch=number,
        micro_batches=of,
        rows=chunk.rows,
        width=lines_of(tensors).ids.size(1),
        prompt_lengths=tuple(tensors["prompt_mask"].sum(1).tolist()),
        completion_lengths=tuple(tensors["completion_mask"].sum(1).tolist()),
        group_ids=tuple(dict.fromkeys(group_ids)),
        max_log_ratio=max_log_ratio,
        parameters=tuple(broken[:NAMED]),
        parameters_broken=len(broken),
        file=str(file),
    )


def keep_evidence(folder: Path, name: str, facts: dict[str, object], tensors: TensorDict) -> Path:
    """Write a micro-batch with what is known of it; ``torch.load(path, weights_only=True)`` reads it.

    Only the newest files stay: a run that recovers often must not fill the disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.pt"
    temporary = path.with_suffix(".tmp")
    # Clones, since torch writes all of the storage that a slice is part of.
    torch.save(facts | {"tensors": {key: tensor.cpu().clone() for key, tensor in tensors.items()}}, temporary)
    temporary.replace(path)
    for old in sorted(folder.glob("*.pt"), key=lambda file: (file.stat().st_mtime_ns, file.name))[:-FILES_KEPT]:
        old.unlink()
    return path
