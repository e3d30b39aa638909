"""The weight source over HTTP and gloo, with a real process at the other end of each group."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import torch
from safetensors.torch import load_file
from torch.multiprocessing import reductions
from trainer_line import Line, audit, make_common, make_context, policies_of, steps_of
from trainer_synthetic import make_group
from weight_receiver import digest

from gristmill.artifacts import from_uri
from gristmill.broker import EmbeddedBroker
from gristmill.config import CommonConfig
from gristmill.errors import ConfigError
from gristmill.messages import Verdict
from gristmill.service import ServiceContext
from grpo_trainer.config import TrainerConfig, WeightSourceSettings
from grpo_trainer.model import Policy, load_policy
from grpo_trainer.service import run
from grpo_trainer.weight_source import ipc
from grpo_trainer.weight_source.server import WeightSource, check_artifact
from grpo_trainer.weight_source.snapshot import Bucket, NotHeld, Shelf, Snapshot

DTYPES = ("float32", "bfloat16")
RECEIVER = Path(__file__).with_name("weight_receiver.py")


def make_policy(policy_dir: Path, dtype: str = "bfloat16") -> Policy:
    return load_policy(TrainerConfig(base_model=str(policy_dir), weights="full", dtype=dtype, device="cpu"))


@contextmanager
def serving(policy: Policy, **settings: Any) -> Iterator[tuple[WeightSource, httpx.Client]]:
    """A source without versions, and a client of it."""
    source = WeightSource(
        WeightSourceSettings(enabled=True, **({"bucket_mb": 1, "timeout_s": 20} | settings)),
        run_id="run",
        device=policy.device,
        dtype=policy.dtype,
        log=structlog.get_logger(),
    )
    source._bucket_bytes = 4096  # several buckets of a model this small, and a tensor that needs one of its own
    try:
        with httpx.Client(base_url=source.url, timeout=60) as client:
            yield source, client
    finally:
        source.close()


class Receiver:
    """A process that joins groups as an engine does. It has torch loaded before it is asked to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(RECEIVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.answer() == {"imported": "torch"}

    def join(self, group: str, rendezvous: dict[str, Any], *, rank: int = 1, world_size: int = 2) -> None:
        place = {"address": rendezvous["master_address"], "port": rendezvous["master_port"]}
        self.ask({"group": group, "rank": rank, "world_size": world_size, **place})

    def ask(self, request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, str]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def open_group(client: httpx.Client, group: str, world_size: int = 2) -> dict[str, Any]:
    answer = client.post("/groups", json={"group": group, "world_size": world_size, "backend": "gloo"})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@contextmanager
def engine(client: httpx.Client, group: str) -> Iterator[Receiver]:
    """A receiver in a group of its own."""
    with Receiver() as receiver:
        receiver.join(group, open_group(client, group))
        assert receiver.answer() == {"joined": group}
        assert wait_for_state(client, group, "ready") is None
        yield receiver


def wait_for_state(client: httpx.Client, group: str, state: str) -> str | None:
    deadline = time.monotonic() + 60
    while (found := client.get(f"/groups/{group}").json())["state"] != state:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found["error"]


def broadcast(client: httpx.Client, group: str, version: int, receivers: list[Receiver]) -> list[dict[str, str]]:
    """Every bucket of a version to all ranks of a group, as the generator does it; digests by rank."""
    received: list[dict[str, str]] = [{} for _ in receivers]
    for number, bucket in enumerate(client.get(f"/weights/{version}").json()["buckets"]):
        for receiver in receivers:
            receiver.ask(bucket)
        sent = client.post(f"/groups/{group}/send", json={"version": version, "bucket": number})
        assert sent.status_code == 200, sent.text
        assert sent.json()["seconds"] > 0
        for found, receiver in zip(received, receivers, strict=True):
            found.update(receiver.answer())
    return received


def artifact_digests(folder: Path) -> dict[str, str]:
    return {name: digest(tensor) for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_snapshot_is_the_artifact_to_the_byte(dtype: str, policy_dir: Path, tmp_path: Path) -> None:
    policy = make_policy(policy_dir, dtype)
    policy.publish_to(tmp_path / "v0")
    snapshot = Snapshot.take(0, "run-v0", policy.weights(), policy.dtype, bucket_bytes=4096)
    saved = load_file(tmp_path / "v0" / "model.safetensors")
    assert saved.keys() == snapshot.tensors().keys()
    assert {name for name in saved if "embed_tokens" in name or "lm_head" in name} == {"model.embed_tokens.weight"}
    for name, tensor in snapshot.tensors().items():
        assert tensor.dtype == saved[name].dtype == policy.dtype
        assert digest(tensor) == digest(saved[name])
    assert len(snapshot.buckets) > 3
    assert max(bucket.flat.numel() for bucket in snapshot.buckets if len(bucket.entries) > 1) <= 4096
    assert snapshot.size == sum(tensor.nbytes for tensor in saved.values())
    check_artifact(snapshot, tmp_path / "v0")


def test_a_snapshot_does_not_change_with_the_weights(policy_dir: Path) -> None:
    policy = make_policy(policy_dir, "float32")
    snapshot = Snapshot.take(0, "run-v0", policy.weights(), policy.dtype, bucket_bytes=4096)
    before = {name: digest(tensor) for name, tensor in snapshot.tensors().items()}
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(1.0)
    assert {name: digest(tensor) for name, tensor in snapshot.tensors().items()} == before


def test_types_of_any_width_lie_aligned() -> None:
    weights = {
        "odd": torch.arange(3, dtype=torch.uint8),
        "half": torch.arange(5, dtype=torch.float32),
        "wide": torch.arange(2, dtype=torch.int64),
        "empty": torch.empty(0, 4),
    }
    snapshot = Snapshot.take(3, "run-v3", weights, torch.bfloat16, bucket_bytes=1 << 20)
    (bucket,) = snapshot.buckets
    assert [entry.name for entry in bucket.entries] == ["wide", "half", "empty", "odd"]
    found = snapshot.tensors()
    assert found["half"].tolist() == weights["half"].tolist()
    assert found["wide"].tolist() == [0, 1]
    assert found["odd"].dtype == torch.uint8
    assert found["empty"].shape == (0, 4)


def test_an_artifact_with_other_names_is_refused(policy_dir: Path, tmp_path: Path) -> None:
    policy = make_policy(policy_dir)
    policy.publish_to(tmp_path / "v0")
    renamed = {f"base.{name}": tensor for name, tensor in policy.weights().items()}
    snapshot = Snapshot.take(0, "run-v0", renamed, policy.dtype, bucket_bytes=4096)
    with pytest.raises(ConfigError, match=r"cannot serve this model: base\.model.* is missing"):
        check_artifact(snapshot, tmp_path / "v0")


def test_the_shelf_holds_two_and_what_is_leased() -> None:
    now, freed = [0.0], []
    shelf = Shelf(lease_timeout_s=10, on_free=freed.append, clock=lambda: now[0])

    def hold(version: int) -> None:
        shelf.make_room()
        shelf.hold(Snapshot.take(version, f"v{version}", {"a": torch.ones(2)}, torch.float32, bucket_bytes=8))

    def held() -> list[int]:
        return [snapshot.version for snapshot in shelf.held()]

    hold(0)
    first, second = shelf.lease(0), shelf.lease(0)
    for version in (1, 2, 3):
        hold(version)
    assert held() == [0, 2, 3]
    shelf.release(first)
    assert held() == [0, 2, 3], "the second lease keeps it"
    now[0] = 9.0
    assert shelf.renew(second).version == 0
    now[0] = 18.0
    assert held() == [0, 2, 3]
    now[0] = 19.5
    assert held() == [2, 3], "its time was up"
    with pytest.raises(NotHeld, match="ended"):
        shelf.renew(second)
    with pytest.raises(NotHeld, match="version 0 is not held; held are: 2, 3"):
        shelf.lease(0)
    with pytest.raises(NotHeld, match="version 1"):
        shelf.get(1)
    shelf.make_room()
    assert held() == [3], "room for the next one is made before it is there"
    with pytest.raises(AssertionError, match="only grow"):
        hold(3)
    shelf.clear()
    assert freed == [1, 0, 2, 3]


def test_manifest_and_what_is_not_held(policy_dir: Path) -> None:
    policy = make_policy(policy_dir)
    with serving(policy) as (source, client):
        assert client.get("/weights").json() == {"run_id": "run", "held": []}
        for version in range(3):
            source.hold(version, f"run-v{version}", policy.weights())
        held = [{"version": 1, "name": "run-v1"}, {"version": 2, "name": "run-v2"}]
        assert client.get("/weights").json() == {"run_id": "run", "held": held}
        found = client.get("/weights/2").json()
        assert (found["version"], found["name"]) == (2, "run-v2")
        assert found["bytes"] == sum(bucket["bytes"] for bucket in found["buckets"])
        shapes: dict[str, list[int]] = {}
        for bucket in found["buckets"]:
            shapes |= dict(zip(bucket["names"], bucket["shapes"], strict=True))
            assert set(bucket["dtypes"]) == {"bfloat16"}
        assert shapes == {name: list(tensor.shape) for name, tensor in policy.weights().items()}
        gone = client.get("/weights/0")
        assert gone.status_code == 404
        assert gone.json() == {"error": "version 0 is not held; held are: 1, 2", "held": held}
        assert client.get("/weights/two").status_code == 422
        assert client.delete("/leases/unknown").json() == {}
        no_gpu = client.post("/weights/2/ipc")
        assert no_gpu.status_code == 400
        assert "trainer.device cuda" in no_gpu.json()["error"]
        assert client.post("/weights/7/ipc").status_code == 404
        source.hold(3, "run-v3", policy.weights())
        assert [entry["version"] for entry in client.get("/weights").json()["held"]] == [2, 3], "the lease was ended"


def test_the_key_is_needed_where_there_is_one(policy_dir: Path) -> None:
    with serving(make_policy(policy_dir), key="sesame") as (_, client):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "sesame"}):
            refused = client.get("/weights", headers=headers)
            assert refused.status_code == 401
            assert "weight_source_key" in refused.json()["error"]
            assert client.post("/groups", json={}, headers=headers).status_code == 401
        assert client.get("/weights", headers={"authorization": "Bearer sesame"}).status_code == 200


