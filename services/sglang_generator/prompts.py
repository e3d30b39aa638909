"""Prompts to token ids, once, with the engine's own tokenizer. From here on nothing is ever re-tokenised."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gristmill.errors import BadInput, ConfigError, MissingExtra
from gristmill.messages import Problem
from gristmill.startup import heavy_imports


class Prompts:
    """Renders problems with one tokenizer, loaded when first needed."""

    def __init__(self) -> None:
        self._tokenizer: Any = None
        self._path = ""
        self._lock = asyncio.Lock()

    @property
    def loaded(self) -> bool:
        """Whether the tokenizer is there."""
        return self._tokenizer is not None

    async def load(self, path: str) -> None:
        """Load the tokenizer at a folder or hub id, on a thread: it takes seconds.

        Raises:
            ConfigError: it cannot be loaded.
        """
        async with self._lock:
            if self._tokenizer is None:
                self._tokenizer = await asyncio.to_thread(_load, path)
                self._path = path

    def render(self, problem: Problem) -> list[int]:
        """Token ids of the prompt. A plain prompt gets the special tokens that the tokenizer adds by itself.

        Raises:
            BadInput: there is no prompt, or the chat template refuses it.
        """
        tokenizer = self._tokenizer
        if problem.prompt is not None and problem.messages:
            raise BadInput(f"problem {problem.group_id} has a plain prompt and chat messages: which one counts?")
        if problem.prompt is not None:
            ids: list[int] = tokenizer.encode(problem.prompt)
        elif problem.messages:
            if not tokenizer.chat_template:
                raise BadInput(
                    f"problem {problem.group_id} has chat messages, but the tokenizer {self._path} has no chat template"
                )
            messages = [{"role": message.role, "content": message.content} for message in problem.messages]
            try:
                ids = tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=True, return_dict=False
                )
            except _template_errors() as error:
                raise BadInput(
                    f"problem {problem.group_id}: the chat template refuses the messages: {error}"
                ) from error
        else:
            raise BadInput(f"problem {problem.group_id} has no prompt")
        if not ids:
            raise BadInput(f"problem {problem.group_id} has an empty prompt")
        return ids


def _load(path: str) -> Any:
    try:
        with heavy_imports():
            from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise MissingExtra("the generator", "generator", error.name or "transformers") from error
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, ImportError) as error:
        where = "the folder" if Path(path).exists() else "no such folder here, and the hub"
        raise ConfigError(
            f"tokenizer {path}: {where} gives none: {error}; set generator.tokenizer to one that this process can read"
        ) from error


def _template_errors() -> tuple[type[Exception], ...]:
    from jinja2 import TemplateError

    return (TemplateError, ValueError, TypeError, KeyError)
