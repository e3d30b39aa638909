"""Aborts, pauses, weight updates, queue bounds: who waits for whom, and what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.engine import Client, Reference, RunningEngine, make_model

PROMPT = list(b"count to a hundred:")
LONG = {"max_new_tokens": 4000, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def second_model(models: Path) -> Path:
    return make_model(models / "second", seed=9)


@contextmanager
def running(model: Path, **settings: Any) -> Iterator[tuple[RunningEngine, Client, ThreadPoolExecutor]]:
    with RunningEngine(model, **settings) as engine, ThreadPoolExecutor(16) as pool:
        client = Client(engine.url)
        try:
            yield engine, client, pool
        finally:
            client.post("/continue_generation")
            client.post("/abort_request", abort_all=True)
            client.http.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def load(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/v1/loads")[1]["loads"][0]
    return found


def start_long(client: Client, pool: ThreadPoolExecutor, rid: str, **extra: Any) -> Future[Any]:
    """A request that runs for long; returns once it is decoding (or, on a starved machine, has ended)."""
    before = load(client)["num_running_reqs"]
    future = pool.submit(client.generate, PROMPT, rid=rid, **{**LONG, **extra})
    until(lambda: load(client)["num_running_reqs"] > before or future.done())
    return future


def finish_of(answer: Any) -> str:
    found: str = answer["meta_info"]["finish_reason"]["type"]
    return found


def test_abort_returns_the_partial_and_only_its_rid(model: Path) -> None:
    with running(model) as (_, client, pool):
        one, ten = start_long(client, pool, "r1"), start_long(client, pool, "r10")
        until(lambda: load(client)["num_used_tokens"] > 2 * len(PROMPT) + 6)
        assert client.post("/abort_request", rid="r1")[0] == 200
        partial = one.result(20)
        assert finish_of(partial) == "abort"
        assert partial["output_ids"]
        expected = Reference(model).logprobs(PROMPT, partial["output_ids"])
        found = [triple[0] for triple in partial["meta_info"]["output_token_logprobs"]]
        assert found == pytest.approx(expected, abs=1e-4)
        assert not ten.done() or finish_of(ten.result()) == "length"
        assert client.post("/abort_request", rid="unknown")[0] == 200
        client.post("/abort_request", abort_all=True)
        ten.result(20)
        assert client.post("/abort_request")[0] == 400


def test_a_waiting_request_aborts_too(model: Path) -> None:
    with running(model, max_running_requests=1) as (_, client, pool):
        first = start_long(client, pool, "first")
        second = pool.submit(client.generate, PROMPT, rid="second", **LONG)
        until(lambda: load(client)["num_waiting_reqs"] == 1)
        client.post("/abort_request", rid="second")
        answer = second.result(20)
        assert (finish_of(answer), answer["output_ids"]) == ("abort", [])
        assert client.get("/flush_cache")[0] == 400
        client.post("/abort_request", rid="first")
        first.result(20)
        until(lambda: client.get("/flush_cache")[0] == 200)


def test_the_queue_is_bounded_and_ordered(model: Path) -> None:
    with running(model, max_running_requests=1, max_queued_requests=2) as (_, client, pool):
        first = start_long(client, pool, "first")
        done: list[str] = []

        def queued(rid: str, priority: int) -> None:
            # The urgent one is short and the other long, so that the order of the answers is that of the starts.
            params = {"max_new_tokens": 3 if priority else 100, "ignore_eos": True}
            body = {"input_ids": PROMPT, "rid": rid, "priority": priority, "sampling_params": params}
            assert client.post("/generate", **body)[0] == 200
            done.append(rid)

        low = pool.submit(queued, "low", 0)
        until(lambda: load(client)["num_waiting_reqs"] == 1)
        high = pool.submit(queued, "high", 5)
        until(lambda: load(client)["num_waiting_reqs"] == 2)
        status, answer = client.post("/generate", input_ids=PROMPT)
        assert (status, answer) == (503, {"detail": "The request queue is full."})
        status, answer = client.post("/generate", input_ids=PROMPT, rid="first")
        assert status in (400, 503)
        client.post("/abort_request", rid="first")
        for future in (first, low, high):
            future.result(20)
        assert done == ["high", "low"]


def test_the_same_rid_twice_is_refused(model: Path) -> None:
    with running(model) as (_, client, pool):
        start_long(client, pool, "same")
        status, answer = client.post("/generate", input_ids=PROMPT, rid="same")
        assert status == 400
        assert "same" in answer["error"]["message"]


def test_reservations_bound_the_cache(model: Path) -> None:
    """Four requests of 100 tokens fit a cache of 420; the fifth waits, and one too large is refused."""
    with running(model, max_total_tokens=420, max_running_requests=8) as (_, client, pool):
        params = {"max_new_tokens": 80, "temperature": 1.0, "ignore_eos": True}
        futures = [pool.submit(client.generate, [7] * 20, **params) for _ in range(9)]
        most = 0
        while not all(future.done() for future in futures):
            most = max(most, load(client)["num_running_reqs"])
        assert all(len(future.result()["output_ids"]) == 80 for future in futures)
        assert most <= 4
        status, answer = client.post("/generate", input_ids=[7] * 20, sampling_params={"max_new_tokens": 401})
        assert status == 400
        assert "max_total_tokens" in answer["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(model: Path, stream: bool) -> None:
    with running(model) as (engine, client, _):
        body = {"input_ids": PROMPT, "sampling_params": LONG, "stream": stream}
        if stream:
            with client.http.stream("POST", "/generate", json=body) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{engine.url}/generate", json=body, timeout=0.15)
        until(lambda: load(client)["num_running_reqs"] == 0)
        assert engine.server.engine.scheduler.stats.aborted == 1


def test_pause_abort_returns_partials_and_holds_new_ones(model: Path) -> None:
    with running(model) as (_, client, pool):
        old = start_long(client, pool, "old")
        until(lambda: load(client)["num_used_tokens"] > len(PROMPT) + 3)
        assert client.post("/pause_generation", mode="abort") == (
            200,
            {"message": "Generation paused successfully.", "status": "ok"},
        )
        assert finish_of(old.result(5)) == "abort"
        new = pool.submit(client.generate, PROMPT, rid="new", max_new_tokens=3, temperature=1.0, ignore_eos=True)
        dropped = pool.submit(client.generate, PROMPT, rid="dropped", max_new_tokens=3)
        until(lambda: load(client)["num_waiting_reqs"] == 2)
        client.post("/abort_request", rid="dropped")
        assert finish_of(dropped.result(5)) == "abort"
        assert client.get("/health")[0] == 200
        assert not new.done()
        assert client.post("/continue_generation")[0] == 200
        assert finish_of(new.result(20)) == "length"
        assert client.post("/pause_generation", mode="sideways")[0] == 400


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_pause_holds_and_goes_on(model: Path, mode: str) -> None:
    """The sample that spans the pause is the one that a pause-free run gives."""
    with running(model) as (_, client, pool):
        future = start_long(client, pool, "held", max_new_tokens=600)
        until(lambda: load(client)["num_used_tokens"] > len(PROMPT) + 3)
        client.post("/pause_generation", mode=mode)
        held = load(client)
        assert held["num_running_reqs"] == (1 if mode == "in_place" else 0)
        time.sleep(0.1)
        assert load(client)["num_used_tokens"] == held["num_used_tokens"]
        client.post("/continue_generation")
        answer = future.result(30)
        assert answer["meta_info"]["num_retractions"] == (1 if mode == "retract" else 0)
        expected = Reference(model).logprobs(PROMPT, answer["output_ids"])
        found = [triple[0] for triple in answer["meta_info"]["output_token_logprobs"]]
        assert found == pytest.approx(expected, abs=1e-4)


def test_a_held_request_can_be_aborted(model: Path) -> None:
    with running(model) as (_, client, pool):
        future = start_long(client, pool, "held")
        client.post("/pause_generation", mode="in_place")
        client.post("/abort_request", rid="held")
        answer = future.result(10)
        assert finish_of(answer) == "abort"
        assert load(client)["num_running_reqs"] == 0


def test_a_client_that_does_not_read_holds_nobody_up(model: Path, second_model: Path) -> None:
    """A stream that nobody reads still lets an update through once its tokens are sampled."""
    with running(model) as (_, client, pool):
        body = {"input_ids": PROMPT, "sampling_params": {**LONG, "max_new_tokens": 700}, "stream": True}
        with client.http.stream("POST", "/generate", json={**body, "return_logprob": True}) as response:
            next(response.iter_raw(64))
            update = pool.submit(client.post, "/update_weights_from_disk", model_path=str(second_model))
            assert update.result(30)[0] == 200


def test_an_update_waits_and_the_versions_are_exact(model: Path, second_model: Path) -> None:
    with running(model) as (_, client, pool):
        params = {"max_new_tokens": 300, "temperature": 1.0, "ignore_eos": True}
        old = start_long(client, pool, "old", **params)
        update = pool.submit(client.post, "/update_weights_from_disk", model_path=str(second_model), weight_version="2")
        time.sleep(0.2)
        new = pool.submit(client.generate, PROMPT, rid="new", **params)
        status, body = update.result(30)
        assert (status, body["success"]) == (200, True)
        for future, path, version in ((old, model, "default"), (new, second_model, "2")):
            answer = future.result(30)
            assert answer["meta_info"]["weight_version"] == version
            assert finish_of(answer) == "length"
            expected = Reference(path).logprobs(PROMPT, answer["output_ids"])
            found = [triple[0] for triple in answer["meta_info"]["output_token_logprobs"]]
            assert found == pytest.approx(expected, abs=1e-4)
        _, info = client.get("/model_info")
        assert (info["model_path"], info["weight_version"]) == (str(second_model), "2")
        assert info["tokenizer_path"] == str(model)


def test_an_update_with_abort_does_not_wait(model: Path, second_model: Path) -> None:
    with running(model) as (_, client, pool):
        old = start_long(client, pool, "old")
        body = {"model_path": str(second_model), "weight_version": "2", "abort_all_requests": True}
        assert client.post("/update_weights_from_disk", **body)[0] == 200
        answer = old.result(5)
        assert (finish_of(answer), answer["meta_info"]["weight_version"]) == ("abort", "default")


def test_an_update_while_held_in_place(model: Path, second_model: Path) -> None:
    with running(model) as (_, client, pool):
        future = start_long(client, pool, "held", max_new_tokens=600)
        client.post("/pause_generation", mode="in_place")
        body = {"model_path": str(second_model), "weight_version": "2"}
        status, refused = client.post("/update_weights_from_disk", **body)
        assert (status, refused["success"]) == (400, False)
        assert "flush_cache" in refused["message"]
        assert client.get("/model_info")[1]["weight_version"] == "default"
        status, done = client.post("/update_weights_from_disk", flush_cache=False, **body)
        assert (status, done["num_paused_requests"]) == (200, 1)
        client.post("/continue_generation")
        assert future.result(30)["meta_info"]["weight_version"] == "2"


def test_a_failed_update_changes_nothing(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", hidden=32)
    broken = make_model(tmp_path / "broken", seed=5)
    (broken / "model.safetensors").write_bytes(b"no tensors here")
    with running(model) as (_, client, _):
        before = client.generate(PROMPT, max_new_tokens=8, temperature=0)
        for path, named in ((other, "hidden_size"), (broken, "cannot be read"), (tmp_path / "none", "no such folder")):
            status, answer = client.post("/update_weights_from_disk", model_path=str(path), weight_version="3")
            assert (status, answer["success"]) == (400, False)
            assert named in answer["message"]
        assert client.get("/model_info")[1]["weight_version"] == "default"
        after = client.generate(PROMPT, max_new_tokens=8, temperature=0)
        assert after["output_ids"] == before["output_ids"]


def test_weight_version_is_a_string(model: Path) -> None:
    with running(model) as (_, client, _):
        status, answer = client.post("/update_weights_from_disk", model_path=str(model), weight_version=3)
        assert status == 400
        assert "weight_version" in answer["message"]
        assert client.post("/update_weight_version", new_version=4)[0] == 400
        status, answer = client.post("/update_weight_version", new_version="4")
        assert (status, answer["new_version"]) == (200, "4")
        answer = client.generate(PROMPT, max_new_tokens=2)
        assert answer["meta_info"]["weight_version"] == "4"


def test_stopping_returns_what_there_is(model: Path) -> None:
    with running(model) as (engine, client, pool):
        future = start_long(client, pool, "last")
        engine.server.engine.begin_stop()
        assert finish_of(future.result(5)) == "abort"
        assert client.get("/health")[0] == 503
        assert client.post("/generate", input_ids=PROMPT)[0] == 503
