"""Digests of policy artifacts (folders of weights), the same on both ends of the `policies` topic."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gristmill.errors import ArtifactError


def digest_file(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_dir(folder: Path) -> str:
    """SHA-256 over the sorted lines ``<sha256 of file>  <relative name>`` of all files below ``folder``.

    Raises:
        ArtifactError: the folder is missing or holds no file.
    """
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: no such folder")
    files = [path for path in folder.rglob("*") if path.is_file()]
    if not files:
        raise ArtifactError(f"{folder}: the folder holds no file")
    lines = (f"{digest_file(path)}  {path.relative_to(folder).as_posix()}\n" for path in files)
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def to_uri(folder: Path) -> str:
    """Absolute ``file://`` address of a folder."""
    return folder.absolute().as_uri()


def from_uri(uri: str) -> Path:
    """Path behind a ``file://`` address.

    Raises:
        ArtifactError: another scheme, or a remote host.
    """
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ArtifactError(f"{uri}: only file:// addresses on a shared file system are supported")
    return Path(unquote(parts.path))


def verify_dir(uri: str, sha256: str) -> Path:
    """Resolve ``uri`` and check its digest.

    Raises:
        ArtifactError: missing, or not the announced content.
    """
    folder = from_uri(uri)
    found = digest_dir(folder)
    if found != sha256:
        raise ArtifactError(f"{uri}: digest is {found}, the policies topic announced {sha256}")
    return folder
