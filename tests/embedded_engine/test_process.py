"""The server as a process, and what happens when it cannot go on."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from embedded_engine.config import EngineConfig
from embedded_engine.errors import UnsupportedModel
from embedded_engine.model.runner import load_model
from embedded_engine.server import EngineServer
from gristmill.errors import ConfigError
from support.engine import Client, RunningEngine, make_model
from support.processes import gristmill, wait_until

PROMPT = list(b"hello")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_the_command_serves_and_drains_on_sigterm(model: Path, tmp_path: Path) -> None:
    port = free_port()
    flags = ("--model", str(model), "--port", str(port), "--threads", "1")
    with gristmill("engine", *flags, log=tmp_path / "engine.log") as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(url) or process.status is not None, 60)
        assert process.status is None, process.text()
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
        with ThreadPoolExecutor(1) as pool:
            last = pool.submit(httpx.post, f"{url}/generate", json=body, timeout=30)
            client = Client(url)
            wait_until(lambda: last.done() or client.get("/v1/loads")[1]["loads"][0]["num_running_reqs"] == 1, 10)
            client.http.close()
            process.terminate()
            assert last.result(20).json()["meta_info"]["finish_reason"]["type"] in ("abort", "length")
        assert process.wait(20) == 0
        text = process.text()
        assert text.count("engine ready") == 1
        assert "engine stopped" in text
        assert "Traceback" not in text


def test_help_needs_no_torch() -> None:
    """The command line stays fast: torch is imported by `serve` alone."""
    code = "import sys, embedded_engine.commands, embedded_engine.config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_taken_port_is_named(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            EngineServer(EngineConfig(model_path=str(model), port=port))


def test_the_key_guards_all_but_health_and_metrics(model: Path) -> None:
    with RunningEngine(model, api_key=SecretStr("sesame")) as engine:
        bare, keyed = Client(engine.url), Client(engine.url, headers={"Authorization": "Bearer sesame"})
        assert bare.get("/health")[0] == bare.get("/metrics")[0] == 200
        assert bare.post("/generate", input_ids=PROMPT)[0] == 401
        assert bare.get("/model_info")[0] == 401
        assert keyed.post("/generate", input_ids=PROMPT)[0] == 200
        assert "sesame" not in str(keyed.get("/server_info")[1])
        bare.http.close()
        keyed.http.close()


def test_a_dead_scheduler_answers_and_ends_the_server(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RunningEngine(model)
    with engine:
        client = Client(engine.url)
        assert client.post("/generate", input_ids=PROMPT)[0] == 200

        def burst(*_: Any) -> None:
            raise RuntimeError("the device is gone")

        monkeypatch.setattr(engine.server.engine.model.transformer, "forward", burst)
        status, answer = client.post("/generate", input_ids=PROMPT)
        assert status == 500
        assert "the device is gone" in answer["detail"]
        client.http.close()
        wait_until(lambda: engine.failure is not None, 10)
    assert "the device is gone" in str(engine.failure)


def spoiled(folder: Path, **settings: Any) -> Path:
    import json

    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, "sliding window"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}, "yarn"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"hidden_size": 128}, "shape"),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, "no tensor"),
        ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, "has not"),
        ({"num_hidden_layers": 1}, "cannot be read"),
    ],
)
def test_what_it_cannot_run_faithfully_is_refused(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    folder = spoiled(make_model(tmp_path / "model", hidden=32), **settings)
    with pytest.raises(UnsupportedModel, match=named):
        load_model(EngineConfig(model_path=str(folder)))


def test_no_model_and_no_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="--model"):
        load_model(EngineConfig())
    with pytest.raises(UnsupportedModel, match="no such folder"):
        load_model(EngineConfig(model_path=str(tmp_path / "nothing")))
