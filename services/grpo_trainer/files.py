"""Durable folders: what a rename promised is on the disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Flush a file or a folder's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_tree(folder: Path) -> None:
    """Flush every file below ``folder``, and the folders themselves."""
    for root, _, names in os.walk(folder):
        for name in names:
            fsync_path(Path(root) / name)
        fsync_path(Path(root))


def replace_dir(temporary: Path, target: Path) -> None:
    """Rename a finished folder to its final name, durably.

    A folder that is already there was left by a process that died before it announced it: it gives way.
    """
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)
    fsync_path(target.parent)