def test_a_taken_port_is_named(policy_dir: Path) -> None:
    policy = make_policy(policy_dir)
    with ExitStack() as stack:
        source, _ = stack.enter_context(serving(policy))
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{source.port}"):
            stack.enter_context(serving(policy, port=source.port))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_engine_receives_every_byte(dtype: str, policy_dir: Path, tmp_path: Path) -> None:
    policy = make_policy(policy_dir, dtype)
    policy.publish_to(tmp_path / "v0")
    with serving(policy) as (source, client):
        source.hold(0, "run-v0", policy.weights())
        group = "engine-0-1"
        with engine(client, group) as receiver:
            assert broadcast(client, group, 0, [receiver]) == [artifact_digests(tmp_path / "v0")]
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.mul_(1.5)
            policy.publish_to(tmp_path / "v1")
            source.hold(1, "run-v1", policy.weights())
            changed = broadcast(client, group, 1, [receiver])
            assert changed == [artifact_digests(tmp_path / "v1")]
            assert changed != broadcast(client, group, 0, [receiver]), "the older version is still there, as it was"
            unknown = client.post(f"/groups/{group}/send", json={"version": 1, "bucket": 99})
            assert unknown.status_code == 404
            assert "not 99" in unknown.json()["error"]
            assert client.delete(f"/groups/{group}").json() == {}
        left = client.post(f"/groups/{group}/send", json={"version": 1, "bucket": 0})
        assert left.status_code == 409
        assert "no group" in left.json()["error"]


