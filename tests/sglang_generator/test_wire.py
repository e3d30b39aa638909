"""What responses must be, and what requests look like."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_engine import FakeEngine
from generator_rig import fast, make_artifact
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gristmill.messages import Sampling, unpack_ids, unpack_logprobs
from sglang_generator.config import GeneratorConfig
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.wire import Expected, GenerateReply, check, sampling_params

logprobs = st.floats(-50, 0, width=32)
samples = st.lists(st.tuples(logprobs, st.integers(0, 2**31 - 1)), min_size=1, max_size=20)


def make_reply(pairs: list[tuple[float, int]], **meta: Any) -> GenerateReply:
    info = {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 3,
        "completion_tokens": len(pairs),
        "weight_version": "w",
        "output_token_logprobs": [[logprob, token, None] for logprob, token in pairs],
        "e2e_latency": 0.1,
    }
    body = {"text": "", "output_ids": [token for _, token in pairs], "meta_info": info | meta}
    return msgspec.json.decode(msgspec.json.encode(body), type=GenerateReply)


def checked(reply: GenerateReply, adapter: str | None = "a", version: str | None = "w") -> Any:
    return check(reply, rid="r", prompt_tokens=3, max_new_tokens=20, expected=Expected(adapter, version))


@given(pairs=samples)
def test_ids_and_logprobs_pass_through_exactly(pairs: list[tuple[float, int]]) -> None:
    result = checked(make_reply(pairs))
    assert unpack_ids(result.ids).tolist() == [token for _, token in pairs]
    assert unpack_logprobs(result.logprobs).tolist() == [logprob for logprob, _ in pairs]


@pytest.mark.parametrize(
    ("kind", "meta"),
    [
        ("mismatch", {"id": "other"}),
        ("mismatch", {"weight_version": "v"}),
        ("mismatch", {"weight_version": None}),
        ("mismatch", {"lora_path": "b"}),
        ("mismatch", {"lora_path": None}),
        ("aborted", {"finish_reason": {"type": "abort", "message": "x", "status_code": 503}}),
        ("invalid", {"finish_reason": None}),
        ("invalid", {"finish_reason": {"type": "surprise"}}),
        ("invalid", {"prompt_tokens": 4}),
        ("invalid", {"completion_tokens": 2}),
        ("invalid", {"output_token_logprobs": [[0.5, 7, None]]}),
        ("invalid", {"output_token_logprobs": [[None, 7, None]]}),
        ("invalid", {"output_token_logprobs": [[-1.0, 8, None]]}),
        ("invalid", {"output_token_logprobs": []}),
    ],
)
def test_inconsistent_responses_are_errors(kind: str, meta: dict[str, Any]) -> None:
    with pytest.raises(EngineError) as caught:
        checked(make_reply([(-1.0, 7)], **meta))
    assert caught.value.kind == kind


def test_an_echoed_adapter_may_be_absent_or_right() -> None:
    assert checked(make_reply([(-1.0, 7)])).finish_reason == "stop"
    assert checked(make_reply([(-1.0, 7)], lora_path="a")).weight_version == "w"


def test_what_sglang_tells_of_a_request_aborted_in_its_queue() -> None:
    meta = {
        "id": "r",
        "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
        "weight_version": "default",
        "e2e_latency": 0.7,
        "completion_tokens": 0,
    }
    reply = msgspec.json.decode(
        msgspec.json.encode({"text": "", "output_ids": [], "meta_info": meta}), type=GenerateReply
    )
    with pytest.raises(EngineError) as caught:
        checked(reply)
    assert caught.value.kind == "aborted"


@pytest.mark.parametrize(
    "text",
    [
        "Got LoRA adapter that has never been loaded: a-v1\nAll loaded adapters: dict_keys([]).",
        "The following requested LoRA adapters are not loaded: a-v1",
        "Failed to implicitly load LoRA adapter a-v1: Repo id must be in the form 'repo_name'",
        "LoRA is not enabled. Please set `--enable-lora` to enable LoRA.",
    ],
)
def test_a_missing_adapter_is_the_engines_fault(tokenizer: str, text: str) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine:
            client = EngineClient(engine.url, GeneratorConfig(**fast([engine.url])))
            engine.faults["/generate"] = ["400", 1]
            engine.fault_text = text
            with pytest.raises(EngineError) as caught:
                await client.generate(
                    rid="r", input_ids=[0, 1], params={"max_new_tokens": 1}, expected=Expected("a-v1", None)
                )
            assert caught.value.kind == "adapter"
            await client.close()

    asyncio.run(main())


def test_default_sampling_parameters_are_left_out() -> None:
    plain = sampling_params(Sampling(temperature=1.0, max_new_tokens=5), 3)
    assert plain == {"max_new_tokens": 5, "temperature": 1.0}
    full = Sampling(temperature=0.0, top_p=0.5, top_k=4, min_p=0.1, max_new_tokens=5, stop=("a",), seed=7)
    assert sampling_params(full, 3) == {
        "max_new_tokens": 5,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 4,
        "min_p": 0.1,
        "stop": ["a"],
        "sampling_seed": 10,
    }


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("401", "auth"), ("429", "unavailable"), ("500", "unavailable"), ("drop", "connection"), ("garbage", "protocol")],
)
def test_failures_of_control_calls_say_what_they_are(tokenizer: str, tmp_path: Path, fault: str, kind: str) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine:
            client = EngineClient(engine.url, GeneratorConfig(**fast([engine.url])))
            engine.faults["/load_lora_adapter"] = [fault, 1]
            with pytest.raises(EngineError) as caught:
                await client.load_lora_adapter("a-v1", str(make_artifact(tmp_path / "a", 1)))
            assert caught.value.kind == kind
            assert engine.url in str(caught.value)
            await client.close()

    asyncio.run(main())


def test_keys_go_where_sglang_wants_them(tokenizer: str) -> None:
    config = GeneratorConfig(api_key="user", admin_api_key="admin")
    client = EngineClient("http://127.0.0.1:1", config)
    assert client._headers["Authorization"] == "Bearer user"
    assert client._admin_headers["Authorization"] == "Bearer admin"
    assert "user" not in repr(config)


@pytest.mark.parametrize("key", ["secret\n", "sécret", "", "se cret"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    for name in ("api_key", "admin_api_key", "weight_source_key"):
        with pytest.raises(ValidationError, match="visible ASCII") as caught:
            GeneratorConfig.model_validate({name: key, "weight_source": "http://127.0.0.1:1"})
        assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"engines": ()},
        {"engines": ("127.0.0.1:30000",)},
        {"engines": ("http://a:1", "http://a:1/")},
        {"static_policy": {"version": 3}},
        {"engine_concurency": 3},
        {"engine_concurrency": 0},
        {"engine_concurrency": "some"},
        {"delivery": "nccl"},
        {"delivery": "tensor", "tensor_transfer": "ipc"},
        {"delivery": "nccl", "weight_source": "127.0.0.1:1"},
        {"delivery": "disk", "tensor_transfer": "ipc", "weight_source": "http://127.0.0.1:1"},
        {"delivery": "disk", "lora_transfer": "tensors"},
        {"lora_transfer": "tensors", "adopt_adapters": True},
        {"weight_source_key": "secret"},
        {"switch": "some"},
    ],
)
def test_unusable_settings_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GeneratorConfig(**values)
