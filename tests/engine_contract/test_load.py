"""512 requests at once: each is answered, with its own rid and its own numbers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import httpx

from support.contract import PROMPT, Target, agree, score, values
from support.engine import TIMEOUT_S, Client

REQUESTS = 512
GROUP = 8
CLIENTS = 16
LIMITS = httpx.Limits(max_connections=REQUESTS // CLIENTS + 1)


def body(number: int) -> dict[str, Any]:
    """Groups of eight have one prompt, all different from the next group's; lengths differ within a group."""
    prompt = [*PROMPT, 10 + number // GROUP % 80, 10 + number // GROUP // 80]
    params = {"max_new_tokens": 8 + number % GROUP, "temperature": 1.0, "ignore_eos": True}
    return {"rid": uuid4().hex, "input_ids": prompt, "sampling_params": params, "return_logprob": True}


async def ask(target: Target, bodies: list[dict[str, Any]]) -> list[Any]:
    """All answers. The engine is paused until every request has been sent, so that none is answered before."""
    async with AsyncExitStack() as stack:
        # Several clients: one pool of 512 connections spends its time looking through them.
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=TIMEOUT_S, limits=LIMITS)
            )
            for _ in range(CLIENTS)
        ]
        await clients[0].post("/pause_generation", json={"mode": "in_place"})
        calls = [
            asyncio.create_task(clients[number % CLIENTS].post("/generate", json=one))
            for number, one in enumerate(bodies)
        ]
        await asyncio.sleep(1.0)
        assert not any(call.done() for call in calls)
        await clients[0].post("/continue_generation", json={})
        responses = await asyncio.gather(*calls)
    for response in responses:
        assert response.status_code == 200, response.text[:300]
    return [response.json() for response in responses]


def test_none_of_512_is_lost(client: Client, target: Target) -> None:
    bodies = [body(number) for number in range(REQUESTS)]
    answers = asyncio.run(ask(target, bodies))
    assert len({answer["meta_info"]["id"] for answer in answers}) == REQUESTS
    for sent, answer in zip(bodies, answers, strict=True):
        meta, wanted = answer["meta_info"], sent["sampling_params"]["max_new_tokens"]
        assert meta["id"] == sent["rid"]
        assert meta["prompt_tokens"] == len(sent["input_ids"])
        assert meta["finish_reason"] == {"type": "length", "length": wanted}
        assert len(values(answer)) == wanted
    # No answer is another's: what was sampled in the crowd has the numbers that it has alone.
    found: list[float] = []
    alone: list[float] = []
    for number in range(0, REQUESTS, REQUESTS // 32):
        found += values(answers[number])
        alone += score(client, bodies[number]["input_ids"], answers[number]["output_ids"])
    agree(found, alone, target.tolerance)
