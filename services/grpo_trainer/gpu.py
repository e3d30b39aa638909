"""Which GPU the trainer sees. Free of torch: it has to happen before CUDA is looked at."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from gristmill.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


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
