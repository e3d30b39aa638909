"""Memory of every process of the line over a long run: is it flat?

Runs ``gristmill demo`` with the given number of versions and samples the resident memory of each process. Printed
are the medians of the second and the last fifth of the run (the first is start-up) and their ratio. The embedded
broker keeps every record in memory, so it grows by the volume of the topics; a real cluster does not.

    python benchmarks/memory.py --versions 250
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

import psutil

INTERVAL_S = 2.0


def name_of(process: psutil.Process) -> str | None:
    """Which part of the line a child of the runner is; None for a helper process that comes and goes."""
    line = " ".join(process.cmdline())
    found = re.search(r"gristmill run (\w+)|gristmill (engine)|(tansu) ", line)
    return next((group for group in found.groups() if group), None) if found else None


def resident(runner: psutil.Process) -> dict[str, float]:
    """Resident megabytes by part, the children of a part (verifier workers) included."""
    sizes = {"runner": runner.memory_info().rss / 1e6}
    for child in runner.children():
        try:
            name = name_of(child)
            if name is not None:
                members = [child, *child.children(recursive=True)]
                sizes[name] = sum(member.memory_info().rss for member in members) / 1e6
        except psutil.NoSuchProcess:
            continue
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=250)
    parser.add_argument("rest", nargs="*", help="further arguments of gristmill demo, after --")
    options = parser.parse_args()
    series: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "gristmill", "demo", f"--versions={options.versions}"]
        command += [f"--data_dir={folder}", "--local.eval_problems=0", *options.rest]
        runner = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        started = time.monotonic()
        while runner.poll() is None:
            time.sleep(INTERVAL_S)
            try:
                sizes = resident(psutil.Process(runner.pid))
            except psutil.NoSuchProcess:
                break
            if "problem_producer" in sizes or series:  # from the moment that all parts run
                for name, size in sizes.items():
                    series[name].append(size)
        log.seek(0)
        if runner.wait() != 0:
            sys.exit(log.read().decode(errors="replace"))
        print(f"{options.versions} versions in {time.monotonic() - started:.0f} s")
    print(f"{'part':20} {'early MB':>10} {'late MB':>10} {'ratio':>7}")
    for name, sizes in sorted(series.items()):
        fifth = max(1, len(sizes) // 5)
        early = statistics.median(sizes[fifth : 2 * fifth] or sizes)
        late = statistics.median(sizes[-fifth:])
        print(f"{name:20} {early:10.0f} {late:10.0f} {late / early:7.2f}")


if __name__ == "__main__":
    main()
