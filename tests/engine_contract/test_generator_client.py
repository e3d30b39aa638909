"""The generator's own client against the engine: what it takes for a completion, and what for which failure."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("sglang_generator.engine_client", reason="services/ or what it needs is not on the path")

from sglang_generator.config import GeneratorConfig
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError, RequestRefused
from sglang_generator.wire import Expected, Generated
from support.contract import Target
from support.engine import Client

PROMPT = (11, 42, 7, 99, 23, 54)


def on(target: Target, test: Callable[[EngineClient], Awaitable[None]]) -> None:
    """Run a test with a client of the engine."""
    config = GeneratorConfig(engines=(target.url,), api_key=os.environ.get("GRISTMILL_ENGINE_API_KEY"))

    async def main() -> None:
        client = EngineClient(target.url, config)
        try:
            await test(client)
        finally:
            await client.close()

    asyncio.run(main())


async def sample(client: EngineClient, adapter: str | None = None, rid: str = "", **params: Any) -> Generated:
    wanted = {"max_new_tokens": 8, "temperature": 1.0, **params}
    expected = Expected(adapter=adapter, weight_version=(await client.model_info()).weight_version)
    return await client.generate(rid=rid or uuid4().hex, input_ids=PROMPT, params=wanted, expected=expected)


async def failure(awaitable: Awaitable[Generated]) -> str:
    """Kind of the engine's failure; ``refused`` when it blames the request."""
    try:
        await awaitable
    except EngineError as error:
        return error.kind
    except RequestRefused:
        return "refused"
    raise AssertionError("it succeeded")


def test_a_completion_passes_every_check(target: Target) -> None:
    async def test(client: EngineClient) -> None:
        found = await sample(client, ignore_eos=True)
        assert len(found.ids) == len(found.logprobs) == 4 * 8
        assert found.finish_reason == "length"
        models = await client.models()
        assert models is not None
        assert models.data[0].max_model_len
        await client.health()

    on(target, test)


def test_requests_that_make_no_sense_are_refused(target: Target) -> None:
    async def test(client: EngineClient) -> None:
        assert await failure(sample(client, max_new_tokens=10**6)) == "refused"
        assert await failure(sample(client, top_p=2.0)) == "refused"

    on(target, test)


@pytest.mark.parametrize("hold", [False, True])
def test_an_abort_is_nobodys_fault(target: Target, client: Client, hold: bool) -> None:
    """Neither of a running request, nor of one that waits, of which SGLang tells less."""

    async def test(generator: EngineClient) -> None:
        rid = uuid4().hex
        task = asyncio.create_task(failure(sample(generator, rid=rid, max_new_tokens=3000, ignore_eos=True)))
        for _ in range(500):
            if task.done() or client.get("/v1/loads", include="core")[1]["loads"][0]["num_running_reqs"]:
                break
            await asyncio.sleep(0.02)
        if hold:
            await asyncio.to_thread(client.post, "/pause_generation", mode="retract")
        await generator.abort(rid)
        assert await task == "aborted"

    on(target, test)


def test_a_missing_adapter_is_the_engines_fault(target: Target, tmp_path: Path) -> None:
    folder, name = tmp_path / "adapter", f"contract-{uuid4().hex}"
    shutil.copytree(target.adapters[0], folder)

    async def test(client: EngineClient) -> None:
        assert await failure(sample(client, adapter=name)) == "adapter"
        assert (await client.load_lora_adapter(name, str(folder))).success
        again = await client.load_lora_adapter(name, str(folder))
        assert "already" in (again.error_message or "")
        assert await sample(client, adapter=name)
        assert (await client.unload_lora_adapter(name)).success
        shutil.rmtree(folder)  # else SGLang would load it again for the next request
        assert await failure(sample(client, adapter=name)) == "adapter"

    on(target, test)
