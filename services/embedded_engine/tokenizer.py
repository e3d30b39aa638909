"""The tokenizer: text in, text out, stop strings. Token ids themselves are never re-encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embedded_engine.errors import UnsupportedModel
from embedded_engine.request import FinishReason
from gristmill.startup import heavy_imports


class Tokenizer:
    """A Hugging Face tokenizer. Decoding is safe from several threads; encode from one only."""

    def __init__(self, path: str, vocab_size: int) -> None:
        with heavy_imports():
            from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError, KeyError) as error:
            raise UnsupportedModel(f"{path}: the tokenizer cannot be read: {error}") from error
        self._vocab_size = vocab_size
        self.eos_token_id: int | None = self._tokenizer.eos_token_id

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the tokenizer adds by itself."""
        return [int(token) for token in self._tokenizer.encode(text)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def find_stop(self, ids: Sequence[int], stops: Sequence[str], *, skip_special_tokens: bool) -> str | None:
        """The first of ``stops`` that the end of the text holds, looking at the last few tokens only."""
        longest = max(len(stop.encode()) for stop in stops)
        tail = self.decode(ids[-(longest + 4) :], skip_special_tokens=skip_special_tokens)
        return next((stop for stop in stops if stop in tail), None)

    def completion_text(
        self, ids: Sequence[int], finish: FinishReason | None, *, skip_special_tokens: bool, no_stop_trim: bool
    ) -> str:
        """Text of a completion: without its stop token or stop string, unless ``no_stop_trim``."""
        matched = finish.get("matched") if finish else None
        if isinstance(matched, int) and not no_stop_trim:
            ids = ids[:-1]
        text = self.decode(ids, skip_special_tokens=skip_special_tokens)
        if isinstance(matched, str):
            at = text.find(matched)
            if at >= 0:
                text = text[: at + len(matched)] if no_stop_trim else text[:at]
        return text
