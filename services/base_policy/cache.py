"""Prepared policies on disk: one folder per content key, whole or absent, made once however many ask for it.

A folder is built under a temporary name, flushed to disk and renamed; a lock file per key lets one process build
while the others wait and then find it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gristmill.errors import ConfigError

Build = Callable[[Path], None]


def content_key(parts: Mapping[str, Any]) -> str:
    """16 hex digits that name the content that `parts` (JSON values) lead to."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def obtain(root: Path, name: str, key: str, build: Build) -> tuple[Path, bool]:
    """The folder `root/name-key`, built by `build(temporary folder)` unless it is there.

    Returns the folder and whether this call built it. Safe when several processes ask at once, and when one was
    killed while building.
    """
    final = root / f"{name}-{key}"
    if final.is_dir():
        return final, False
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f".{name}-{key}.lock"):
        if final.is_dir():
            return final, False
        prefix = f".{name}-{key}.building-"
        for left_over in root.glob(f"{prefix}*"):
            shutil.rmtree(left_over)  # of a killed process: whoever builds holds the lock
        _install(root / f"{prefix}{uuid.uuid4().hex[:8]}", final, build)
    return final, True


def copy_to(source: Path, out: Path) -> None:
    """Copy a prepared folder to `out`, all or nothing.

    Raises:
        ConfigError: `out` exists and is not an empty folder.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: exists already; name a folder that does not, or an empty one")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.parent / f".{out.name}.copying-{uuid.uuid4().hex[:8]}"
    _install(temporary, out, lambda folder: shutil.copytree(source, folder, dirs_exist_ok=True))


def _install(temporary: Path, final: Path, build: Callable[[Path], Any]) -> None:
    temporary.mkdir()
    try:
        build(temporary)
        for path in [*temporary.rglob("*"), temporary]:
            _flush(path)
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _flush(final.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
