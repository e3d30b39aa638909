"""The sandbox's image: built from the installed package, refused when it is not of the same make.

The image carries the digest of everything that was put into it, so that a verifier never talks to a warden of another
version: they share a protocol and, more to the point, the promises.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker.errors

from code_verifier.engine import Engine
from gristmill import __version__
from gristmill.errors import ConfigError, InfrastructureError

DEFAULT_BASE = "python:3.12-slim"
DIGEST_LABEL = "gristmill.sandbox.digest"
BUILD_HINT = "run 'gristmill sandbox build' (with --base where python:3.12-slim cannot be pulled)"
_TAG = re.compile(r"[a-z0-9]+(?:[._:/-]+[a-z0-9]+)*(?::[\w][\w.-]{0,127})?", re.ASCII)


def sandbox_dir() -> Path:
    """Folder of the Dockerfile: the repository's when run from a checkout, else the wheel's copy."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "_sandbox", here.parents[1] / "compose" / "sandbox"):
        if (candidate / "Dockerfile").is_file():
            return candidate
    raise ConfigError(f"no sandbox Dockerfile found beside {here}: reinstall gristmill")


def image_files() -> dict[str, bytes]:
    """What goes into the image, by its path in the build context."""
    inside = Path(__file__).resolve().parent / "inside"
    files = {f"inside/{path.relative_to(inside).as_posix()}": path.read_bytes() for path in inside.rglob("*.py")}
    files |= {name: (sandbox_dir() / name).read_bytes() for name in ("Dockerfile", "hosts")}
    return files


def image_digest(files: dict[str, bytes] | None = None) -> str:
    """SHA-256 over names and contents of the image's files."""
    files = image_files() if files is None else files
    lines = (f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def build_context(files: dict[str, bytes]) -> bytes:
    """The files as a tar archive, the same bytes for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def build_image(
    engine: Engine, *, tag: str, base: str = DEFAULT_BASE, log: Callable[[str], None] = lambda _line: None
) -> str:
    """Build the image and tag it. Uses the classic builder, so that every engine since 20.10 can.

    Args:
        engine: where it is built.
        tag: name of the image.
        base: name of the image below it.
        log: gets the builder's output, line by line.

    Returns:
        The image's id.

    Raises:
        ConfigError: the name is none.
        InfrastructureError: the builder failed; the message is its last one.
    """
    if not _TAG.fullmatch(tag):
        raise ConfigError(
            f"{tag!r} is no name of an image: small letters, digits, dots, dashes, and a tag behind a colon"
        )
    files = image_files()
    with engine.calls() as api:
        answer = api.build(
            fileobj=io.BytesIO(build_context(files)),
            custom_context=True,
            tag=tag,
            rm=True,
            forcerm=True,
            decode=True,
            network_mode="none",
            timeout=1800,
            buildargs={"BASE": base, "VERSION": __version__, "DIGEST": image_digest(files)},
        )
        for part in answer:
            if "error" in part:
                raise InfrastructureError(_explain(str(part["error"]).strip(), base))
            line = str(part.get("stream") or part.get("status") or "").rstrip()
            if line:
                log(line)
        return str(api.inspect_image(tag)["Id"])


def _explain(error: str, base: str) -> str:
    if "pull access denied" in error or "dial tcp" in error or "manifest" in error or "no such host" in error:
        return (
            f"the base image {base} cannot be had: {error}. Name one that is there with --base; "
            "compose/sandbox/base.sh makes one without a registry"
        )
    return f"the image could not be built: {error}"


def check_image(engine: Engine, image: str) -> str:
    """The id of the image, so that a tag moved later changes nothing under way.

    Raises:
        ConfigError: it is missing, no sandbox, or of another version of this package.
    """
    try:
        with engine.calls() as api:
            found: dict[str, Any] = api.inspect_image(image)
    except docker.errors.ImageNotFound as error:
        raise ConfigError(f"there is no image {image!r} at {engine.address}: {BUILD_HINT}") from error
    digest = (found.get("Config") or {}).get("Labels") or {}
    if DIGEST_LABEL not in digest:
        raise ConfigError(f"the image {image!r} is no sandbox of gristmill: {BUILD_HINT}, or name another (code.image)")
    if digest[DIGEST_LABEL] != image_digest():
        raise ConfigError(f"the image {image!r} was built by another version of gristmill: {BUILD_HINT}")
    return str(found["Id"])
