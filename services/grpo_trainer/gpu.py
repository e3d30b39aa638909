"""Which GPU the trainer sees, and how it takes that one's memory. Free of torch: it comes before CUDA is looked at."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from gristmill.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def claim_gpu(device: str, environ: MutableMapping[str, str] | None = None) -> None:
    """Hide every GPU but the configured one from this process.

    Transformers would spread the model over all that it sees, and accelerate would move it to the first.

    Args:
        device: ``trainer.device``; N in ``cuda:N`` counts the GPUs that are visible now.
        environ: environment to change, this process's by default.

    Raises:
        ConfigError: fewer GPUs than N + 1 are visible.
    """
    environ = os.environ if environ is None else environ
    if device == "cpu":
        return
    number = int(device.partition(":")[2] or 0)
    if VISIBLE not in environ:
        environ[VISIBLE] = str(number)
        return
    visible = [name.strip() for name in environ[VISIBLE].split(",") if name.strip()]
    if number < len(visible):
        environ[VISIBLE] = visible[number]
    elif device != "auto":
        raise ConfigError(
            f"trainer.device is {device}, but {VISIBLE}={environ[VISIBLE]!r} shows {len(visible)} GPUs, counted from 0"
        )


def spare_memory(environ: MutableMapping[str, str] | None = None) -> None:
    """Have torch grow its blocks of GPU memory instead of taking new ones, unless the user said how.

    Every micro-batch has another shape. In blocks of fixed size that leaves holes, and near the limit of a shared card
    torch gives everything back and takes it anew, which costs more than the step. Not for a trainer that lends its
    memory through CUDA IPC: handles are made of blocks of the ordinary kind.
    """
    environ = os.environ if environ is None else environ
    environ.setdefault(ALLOCATOR, "expandable_segments:True")
