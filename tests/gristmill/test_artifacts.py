"""Digests of policy folders and their addresses."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.artifacts import digest_dir, digest_file, from_uri, to_uri, verify_dir
from gristmill.errors import ArtifactError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "run v1 #é"
    (root / "sub").mkdir(parents=True)
    (root / "adapter_model.safetensors").write_bytes(b"\0" * 5000)
    (root / "adapter_config.json").write_text("{}")
    (root / "sub" / "x").write_text("x")
    (root / "sub-2").write_text("a name that sorts between sub and sub/x")
    return root


def test_the_digest_is_what_sha256sum_says_of_the_folder(folder: Path) -> None:
    """So that anyone can check a policy with coreutils alone."""
    command = "find * -type f -print0 | xargs -0 sha256sum | LC_ALL=C sort | sha256sum"
    expected = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert digest_dir(folder) == expected.split()[0]


def test_the_digest_depends_on_names_and_contents_only(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert digest_dir(copy) == digest_dir(folder)
    (copy / "sub" / "empty").mkdir()
    assert digest_dir(copy) == digest_dir(folder)
    (copy / "sub" / "x").rename(copy / "sub" / "y")
    assert digest_dir(copy) != digest_dir(folder)


@given(position=st.integers(0, 4999), flip=st.integers(1, 255))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_changed_byte_changes_the_digest(folder: Path, position: int, flip: int) -> None:
    before = digest_dir(folder)
    path = folder / "adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    data[position] ^= flip
    path.write_bytes(data)
    assert digest_dir(folder) != before
    path.write_bytes(b"\0" * 5000)


def test_address_and_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = to_uri(folder)
    assert uri.startswith("file:///")
    assert " " not in uri
    assert from_uri(uri) == folder
    monkeypatch.chdir(folder.parent)
    assert from_uri(to_uri(Path(folder.name))) == folder
    assert verify_dir(uri, digest_dir(folder)) == folder


@pytest.mark.parametrize("uri", ["https://host/x", "s3://bucket/x", "/plain/path", "file://host/x", ""])
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(ArtifactError, match="only file:// addresses"):
        from_uri(uri)


def test_missing_empty_and_tampered_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such folder"):
        verify_dir(to_uri(tmp_path / "absent"), "0" * 64)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ArtifactError, match="holds no file"):
        digest_dir(empty)
    with pytest.raises(ArtifactError, match="the policies topic announced 0000"):
        verify_dir(to_uri(folder), "0" * 64)


def test_digest_file(folder: Path) -> None:
    path = folder / "adapter_config.json"
    assert digest_file(path) == hashlib.sha256(b"{}").hexdigest()