def test_an_engine_of_two_ranks_and_one_of_one_receive_at_the_same_time(policy_dir: Path, tmp_path: Path) -> None:
    policy = make_policy(policy_dir)
    policy.publish_to(tmp_path / "v0")
    with serving(policy) as (source, client), ExitStack() as stack:
        source.hold(0, "run-v0", policy.weights())
        fleet = {}
        for group, size in (("single", 2), ("parallel", 3)):
            fleet[group] = [stack.enter_context(Receiver()) for _ in range(1, size)]
            rendezvous = open_group(client, group, size)
            for rank, receiver in enumerate(fleet[group], start=1):
                receiver.join(group, rendezvous, rank=rank, world_size=size)
        for group, ranks in fleet.items():
            assert all(receiver.answer() == {"joined": group} for receiver in ranks)
            wait_for_state(client, group, "ready")
        with ThreadPoolExecutor() as pool:
            running = [pool.submit(broadcast, client, group, 0, ranks) for group, ranks in fleet.items()]
            received = [digests for future in running for digests in future.result()]
        assert received == [artifact_digests(tmp_path / "v0")] * 3


def test_a_version_stays_until_its_last_bucket_is_out(policy_dir: Path) -> None:
    policy = make_policy(policy_dir)
    with serving(policy) as (source, client):
        source.hold(0, "run-v0", policy.weights())
        with engine(client, "engine") as receiver:
            buckets = client.get("/weights/0").json()["buckets"]
            for number, bucket in enumerate(buckets):
                receiver.ask(bucket)
                assert client.post("/groups/engine/send", json={"version": 0, "bucket": number}).status_code == 200
                receiver.answer()
                source.hold(number + 1, f"run-v{number + 1}", policy.weights())
                held = [entry["version"] for entry in client.get("/weights").json()["held"]]
                assert (0 in held) == (number < 1 or number + 1 < len(buckets)), "newest two, and what is being sent"


