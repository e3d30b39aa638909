"""The tiny policy's tokenizer: byte-level BPE learned from the warm-up texts, one token per digit.

Digits are never merged, so numbers have one spelling; a spaced operator (`` + ``), a word with its leading space and
``\\boxed{`` are candidates for one token each, which keeps completions short. Every string can be encoded, since all
bytes are in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAD = "<|pad|>"
END = "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

_SPLIT = r"[0-9]| ?\\[A-Za-z]+\{?| ?[A-Za-z]+| ?[^\sA-Za-z0-9\\]+ ?|\s+|\\"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def learn_tokenizer(texts: Iterable[str], vocab_size: int, context_length: int) -> Any:
    """A fast tokenizer with chat template, pad and end tokens, learned from `texts`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[PAD, END, *ROLES],
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=context_length,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write it as a Hugging Face folder."""
    tokenizer.save_pretrained(str(folder))
