"""Pauses: what happens to running and new requests, and updates while paused."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from support.contract import (
    NEW,
    PROMPT,
    Target,
    agree,
    checksum,
    failed,
    finish,
    fresh,
    from_disk,
    need_embedded,
    score,
    start,
    values,
    version,
)
from support.engine import Client

HELD = {"max_new_tokens": 600}


def test_abort_returns_partials_and_holds_new_requests(client: Client, target: Target) -> None:
    with ThreadPoolExecutor(2) as pool:
        call = start(client, pool, uuid4().hex, max_new_tokens=3000)
        assert client.post("/pause_generation", mode="abort")[0] == 200
        partial = call.result()
        assert finish(partial) == "abort"
        held = pool.submit(client.generate, PROMPT, **NEW)
        time.sleep(0.3)
        assert not held.done()
        assert client.post("/continue_generation")[0] == 200
        assert len(values(held.result())) == 8
    agree(values(partial), score(client, PROMPT, partial["output_ids"]), target.tolerance)


def test_an_unknown_mode_is_refused(client: Client) -> None:
    assert client.post("/pause_generation", mode="nonsense")[0] in (400, 422)
    assert len(values(client.generate(PROMPT, **NEW))) == 8


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_held_request_goes_on(client: Client, target: Target, mode: str) -> None:
    """Nothing comes while it is held, and afterwards the sample is as if there had been no pause."""
    with ThreadPoolExecutor(1) as pool:
        call = start(client, pool, uuid4().hex, **HELD)
        assert client.post("/pause_generation", mode=mode)[0] == 200
        paused_first = not call.done()
        time.sleep(0.3)
        assert call.done() is not paused_first
        assert client.post("/continue_generation")[0] == 200
        answer = call.result()
    assert finish(answer) == "length"
    assert len(values(answer)) == 600
    agree(values(answer), score(client, PROMPT, answer["output_ids"]), target.tolerance)


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_held_request_can_be_aborted(client: Client, mode: str) -> None:
    rid = uuid4().hex
    with ThreadPoolExecutor(1) as pool:
        call = start(client, pool, rid, max_new_tokens=3000)
        client.post("/pause_generation", mode=mode)
        assert client.post("/abort_request", rid=rid)[0] == 200
        # SGLang takes a request that is held in place out of its batch with the next step.
        time.sleep(0.2)
        client.post("/continue_generation")
        answer = call.result()
    assert finish(answer) == "abort"
    values(answer)


@pytest.mark.usefixtures("restored")
def test_strict_versions_pause_abort_update_continue(client: Client, target: Target, original: str) -> None:
    """How a sample of one version is made: the partial is of the old weights, its continuation of the new ones."""
    old, new = version(client), fresh()
    with ThreadPoolExecutor(2) as pool:
        call = start(client, pool, uuid4().hex, max_new_tokens=3000)
        client.post("/pause_generation", mode="abort")
        partial = call.result()
        held = pool.submit(client.generate, PROMPT, **{**NEW, "max_new_tokens": 32})
        from_disk(client, target.checkpoint, new)
        client.post("/continue_generation")
        answer = held.result()
    assert (finish(partial), partial["meta_info"]["weight_version"]) == ("abort", old)
    assert answer["meta_info"]["weight_version"] == new
    assert checksum(client) != original
    expected = target.reference(model=target.checkpoint).logprobs(PROMPT, answer["output_ids"])
    agree(values(answer), expected, target.tolerance)
    resumed = client.generate([*PROMPT, *partial["output_ids"]], **NEW)
    assert resumed["meta_info"]["weight_version"] == new


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_an_update_while_held_shows_in_the_version_at_the_finish(
    client: Client, target: Target, original: str, mode: str
) -> None:
    """Such a sample has tokens of both: a client sees it by the version, which is not the one at its start."""
    new = fresh()
    with ThreadPoolExecutor(1) as pool:
        call = start(client, pool, uuid4().hex, **HELD)
        client.post("/pause_generation", mode=mode)
        held = not call.done()
        # flush_cache must be false: SGLang's server ends when it flushes under a held request.
        from_disk(client, target.checkpoint, new, flush_cache=False)
        client.post("/continue_generation")
        answer = call.result()
    assert len(values(answer)) == 600
    if held:
        assert answer["meta_info"]["weight_version"] == new
    assert checksum(client) != original


def test_flushing_under_a_held_request_is_refused(client: Client, target: Target, original: str) -> None:
    need_embedded(target, "SGLang asserts in its scheduler, which ends the server")
    with ThreadPoolExecutor(1) as pool:
        call = start(client, pool, uuid4().hex, max_new_tokens=3000)
        client.post("/pause_generation", mode="in_place")
        assert not call.done()
        body = {"model_path": str(target.checkpoint), "weight_version": "never"}
        assert "flush_cache" in failed(*client.post("/update_weights_from_disk", **body))
        assert checksum(client) == original
        client.post("/abort_request", abort_all=True)
        client.post("/continue_generation")
        call.result()
