"""Stands in for ``sglang.launch_server`` in tests of the runner: SGLang's flags in, an embedded engine out.

Like SGLang it has children (the engine, and one that is deaf to SIGTERM), dies when one of them does, and ends itself
by SIGKILL when it is asked to stop. ``--fail`` and ``--hang`` come by ``local.sglang.args``. What it was started with
goes to a file in the folder that ``FAKE_SGLANG_RECORDS`` names.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def parse() -> argparse.Namespace:
    """The flags that the runner may give; anything else ends it, as it ends SGLang."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tp-size", type=int)
    parser.add_argument("--base-gpu-id", type=int, default=0)
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--cuda-graph-max-bs-decode", type=int)
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-lora-rank", type=int)
    parser.add_argument("--lora-target-modules", nargs="*")
    parser.add_argument("--max-loaded-loras", type=int)
    parser.add_argument("--max-loras-per-batch", type=int, default=8)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--hang", action="store_true")
    flags = parser.parse_args()
    if flags.enable_lora:
        assert flags.max_lora_rank
        assert flags.lora_target_modules
        assert flags.max_loaded_loras >= flags.max_loras_per_batch
    return flags


def main() -> NoReturn:
    flags = parse()
    if flags.fail:
        sys.exit("fake: CUDA out of memory")
    command = [sys.executable, "-m", "gristmill", "engine", "--model", flags.model_path, "--port", str(flags.port)]
    command += ["--threads", "1"]
    if flags.max_loaded_loras:
        command += ["--max-loaded-loras", str(flags.max_loaded_loras)]
    if flags.hang:
        sys.stdout.write("fake: loading weights\n")
        sys.stdout.flush()
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
    engine = subprocess.Popen(command)
    deaf = subprocess.Popen([sys.executable, "-c", DEAF])
    record = {
        "flags": vars(flags),
        "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "health": os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"),
        "pid": os.getpid(),
        "engine": engine.pid,
        "deaf": deaf.pid,
    }
    folder = Path(os.environ["FAKE_SGLANG_RECORDS"])
    (folder / f"{flags.port}.json").write_text(json.dumps(record), encoding="utf-8")

    def stop(_number: int, _frame: object) -> NoReturn:
        engine.kill()
        engine.wait()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    signal.signal(signal.SIGTERM, stop)
    while engine.poll() is None:
        time.sleep(0.1)
    sys.exit(f"fake: a child died with status {engine.returncode}")


if __name__ == "__main__":
    main()
