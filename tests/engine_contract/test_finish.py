"""How a completion ends: length, end token, stop token, stop string, abort; and whom an abort meets."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

from support.contract import PROMPT, Target, agree, failed, finish, running, score, start, values, wait_for
from support.engine import Client

LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789 "]


def end_ids(target: Target) -> set[int]:
    """The ids that end a completion of this model by itself."""
    found = {target.tokenizer.eos_token_id}
    for name in ("config.json", "generation_config.json"):
        path = Path(target.model) / name
        if path.is_file():
            ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            found |= set(ids) if isinstance(ids, list) else {ids}
    return found - {None}


def test_length(client: Client) -> None:
    answer = client.generate(PROMPT, max_new_tokens=5, temperature=1.0, ignore_eos=True)
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    assert len(values(answer)) == 5


def question(target: Target) -> tuple[list[int], dict[str, Any]]:
    """A prompt and parameters after which this model soon ends by itself."""
    if target.tokenizer.chat_template:
        messages = [{"role": "user", "content": "Reply with the one word: yes"}]
        text = target.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return target.tokenizer.encode(text, add_special_tokens=False), {"temperature": 0.7}
    return PROMPT, {"temperature": 3.0}


def test_the_end_token_is_the_last_id(client: Client, target: Target) -> None:
    ends = end_ids(target)
    prompt, params = question(target)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(client.generate, prompt, max_new_tokens=300, **params) for _ in range(8)]
        answers = [call.result() for call in calls]
    stopped = [answer for answer in answers if finish(answer) == "stop"]
    assert stopped, "none of 8 completions came to its end"
    for answer in answers:
        ids = answer["output_ids"]
        assert not ends & set(ids[:-1])
        assert len(values(answer)) == len(ids)
        if answer in stopped:
            assert ids[-1] in ends
            assert answer["meta_info"]["finish_reason"]["matched"] == ids[-1]
        else:
            assert len(ids) == 300


def test_ignore_eos_goes_on(client: Client, target: Target) -> None:
    prompt, params = question(target)
    answer = client.generate(prompt, max_new_tokens=200, ignore_eos=True, **params)
    assert finish(answer) == "length"
    assert len(values(answer)) == 200


def test_a_stop_token_is_part_of_the_ids(client: Client) -> None:
    greedy = {"max_new_tokens": 8, "temperature": 0.0}
    ids = client.generate(PROMPT, ignore_eos=True, **greedy)["output_ids"]
    stop = ids[2]
    answer = client.generate(PROMPT, stop_token_ids=[stop], **greedy)
    assert answer["output_ids"] == ids[: ids.index(stop) + 1]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert len(values(answer)) == len(answer["output_ids"])


def test_a_stop_string_is_in_the_ids_and_not_in_the_text(client: Client, target: Target) -> None:
    answer = client.generate(PROMPT, max_new_tokens=400, temperature=1.0, ignore_eos=True, stop=LETTERS)
    reason = answer["meta_info"]["finish_reason"]
    assert reason["type"] == "stop"
    assert reason["matched"] in LETTERS
    ids = answer["output_ids"]
    assert len(values(answer)) == len(ids)
    assert reason["matched"] in target.tokenizer.decode(ids)
    before = target.tokenizer.decode(ids[:-1], skip_special_tokens=True)
    assert not any(letter in before for letter in LETTERS)
    assert reason["matched"] not in answer["text"]


def test_an_abort_returns_ids_and_logprobs_of_equal_length(client: Client, target: Target) -> None:
    rid = uuid4().hex
    with ThreadPoolExecutor(1) as pool:
        call = start(client, pool, rid, max_new_tokens=3000)
        assert client.post("/abort_request", rid=rid)[0] == 200
        answer = call.result()
    assert finish(answer) == "abort"
    assert 0 < len(answer["output_ids"]) < 3000
    assert answer["meta_info"]["id"] == rid
    agree(values(answer), score(client, PROMPT, answer["output_ids"]), target.tolerance)


def test_an_abort_of_nobody_meets_nobody(client: Client) -> None:
    """SGLang matches by prefix, but only after looking for the very rid: "x" alone aborts neither."""
    prefix = uuid4().hex
    rids = [f"{prefix}-1", f"{prefix}-10"]
    with ThreadPoolExecutor(2) as pool:
        calls = [start(client, pool, rid, max_new_tokens=400) for rid in rids]
        for nobody in (prefix, f"{prefix}-", uuid4().hex):
            assert client.post("/abort_request", rid=nobody)[0] == 200
        assert [finish(call.result()) for call in calls] == ["length", "length"]
    assert client.post("/abort_request", rid="")[0] in (200, 400)


def test_a_rid_that_begins_like_another(client: Client, target: Target) -> None:
    """The trap: while "x-1" is in flight, SGLang's abort of it also takes "x-10"; the embedded engine takes one."""
    prefix = uuid4().hex
    with ThreadPoolExecutor(3) as pool:
        calls = {rid: start(client, pool, f"{prefix}-{rid}", max_new_tokens=1500) for rid in ("10", "2", "1")}
        assert client.post("/abort_request", rid=f"{prefix}-1")[0] == 200
        ends = {rid: finish(call.result()) for rid, call in calls.items()}
    assert ends["1"] == "abort"
    assert ends["2"] == "length"
    assert ends["10"] == ("length" if target.embedded else "abort")


def test_rids_of_one_width_never_meet(client: Client) -> None:
    """Of 32 requests with uuids half are aborted: exactly those."""
    rids = [uuid4().hex for _ in range(32)]
    doomed = rids[::2]
    params = {"max_new_tokens": 800, "temperature": 1.0, "ignore_eos": True}
    with ThreadPoolExecutor(len(rids)) as pool:
        calls = {rid: pool.submit(client.generate, PROMPT, rid=rid, **params) for rid in rids}
        wait_for(lambda: running(client) >= len(rids) or any(call.done() for call in calls.values()), "all to run")
        for rid in doomed:
            assert client.post("/abort_request", rid=rid)[0] == 200
        answers = {rid: call.result() for rid, call in calls.items()}
    assert all(answer["meta_info"]["id"] == rid for rid, answer in answers.items())
    aborted = {rid for rid, answer in answers.items() if finish(answer) == "abort"}
    assert aborted
    assert aborted <= set(doomed)
    for rid, answer in answers.items():
        assert (len(values(answer)) == 800) is (rid not in aborted)


def test_an_unknown_adapter_is_refused(client: Client) -> None:
    body = {"input_ids": PROMPT, "lora_path": "contract-nobody", "sampling_params": {"max_new_tokens": 1}}
    assert "contract-nobody" in failed(*client.post("/generate", **body))
