"""The tiny policy: a Llama-architecture model of about a million parameters, made locally.

Random weights, then a short supervised warm-up on worked problems. The result is an ordinary Hugging Face folder in
float32.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from base_policy.config import TinyConfig
from base_policy.tokenizer import learn_tokenizer
from base_policy.warmup_rows import Row, solutions

Progress = Callable[[int, int, float], None]
"""Called as (steps done, steps in all, loss)."""

_TOKENIZER_ROWS = 4000
_IGNORED = -100
_MOST_THREADS = 4
"""A model this small gains nothing from more."""


def build_tiny(
    rows: list[Row], config: TinyConfig, folder: Path, *, seed: int, threads: int | None, progress: Progress
) -> None:
    """Make the policy from `rows` and write it to `folder`."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or min(os.cpu_count() or 1, _MOST_THREADS))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            _build(rows, config, folder, seed, progress)
    finally:
        torch.set_num_threads(before)


def _build(rows: list[Row], config: TinyConfig, folder: Path, seed: int, progress: Progress) -> None:
    tokenizer = learn_tokenizer(_texts(rows), config.vocab_size, config.context_length)
    model = new_model(config, tokenizer)
    shares = {"unboxed": config.unboxed, "slip": config.slips, "unfinished": config.unfinished}
    warm_up(
        model,
        tokenizer,
        solutions(rows, shares, int(config.clean_first * config.steps) * config.batch_size, seed),
        config,
        progress,
    )
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def _texts(rows: list[Row]) -> Iterator[str]:
    for row in islice(rows, _TOKENIZER_ROWS):
        for message in row.messages:
            yield message["content"]
        yield row.solution


def new_model(config: TinyConfig, tokenizer: Any) -> Any:
    """The model with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.context_length,
            initializer_range=config.hidden_size**-0.5,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def warm_up(
    model: Any, tokenizer: Any, data: Iterator[tuple[Row, str]], config: TinyConfig, progress: Progress
) -> None:
    """Supervised training on the completions (the prompt's tokens carry no loss)."""
    import torch

    matrices = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=(0.9, 0.98),
    )
    rise, fall = min(20, config.steps), max(1, config.steps // 3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / rise, max(0.02, (config.steps - step) / fall))
    )
    model.train()
    prompts: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for step in range(config.steps):
        ids, labels = _batch(tokenizer, prompts, list(islice(data, config.batch_size)), config.context_length)
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        wanted = labels[:, 1:]
        counted = wanted != _IGNORED
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[counted]), wanted[counted])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        progress(step + 1, config.steps, loss.item())
    model.eval()


def _batch(
    tokenizer: Any, prompts: dict[tuple[tuple[str, str], ...], list[int]], pairs: list[tuple[Row, str]], longest: int
) -> tuple[Any, Any]:
    """Right-padded ids and labels, [rows, tokens]; attention is causal, so the padding needs no mask."""
    import torch

    rows: list[tuple[list[int], list[int]]] = []
    for row, solution in pairs:
        key = tuple((part["role"], part["content"]) for part in row.messages)
        prompt = prompts.get(key)
        if prompt is None:
            text = tokenizer.apply_chat_template(list(row.messages), add_generation_prompt=True, tokenize=False)
            prompt = prompts[key] = tokenizer.encode(text, add_special_tokens=False)
        rows.append((prompt, [*tokenizer.encode(solution, add_special_tokens=False), tokenizer.eos_token_id]))
    width = min(longest, max(len(prompt) + len(answer) for prompt, answer in rows))
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), _IGNORED)
    for at, (prompt, answer) in enumerate(rows):
        both = torch.tensor((prompt + answer)[:width])
        ids[at, : len(both)] = both
        labels[at, len(prompt) : len(both)] = both[len(prompt) :]
    return ids, labels
