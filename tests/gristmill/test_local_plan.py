"""What follows for the run's settings, environments and command lines from the machine and from what was asked."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.config import load_settings, merge
from gristmill.errors import ConfigError
from gristmill.local.gpus import visible_gpus
from gristmill.local.options import LineOptions, ResolvedLine, read_gpus, resolve
from gristmill.local.placement import Gpu
from gristmill.local.plan import LinePlan, engine_plans, make_plan

WRAPPER = {"local": {"sglang": {"command": [sys.executable, "serve.py"]}}}
"""A command that is not asked whether SGLang is installed."""


def machine(count: int) -> Callable[[], tuple[tuple[Gpu, ...], str]]:
    gpus = tuple(Gpu(index, f"GPU-{index}", "H200", 143771) for index in range(count))
    return lambda: (gpus, "")


def line(flags: dict[str, Any] | None = None, **options: Any) -> ResolvedLine:
    wanted = {"engines": ("sglang",), **options}
    return resolve(LineOptions(policy="some-model", flags=merge(WRAPPER, flags or {}), **wanted), "run")


def flags_of(plan: LinePlan, resolved: ResolvedLine, number: int = 0) -> dict[str, str]:
    """Flags of a server with what follows each."""
    command = engine_plans(plan, resolved, Path("/policy"), Path("/run/config.yaml"))[number].command
    assert command[:2] == [sys.executable, "serve.py"]
    found: dict[str, list[str]] = {}
    for word in command[2:]:
        if word.startswith("--"):
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return {flag: " ".join(values) for flag, values in found.items()}


def child_settings(plan: LinePlan, resolved: ResolvedLine) -> Any:
    """The settings as the services read them."""
    return load_settings(None, merge(resolved.values, plan.values), {})


def test_adapters_on_two_gpus() -> None:
    resolved = line({"trainer": {"lora": {"r": 8}, "max_staleness": 2}, "generator": {"keep_versions": 1}})
    plan = make_plan(resolved, machine(2))
    assert plan.kind == "sglang"
    assert plan.trainer_env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    (engine,) = engine_plans(plan, resolved, Path("/policy"), Path("/run/config.yaml"))
    assert engine.name == "engine"
    assert engine.url == plan.urls[0]
    assert engine.env["CUDA_VISIBLE_DEVICES"] == "1"
    assert engine.env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"
    assert flags_of(plan, resolved) == {
        "--model-path": "/policy",
        "--host": "127.0.0.1",
        "--port": plan.urls[0].rpartition(":")[2],
        "--enable-metrics": "",
        "--tp-size": "1",
        "--cuda-graph-max-bs-decode": "512",
        "--enable-lora": "",
        "--max-lora-rank": "8",
        "--lora-target-modules": "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj",
        "--max-loaded-loras": "6",
        "--max-loras-per-batch": "5",
    }
    settings = child_settings(plan, resolved)
    assert settings.generator.engines == plan.urls
    assert settings.local.engine == "sglang"
    assert (settings.local.gpus.trainer, settings.local.gpus.engine) == (("0",), ("1",))
    assert settings.trainer.device == "cuda"
    assert settings.trainer.gpu_memory_fraction is None
    assert plan.remarks == ("GPU 0 (H200): trainer", "GPU 1 (H200): engine")


def test_one_gpu_is_shared_on_demand_only() -> None:
    with pytest.raises(ConfigError, match="--share-gpu"):
        make_plan(line(), machine(1))
    resolved = line(share_gpu=True)
    plan = make_plan(resolved, machine(1))
    assert flags_of(plan, resolved)["--mem-fraction-static"] == "0.45"
    assert plan.trainer_env["CUDA_VISIBLE_DEVICES"] == "0"
    settings = child_settings(plan, resolved)
    assert (settings.local.sglang.mem_fraction, settings.trainer.gpu_memory_fraction) == (0.45, 0.45)
    own = {"local": {"sglang": {"mem_fraction": 0.6}}, "trainer": {"gpu_memory_fraction": 0.3}}
    chosen = line(own, share_gpu=True)
    assert flags_of(make_plan(chosen, machine(1)), chosen)["--mem-fraction-static"] == "0.6"


def test_a_server_for_each_group_of_gpus_from_a_port_on() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        base = probe.getsockname()[1]
    flags = {"local": {"sglang": {"tp": 2, "port_base": base, "args": "--attention-backend triton"}}}
    resolved = line(flags, gpus=("trainer=4", "engine=0,1,2,3"))
    plan = make_plan(resolved, machine(5))
    assert plan.urls == (f"http://127.0.0.1:{base}", f"http://127.0.0.1:{base + 1}")
    one, two = engine_plans(plan, resolved, Path("/policy"), Path("/run/config.yaml"))
    assert (one.name, two.name) == ("engine-0", "engine-1")
    assert (one.env["CUDA_VISIBLE_DEVICES"], two.env["CUDA_VISIBLE_DEVICES"]) == ("0,1", "2,3")
    assert flags_of(plan, resolved, 1)["--tp-size"] == "2"
    assert two.command[-2:] == ["--attention-backend", "triton"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base))
        taken.listen()
        with pytest.raises(ConfigError, match=f"port_base: port {base} cannot be used"):
            make_plan(resolved, machine(5))


def test_start_flags_and_concurrency_agree() -> None:
    for concurrency, batch in ((96, "96"), ("auto", "512")):
        resolved = line({"generator": {"engine_concurrency": concurrency}})
        assert flags_of(make_plan(resolved, machine(2)), resolved)["--cuda-graph-max-bs-decode"] == batch


def test_weights_by_ipc_need_one_view_and_a_source() -> None:
    resolved = line({"generator": {"delivery": "tensor", "tensor_transfer": "ipc"}})
    plan = make_plan(resolved, machine(3))
    engines = engine_plans(plan, resolved, Path("/policy"), Path("/run/config.yaml"))
    assert {engine.env["CUDA_VISIBLE_DEVICES"] for engine in engines} == {"0,1,2"}
    assert plan.trainer_env["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    assert [flags_of(plan, resolved, number)["--base-gpu-id"] for number in (0, 1)] == ["1", "2"]
    assert "--enable-lora" not in flags_of(plan, resolved)
    settings = child_settings(plan, resolved)
    assert settings.trainer.device == "cuda:0"
    assert settings.trainer.weights == "full"
    assert settings.trainer.weight_source.enabled
    assert settings.generator.weight_source == f"http://127.0.0.1:{settings.trainer.weight_source.port}"
    assert "the trainer trains full weights" in plan.remarks[0]
    with pytest.raises(ConfigError, match="not both on a GPU"):
        make_plan(line({"generator": {"delivery": "tensor", "tensor_transfer": "ipc"}}, engines=()), machine(0))
    with pytest.raises(ConfigError, match=r"trainer\.device is cpu"):
        line({"generator": {"delivery": "tensor", "tensor_transfer": "ipc"}, "trainer": {"device": "cpu"}})


def test_nccl_needs_a_gpu_each_and_uses_gloo_on_cpus() -> None:
    nccl: dict[str, Any] = {"generator": {"delivery": "nccl"}}
    settings = child_settings(make_plan(line(nccl), machine(2)), line(nccl))
    assert settings.generator.group_backend == "nccl"
    assert settings.trainer.device == "cuda"
    with pytest.raises(ConfigError, match=r"they share GPU 0.*tensor_transfer=ipc"):
        make_plan(line(nccl, share_gpu=True), machine(1))
    with pytest.raises(ConfigError, match=r"trainer\.device is cpu"):
        make_plan(line(merge(nccl, {"trainer": {"device": "cpu"}})), machine(2))
    on_cpus = line(nccl, engines=())
    assert child_settings(make_plan(on_cpus, machine(0)), on_cpus).generator.group_backend == "gloo"


def test_delivery_and_weights_are_made_to_agree() -> None:
    for delivery in ("disk", "tensor"):
        resolved = line({"generator": {"delivery": delivery}})
        assert resolved.values["trainer"]["weights"] == "full"
        assert resolved.remarks == (f"generator.delivery {delivery}: the trainer trains full weights",)
        assert resolved.values["trainer"]["learning_rate"] < line().values["trainer"]["learning_rate"]
    full = line({"trainer": {"weights": "full"}})
    assert full.values["generator"]["delivery"] == "disk"
    kept = line({"generator": {"delivery": "disk"}, "trainer": {"learning_rate": 3e-4}})
    assert kept.values["trainer"]["learning_rate"] == 3e-4
    for delivery, weights, wanted in (("disk", "lora", "full"), ("lora", "full", "lora")):
        with pytest.raises(ConfigError, match=f"trainer.weights is {weights}: set it to {wanted}"):
            line({"generator": {"delivery": delivery}, "trainer": {"weights": weights}})


def test_the_key_of_the_weight_source_reaches_both_sides_by_environment() -> None:
    flags = {"generator": {"delivery": "nccl"}, "trainer": {"weight_source": {"key": "hidden"}}}
    resolved = line(flags)
    assert "hidden" not in repr(resolved.values)
    assert resolved.secrets == {
        "GRISTMILL_TRAINER__WEIGHT_SOURCE__KEY": "hidden",
        "GRISTMILL_GENERATOR__WEIGHT_SOURCE_KEY": "hidden",
    }
    with pytest.raises(ConfigError, match=r"weight_source\.enabled is false: leave it out"):
        line({"generator": {"delivery": "nccl"}, "trainer": {"weight_source": {"enabled": False}}})


def test_a_port_and_an_address_of_the_users_own_are_kept() -> None:
    flags = {"generator": {"delivery": "nccl"}, "trainer": {"weight_source": {"port": 4711}}}
    assert line(flags).values["generator"]["weight_source"] == "http://127.0.0.1:4711"
    flags["generator"]["weight_source"] = "http://tunnel:1"
    assert line(flags).values["generator"]["weight_source"] == "http://tunnel:1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engines": ("sglang", "http://e:1")}, "give one of the two"),
        ({"flags": {"generator": {"engines": ["http://e:1"]}}}, "leave one of the two out"),
        ({"gpus": ("trainer",)}, "--gpus trainer: give a role and its GPUs"),
        ({"gpus": ("engines=1",)}, "--gpus engines=1: give a role and its GPUs"),
        ({"gpus": ("engine=1", "engine=2")}, "--gpus engine stands twice"),
        ({"gpus": ("engine=1,",)}, "name at least one GPU"),
    ],
)
def test_contradictions_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        line(**options)


def test_gpus_of_roles_are_read() -> None:
    assert read_gpus(("trainer=0", "engine=1,GPU-5")) == {"trainer": "0", "engine": "1,GPU-5"}
    settings: Any = line({"local": {"gpus": {"trainer": 3, "engine": [1, "2"]}}}).settings
    assert (settings.local.gpus.trainer, settings.local.gpus.engine) == (("3",), ("1", "2"))


def test_a_device_that_the_placement_would_overrule_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"leave trainer\.device out and say --gpus trainer=1"):
        make_plan(line({"trainer": {"device": "cuda:1"}}), machine(2))


def test_the_embedded_engine_is_placed_when_it_is_asked_for() -> None:
    alone = line(engines=())
    assert make_plan(alone, machine(0)).placement is None
    assert make_plan(alone, machine(1)).placement is None
    two = make_plan(alone, machine(2))
    assert child_settings(two, alone).trainer.device == "auto"
    resolved = line(engines=(), gpus=("trainer=1", "engine=0"))
    plan = make_plan(resolved, machine(2))
    (engine,) = engine_plans(plan, resolved, Path("/policy"), Path("/run/config.yaml"))
    assert engine.env["CUDA_VISIBLE_DEVICES"] == "0"
    assert engine.command[-3:] == ["engine", "--config", "/run/config.yaml"]
    settings = child_settings(plan, resolved)
    assert (settings.engine.device, settings.trainer.device) == ("cuda", "cuda")


def test_running_engines_are_not_started() -> None:
    resolved = line(engines=("http://e:1", "http://e:2"))
    plan = make_plan(resolved, machine(2))
    assert plan.urls == ("http://e:1", "http://e:2")
    assert engine_plans(plan, resolved, Path("/policy"), Path("/run/config.yaml")) == []


def own_sglang(folder: Path) -> Path:
    """A folder with a package that is called sglang."""
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang" / "__init__.py").touch()
    return folder


def test_sglang_that_is_not_installed_is_noticed_before_anything_starts(tmp_path: Path) -> None:
    def asked(**sglang: Any) -> ResolvedLine:
        flags = {"local": {"sglang": {"command": f"{sys.executable} -m sglang.launch_server", **sglang}}}
        return resolve(LineOptions(policy="m", engines=("sglang",), flags=flags), "run")

    with pytest.raises(ConfigError, match=r"SGLang is not installed for .*: pip install sglang=="):
        make_plan(asked(), machine(2))
    make_plan(asked(env={"PYTHONPATH": str(own_sglang(tmp_path))}), machine(2))
    with pytest.raises(ConfigError, match="there is no program '/no/such/python'"):
        make_plan(asked(command=["/no/such/python", "-m", "sglang.launch_server"]), machine(2))


def fake_smi(folder: Path, script: str) -> dict[str, str]:
    """Environment with an nvidia-smi of ours."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_the_machine_is_asked_through_nvidia_smi(tmp_path: Path) -> None:
    env = fake_smi(tmp_path, "echo '0, GPU-a, H200, 10'; echo '1, GPU-b, H200, 10'")
    gpus, hidden = visible_gpus(env)
    assert ([gpu.index for gpu in gpus], hidden) == ([0, 1], "")
    gpus, hidden = visible_gpus({**env, "CUDA_VISIBLE_DEVICES": "1"})
    assert ([gpu.index for gpu in gpus], hidden) == ([1], " (CUDA_VISIBLE_DEVICES is '1')")
    assert visible_gpus(fake_smi(tmp_path, "echo 'no driver'; exit 9")) == ((), " (nvidia-smi failed: no driver)")
    assert visible_gpus({"PATH": str(tmp_path / "empty")}) == ((), " (there is no nvidia-smi on the PATH)")
