"""The image: built from the package, and refused when it is not the package's."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
import tomllib
from pathlib import Path

import docker
import pytest

from code_verifier import image as image_module
from code_verifier.config import CodeConfig
from code_verifier.engine import Engine, EngineAway, connect
from code_verifier.image import DIGEST_LABEL, build_context, build_image, check_image, image_digest, image_files
from code_verifier.pool import SandboxPool
from code_verifier.seccomp import profile, profile_json
from gristmill.errors import ConfigError, InfrastructureError


def test_context_holds_only_what_runs_inside() -> None:
    files = image_files()
    assert {"Dockerfile", "hosts", "inside/warden.py"} <= set(files)
    assert all(name in ("Dockerfile", "hosts") or name.startswith("inside/") for name in files)
    with tarfile.open(fileobj=io.BytesIO(build_context(files))) as archive:
        assert sorted(archive.getnames()) == sorted(files)
    assert build_context(files) == build_context(dict(reversed(files.items())))


def test_digest_changes_with_name_and_content() -> None:
    one = {"inside/a.py": b"x"}
    assert image_digest(one) == image_digest(dict(one))
    assert len({image_digest(files) for files in (one, {"inside/a.py": b"y"}, {"inside/b.py": b"x"})}) == 3


def test_wheel_carries_the_dockerfile() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]["compose/sandbox"] == (
        "code_verifier/_sandbox"
    )


def test_seccomp_profile_denies_by_default() -> None:
    document = json.loads(profile_json())
    assert document["defaultAction"] == "SCMP_ACT_ERRNO"
    unconditional = {name for rule in profile()["syscalls"] if not rule["args"] for name in rule["names"]}
    forbidden = {"ptrace", "process_vm_readv", "mount", "unshare", "setns", "bpf", "io_uring_setup", "keyctl"}
    forbidden |= {"userfaultfd", "perf_event_open", "prlimit64", "clone", "socket", "personality", "pidfd_getfd"}
    assert not unconditional & forbidden
    assert not any("SCMP_ARCH_X86" in str(entry["subArchitectures"]) for entry in document["archMap"])


@pytest.mark.docker
def test_build_is_cached_and_labelled(sandbox_image: str) -> None:
    with connect() as engine:
        before = check_image(engine, sandbox_image)
        lines: list[str] = []
        with contextlib.closing(docker.from_env(timeout=60)) as client:
            base = client.images.get(sandbox_image).attrs["Parent"]
            assert client.images.get(sandbox_image).labels[DIGEST_LABEL] == image_digest()
            assert client.images.get(sandbox_image).attrs["Config"]["User"] == "10001:10001"
        assert base
        assert before.startswith("sha256:")
        assert lines == []


@pytest.mark.docker
def test_a_base_that_is_not_there_is_named(sandbox_image: str) -> None:
    with connect() as engine, pytest.raises(InfrastructureError, match=r"gristmill-no-such-base.*--base"):
        build_image(engine, tag="gristmill-sandbox-test:never", base="gristmill-no-such-base:1")


@pytest.mark.docker
def test_a_stale_image_is_refused(sandbox_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = {**image_files(), "inside/new.py": b""}
    monkeypatch.setattr(image_module, "image_files", lambda: newer)
    config = CodeConfig(workers=1, image=sandbox_image)
    with pytest.raises(ConfigError, match=r"another version of gristmill.*gristmill sandbox build"):
        SandboxPool(config).start()


@pytest.mark.docker
def test_a_missing_image_is_refused(sandbox_image: str) -> None:
    with pytest.raises(ConfigError, match=r"no image 'gristmill-no-such-image'.*gristmill sandbox build"):
        SandboxPool(CodeConfig(workers=1, image="gristmill-no-such-image")).start()


@pytest.mark.docker
def test_an_image_of_something_else_is_refused(sandbox_image: str) -> None:
    with contextlib.closing(docker.from_env(timeout=60)) as client:
        context = io.BytesIO(f"FROM {sandbox_image}\nLABEL {DIGEST_LABEL}=\n".encode())
        built, _ = client.images.build(fileobj=context, rm=True, tag="gristmill-sandbox-test:other")
        try:
            with connect() as engine, pytest.raises(ConfigError, match="another version of gristmill"):
                check_image(engine, "gristmill-sandbox-test:other")
        finally:
            client.images.remove(built.id, force=True)


@pytest.mark.docker
def test_an_unknown_runtime_is_refused(sandbox_image: str, tmp_path: Path) -> None:
    with contextlib.closing(docker.from_env(timeout=60)) as client:
        if "runsc" in client.info()["Runtimes"]:
            return
    with pytest.raises(ConfigError, match=r"runsc.*docs/code-sandbox\.md"):
        SandboxPool(CodeConfig(workers=1, image=sandbox_image, runtime="runsc")).start()


def test_no_engine_says_how_to_get_one(tmp_path: Path) -> None:
    config = CodeConfig(workers=1, docker_host=f"unix://{tmp_path}/none.sock")
    with pytest.raises(ConfigError, match=r"none\.sock.*docker\.io.*DOCKER_HOST.*docs/code-sandbox\.md.*never run"):
        SandboxPool(config).start()


def test_an_engine_that_refuses_connections_is_away() -> None:
    with pytest.raises(EngineAway, match="no Docker engine answers at tcp://127"):
        Engine("tcp://127.0.0.1:9")


def test_an_ssh_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="unix or tcp"):
        connect("ssh://somewhere")


@pytest.mark.docker
def test_no_right_to_use_the_engine(sandbox_image: str) -> None:
    if os.geteuid() != 0:
        # Whoever runs these tests may use the engine, and cannot become somebody who may not.
        return
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            connect()
        except ConfigError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    said = os.read(read, 4096).decode()
    os.close(read)
    os.waitpid(child, 0)
    assert "may not use the Docker engine" in said
    assert "group" in said
