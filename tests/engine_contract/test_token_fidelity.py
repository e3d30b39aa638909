"""Token ids in, token ids out: nothing is decoded and encoded on the way."""

from __future__ import annotations

import random
from typing import Any

from support.contract import NEW, Target, score, values
from support.engine import Client


def odd_ids(target: Target, count: int, seed: int) -> list[int]:
    """Ids that the tokenizer would write otherwise: what it decodes them to, it encodes to other ids."""
    tokenizer = target.tokenizer
    special = set(tokenizer.all_special_ids)
    plain = [token for token in range(len(tokenizer)) if token not in special]
    pick = random.Random(seed)
    for _ in range(100):
        ids = pick.choices(plain, k=count)
        if tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids:
            return ids
    raise AssertionError(f"{target.model}: its tokenizer writes every text in one way only")


def echo(client: Client, prompt: list[int], **params: Any) -> Any:
    """An answer that repeats the prompt's ids and scores them."""
    body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True, "logprob_start_len": 0}
    status, answer = client.post("/generate", return_prompt_token_ids=True, **body)
    assert status == 200, answer
    triples = answer["meta_info"]["input_token_logprobs"]
    assert [triple[1] for triple in triples] == prompt
    assert triples[0][0] is None
    assert all(triple[0] <= 1e-3 for triple in triples[1:])
    assert answer["prompt_token_ids"] == prompt
    assert answer["meta_info"]["prompt_tokens"] == len(prompt)
    return answer


def test_odd_ids_survive_two_turns(client: Client, target: Target) -> None:
    """At a great temperature the model answers with ids that no tokenizer would choose for that text."""
    hot = {"max_new_tokens": 40, "temperature": 100.0, "ignore_eos": True}
    prompt = odd_ids(target, 40, seed=1)
    for _ in range(20):  # now and then such a reply is what the tokenizer would write
        first = echo(client, prompt, **hot)
        values(first)
        reply = first["output_ids"]
        if target.tokenizer.encode(target.tokenizer.decode(reply), add_special_tokens=False) != reply:
            break
    else:
        raise AssertionError("every reply was what the tokenizer would have written")
    second_prompt = [*prompt, *reply, *odd_ids(target, 20, seed=2)]
    second = echo(client, second_prompt, **hot)
    assert len(values(second)) == 40


def test_the_prompts_logprobs_are_those_of_its_ids(client: Client, target: Target) -> None:
    """Not those of what the tokenizer would have made of the text: the reference is given the ids."""
    prompt = odd_ids(target, 48, seed=3)
    answer = echo(client, prompt, max_new_tokens=0)
    found = [triple[0] for triple in answer["meta_info"]["input_token_logprobs"][1:]]
    expected = target.reference().logprobs(prompt[:1], prompt[1:])
    apart = [abs(one - other) for one, other in zip(found, expected, strict=True)]
    assert sum(apart) / len(apart) <= 2 * target.tolerance.mean


def test_the_reply_is_scored_as_it_was_sampled(client: Client, target: Target) -> None:
    prompt = odd_ids(target, 30, seed=4)
    answer = client.generate(prompt, **{**NEW, "max_new_tokens": 30})
    again = score(client, prompt, answer["output_ids"])
    apart = [abs(one - other) for one, other in zip(values(answer), again, strict=True)]
    assert sum(apart) / len(apart) <= target.tolerance.mean


def test_text_is_what_the_ids_say(client: Client, target: Target) -> None:
    """The text is for people and verifiers; it follows from the ids and never the other way round."""
    prompt = target.tokenizer.encode("The sum of two and two is", add_special_tokens=False)
    answer = client.generate(prompt, max_new_tokens=24, temperature=0.0, ignore_eos=True)
    whole = target.tokenizer.decode(answer["output_ids"], skip_special_tokens=True)
    assert answer["text"].rstrip("\ufffd") == whole.rstrip("\ufffd")
