"""Batches for `training.py` and rows for `attention_nan.py`, from GSM8K or at random."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from gristmill.messages import Sampling, Verdict, make_group_id, make_sample_id, pack_ids, pack_logprobs
from grpo_trainer.assembler import Batch
from grpo_trainer.batch import lines_of, micro_batches, to_tensors
from grpo_trainer.groups import Group, Sample
from grpo_trainer.model import Policy

INSTRUCTION = "\nPut the final answer in \\boxed{}."
SCORING_TOKENS = 4096
Row = tuple[list[int], list[int]]
"""Tokens of a prompt and of a completion."""


class Texts:
    """Prompts and completions, from GSM8K or at random."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, path: Path | None, vocab: int, rng: random.Random) -> None:
        self._tokenizer, self._rng, self._vocab = tokenizer, rng, vocab
        self._rows: list[dict[str, str]] = []
        if path is not None:
            self._rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]

    def group(self, size: int, mean_prompt: int, mean_completion: int, longest: int) -> list[Row]:
        """Rows with one prompt: a problem's, and its answer continued by those of other problems."""
        lengths = [min(longest, self._length(mean_completion, 0.4, 0.3, 1.9)) for _ in range(size)]
        if not self._rows:
            prompt = self._noise(self._length(mean_prompt, 0.22, 0.7, 1.77))
            return [(prompt, self._noise(length)) for length in lengths]
        row = self._rng.choice(self._rows)
        prompt = self._prompt(row["question"])
        return [(prompt, self._continued(row["answer"], length)) for length in lengths]

    def _length(self, mean: int, spread: float, low: float, high: float) -> int:
        drawn = self._rng.lognormvariate(math.log(mean) - spread**2 / 2, spread)
        return max(1, round(min(max(drawn, low * mean), high * mean)))

    def _noise(self, length: int) -> list[int]:
        return [self._rng.randrange(self._vocab) for _ in range(length)]

    def _prompt(self, question: str) -> list[int]:
        text = question + INSTRUCTION + "\n"
        if self._tokenizer.chat_template:
            messages = [{"role": "user", "content": question + INSTRUCTION}]
            text = str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        return self._ids(text)

    def _continued(self, answer: str, length: int) -> list[int]:
        ids = self._ids(answer)
        while len(ids) < length:
            ids += self._ids("\n\n" + self._rng.choice(self._rows)["answer"])
        return ids[:length]

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def make_batch(version: int, groups: Sequence[Sequence[Row]], rng: random.Random, longest: int) -> Batch:
    """A batch as the assembler cuts it; the behaviour logprobs are still 0."""
    made = []
    for place, rows in enumerate(groups):
        ordinal = version * len(groups) + place + 1
        group = Group(ordinal, make_group_id("bench", ordinal), len(rows), 0.0)
        for index, (prompt, completion) in enumerate(rows):
            reward = float(index == 0 or (index > 1 and rng.random() < 0.5))  # never all equal
            verdict = Verdict(
                run_id="bench",
                sample_id=make_sample_id(group.group_id, index),
                group_id=group.group_id,
                index=index,
                ordinal=ordinal,
                group_size=len(rows),
                problem_id=f"p{ordinal}",
                kind="math",
                source="bench",
                prompt_token_ids=pack_ids(prompt),
                completion_token_ids=pack_ids(completion),
                logprobs=pack_logprobs([0.0] * len(completion)),
                finish_reason="stop",
                policy_run_id="bench",
                policy_version_oldest=version,
                policy_version_newest=version,
                sampling=Sampling(temperature=1.0, max_new_tokens=longest),
                status="correct" if reward else "wrong",
                reward=reward,
                verifier="bench",
                verifier_version="0",
                verified_at_ms=1,
            )
            group.samples[index] = Sample(verdict, reward)
        made.append(group)
    return Batch(version, tuple(made))


def score(policy: Policy, batch: Batch) -> None:
    """Make the policy's own logprobs those of the behaviour policy."""
    samples, device = batch.samples, policy.device
    groups = {group.group_id: group for group in batch.groups}
    tensors = to_tensors(batch, scale="group", pad_id=0, mask_truncated=False)
    for chunk in micro_batches(tensors, max_rows=64, max_tokens=SCORING_TOKENS):
        lines = lines_of(chunk.tensors).to(device)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=policy.autocast):
            logits = policy.model(input_ids=lines.ids, use_cache=False).logits[:, :-1]
        labels = lines.labels[:, 1:]
        losses = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
        logps = -losses.view_as(labels).gather(1, lines.columns).cpu()
        for line, place in enumerate(chunk.tensors["order"].tolist()):
            sample = samples[place]
            packed = pack_logprobs(logps[line, : sample.length].tolist())
            verdict = msgspec.structs.replace(sample.verdict, logprobs=packed)
            groups[verdict.group_id].samples[verdict.index] = replace(sample, verdict=verdict)
