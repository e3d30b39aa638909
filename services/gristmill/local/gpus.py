"""The GPUs of this machine, asked of nvidia-smi: the kernel imports no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from gristmill.local.placement import Gpu, only_visible, parse_nvidia_smi

QUERY = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
TIMEOUT_S = 60.0
"""A driver that was not in use may take long to wake."""


def visible_gpus(environ: Mapping[str, str] = os.environ) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that processes started from here may use, and, for messages, why there are no others."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return (), " (there is no nvidia-smi on the PATH)"
    try:
        done = subprocess.run(
            [program, *QUERY], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=dict(environ)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f" (nvidia-smi failed: {error})"
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        return (), f" (nvidia-smi failed: {said[0] if said else f'status {done.returncode}'})"
    gpus = parse_nvidia_smi(done.stdout)
    variable = environ.get("CUDA_VISIBLE_DEVICES")
    seen = only_visible(gpus, variable)
    why = "" if len(seen) == len(gpus) else f" (CUDA_VISIBLE_DEVICES is {variable!r})"
    return seen, why