def test_an_engine_that_dies_in_a_broadcast_fails_it_and_no_other(policy_dir: Path, tmp_path: Path) -> None:
    policy = make_policy(policy_dir)
    policy.publish_to(tmp_path / "v0")
    with serving(policy) as (source, client):
        source.hold(0, "run-v0", policy.weights())
        with engine(client, "doomed") as receiver, ThreadPoolExecutor(1) as pool:
            receiver.ask(client.get("/weights/0").json()["buckets"][0])
            assert client.post("/groups/doomed/send", json={"version": 0, "bucket": 0}).status_code == 200
            receiver.answer()
            source._bucket_bytes = 64 << 20  # more than the kernel's buffers take, so that the broadcast must wait
            source.hold(1, "run-v1", {"large": torch.zeros(16 << 20, dtype=torch.bfloat16)})
            sending = pool.submit(client.post, "/groups/doomed/send", json={"version": 1, "bucket": 0})
            receiver.ask("stall")
            time.sleep(0.3)
            assert not sending.done()
            receiver.ask("die")
            answer = sending.result(timeout=60)
        assert answer.status_code == 409
        assert "bucket 0 of version 1 was not received" in answer.json()["error"]
        error = wait_for_state(client, "doomed", "failed")
        assert error is not None
        again = client.post("/groups/doomed/send", json={"version": 1, "bucket": 0})
        assert again.status_code == 409
        assert error in again.json()["error"]
        with engine(client, "reborn") as receiver:
            assert broadcast(client, "reborn", 0, [receiver]) == [artifact_digests(tmp_path / "v0")]
        source.hold(2, "run-v2", policy.weights())
        source.hold(3, "run-v3", policy.weights())
        assert [entry["version"] for entry in client.get("/weights").json()["held"]] == [2, 3], "no lease is left over"


