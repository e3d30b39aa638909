"""The tiny policy's tokenizer."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from base_policy.tokenizer import END, PAD, ROLES, learn_tokenizer

TEXTS = [f"Compute {a} + {b}.\nPut the final answer in \\boxed{{}}." for a in range(30) for b in range(30)] + [
    f"{a} + {b} = {a + b}. \\boxed{{{a + b}}}" for a in range(30) for b in range(30)
]


@cache
def tokenizer() -> Any:
    return learn_tokenizer(TEXTS, 512, 256)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_every_text_survives(text: str) -> None:
    if any(mark in text for mark in (PAD, END, *ROLES)):
        return
    assert tokenizer().decode(tokenizer().encode(text, add_special_tokens=False)) == text


def test_one_token_per_digit_operator_and_box() -> None:
    tokens = tokenizer().tokenize("12 + 34 = 46. \\boxed{46}")
    assert tokens == ["1", "2", "Ġ+Ġ", "3", "4", "Ġ=Ġ", "4", "6", ".Ġ", "\\boxed{", "4", "6", "}"]


def test_chat_template_and_marks() -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    rendered = tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|system|>S<|end|><|user|>U<|end|><|assistant|>"
    for mark in (PAD, END, *ROLES):
        assert len(tokenizer().encode(mark, add_special_tokens=False)) == 1
    assert tokenizer().pad_token_id != tokenizer().eos_token_id


def test_learning_is_deterministic() -> None:
    again = learn_tokenizer(TEXTS, 512, 256)
    assert again.get_vocab() == tokenizer().get_vocab()


@pytest.mark.parametrize("text", ["", "x", "\n\n", "7"])
def test_short_texts(text: str) -> None:
    assert tokenizer().decode(tokenizer().encode(text, add_special_tokens=False)) == text