def test_an_engine_that_hangs_or_never_joins_costs_a_bounded_time(policy_dir: Path) -> None:
    policy = make_policy(policy_dir)
    with serving(policy, timeout_s=5) as (source, client):
        source._bucket_bytes = 64 << 20
        source.hold(0, "run-v0", {"large": torch.zeros(16 << 20, dtype=torch.bfloat16)})
        open_group(client, "nobody")
        early = client.post("/groups/nobody/send", json={"version": 0, "bucket": 0})
        assert early.status_code == 409
        assert "joining" in early.json()["error"]
        assert "did not join" in str(wait_for_state(client, "nobody", "failed"))
        with engine(client, "hung") as receiver:
            receiver.ask("stall")
            answer = client.post("/groups/hung/send", json={"version": 0, "bucket": 0})
            assert answer.status_code == 409
            assert "was not received" in answer.json()["error"]


def test_groups_are_refused_that_cannot_be(policy_dir: Path) -> None:
    with serving(make_policy(policy_dir), timeout_s=2) as (_, client):
        body = {"group": "engine", "world_size": 2, "backend": "nccl"}
        on_cpu = client.post("/groups", json=body)
        assert on_cpu.status_code == 409
        assert "gloo" in on_cpu.json()["error"]
        for wrong in ({"world_size": 1}, {"backend": "mpi"}, {"group": ""}, {"group": "a/b"}):
            assert client.post("/groups", json=body | wrong).status_code == 422
        open_group(client, "engine")
        twice = client.post("/groups", json=body | {"backend": "gloo"})
        assert twice.status_code == 409
        assert "exists" in twice.json()["error"]
        assert client.delete("/groups/engine").json() == {}
        assert client.delete("/groups/engine").json() == {}


def test_the_rendezvous_listens_on_loopback_alone(policy_dir: Path) -> None:
    with serving(make_policy(policy_dir), timeout_s=5) as (_, client):
        rendezvous = open_group(client, "engine")
        assert rendezvous["master_address"] == "127.0.0.1"
        port = rendezvous["master_port"]
        elsewhere = socket.socket()
        elsewhere.bind(("127.0.0.2", port))  # fails where a listener has every address
        elsewhere.close()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_an_ipc_payload_is_what_sglang_unpickles(policy_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the handle itself, which only a GPU gives."""
    policy = make_policy(policy_dir)
    snapshot = Snapshot.take(0, "run-v0", policy.weights(), policy.dtype, bucket_bytes=4096)
    bucket = snapshot.buckets[1]
    arguments = (torch.Tensor, bucket.flat.size(), (1,), 0, torch.storage.TypedStorage, torch.uint8, 3, b"handle")
    arguments = (*arguments, bucket.flat.numel(), 0, False, b"counter", 7, b"event", True)
    monkeypatch.setattr(reductions, "reduce_tensor", lambda _: (reductions.rebuild_cuda_tensor, arguments))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: type("Properties", (), {"uuid": f"card-{index}"})
    )
    data = ipc.dump(bucket, *ipc.reduce_by_uuid(bucket.flat))

    rebuilt: list[tuple[Any, ...]] = []

    def rebuild(*given: Any) -> torch.Tensor:
        rebuilt.append(given)
        return bucket.flat

    monkeypatch.setattr(reductions, "rebuild_cuda_tensor", rebuild)  # where SGLang puts its own
    found = pickle.loads(data)
    assert rebuilt == [(*arguments[:6], "card-3", *arguments[7:])]
    assert found["flattened_tensor"] is bucket.flat
    again = {
        meta.name: found["flattened_tensor"][meta.start_idx : meta.end_idx].view(meta.dtype).reshape(meta.shape)
        for meta in found["metadata"]
    }
    assert all(meta.numel == meta.end_idx - meta.start_idx for meta in found["metadata"])
    assert {name: digest(tensor) for name, tensor in again.items()} == {
        name: digest(tensor) for name, tensor in bucket.tensors().items()
    }
    modules = {type(value).__module__ for meta in found["metadata"] for value in vars(meta).values()}
    assert modules <= {"builtins", "torch"}, "SGLang refuses others"


def test_payloads_give_their_counts_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu(torch.Tensor):
        device = torch.device("cuda", 0)  # type: ignore[assignment]

    flat = torch.zeros(4, dtype=torch.uint8).as_subclass(OnGpu)
    bucket = Bucket(
        flat, Snapshot.take(0, "v", {"a": torch.zeros(1)}, torch.float32, bucket_bytes=4).buckets[0].entries
    )
    released: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        torch.UntypedStorage, "_release_ipc_counter", lambda *given, device: released.append((*given, device))
    )
    arguments = (*range(11), b"counter", 7)
    payloads = ipc.Payloads(Snapshot(0, "run-v0", (bucket,)), reduce=lambda _: (str, arguments))
    assert len(payloads.encoded) == 1
    payloads.close()
    payloads.close()
    assert released == [(b"counter", 7, OnGpu.device)]

    def no_handle(_: torch.Tensor) -> ipc.Reduced:
        raise RuntimeError("CUDA error: invalid argument")

    with pytest.raises(ipc.IpcUnavailable, match="cannot be shared: CUDA error"):
        ipc.Payloads(Snapshot(0, "run-v0", (bucket,)), reduce=no_handle)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def common(embedded_broker: EmbeddedBroker, prefix: str, tmp_path: Path) -> CommonConfig:
    return make_common(embedded_broker.bootstrap, prefix.rstrip("."), tmp_path / "data")


@pytest.mark.slow
def test_a_version_that_is_announced_is_held(common: CommonConfig, policy_dir: Path) -> None:
    """The generator looks before it answers with verdicts, so the trainer cannot be further than this version."""
    settings = {"enabled": True, "port": free_port(), "key": "sesame"}
    url, headers = f"http://127.0.0.1:{settings['port']}", {"authorization": "Bearer sesame"}
    seen: dict[int, list[int]] = {}
    received: dict[int, dict[str, str]] = {}
    contexts: list[ServiceContext[TrainerConfig]] = []

    def look(version: int) -> None:
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            assert client.get(f"/weights/{version}").json()["name"] == f"run-v{version}"
            seen[version] = [entry["version"] for entry in client.get("/weights").json()["held"]]
            group = f"engine-{version}"
            with engine(client, group) as receiver:
                for held in seen[version]:
                    (received[held],) = broadcast(client, group, held, [receiver])
            client.delete(f"/groups/{group}")

    def make(ordinal: int, version: int) -> list[Verdict]:
        if version not in seen and version not in (2, 4):  # after these the trainer stops, and serves no more
            try:
                look(version)
            except BaseException:
                contexts[-1].stop.set()
                raise
        return make_group(ordinal, version=version)

    def train(until: int) -> None:
        context = make_context(
            common, policy_dir, weights="full", dtype="bfloat16", max_versions=until, weight_source=settings
        )
        contexts.append(context)
        run(context)
        phases = context.metrics.registry.get_sample_value
        for phase in ("save", "hash", "flush", "checkpoint", "hold", "announce"):
            assert phases("gristmill_trainer_publish_phase_seconds_count", {"phase": phase}) == 2

    line = Line(common, make=make)
    line.start()
    train(2)
    train(4)
    line.close()
    assert [step.version for step in steps_of(common)] == [1, 2, 3, 4]
    assert seen == {0: [0], 1: [0, 1], 3: [2, 3]}, "a restarted trainer holds its present version again"
    assert received.keys() == {0, 1, 2, 3}
    folders = {policy.version: from_uri(policy.uri) for policy in policies_of(common)}
    for version, digests in received.items():
        assert digests == artifact_digests(folders[version])
    assert audit(common).balanced
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/weights")
