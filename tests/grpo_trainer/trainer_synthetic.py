"""Synthetic verdicts and a random tiny policy, for tests of the trainer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gristmill.messages import Sampling, Verdict, make_group_id, make_sample_id, pack_ids, pack_logprobs, unpack_ids
from grpo_trainer.assembler import Assembler, Batch, Rules
from grpo_trainer.step import StepResult

VOCAB = 64


def make_verdict(
    ordinal: int,
    index: int,
    *,
    run_id: str = "run",
    group_size: int = 4,
    version: int = 0,
    newest: int | None = None,
    reward: float | None = 1.0,
    status: str = "correct",
    prompt: Sequence[int] = (5, 6, 7),
    completion: Sequence[int] = (8, 9, 2),
    logprobs: Sequence[float] | None = None,
    policy_run_id: str | None = None,
    finish_reason: str | None = "stop",
    temperature: float = 1.0,
    **more: Any,
) -> Verdict:
    """A verdict with sound identity; status and reward as given."""
    group_id = make_group_id(run_id, ordinal)
    failed = status in ("timeout", "error")
    return Verdict(
        run_id=run_id,
        sample_id=make_sample_id(group_id, index) if index >= 0 else group_id,
        group_id=group_id,
        index=index,
        ordinal=ordinal,
        group_size=group_size,
        problem_id=f"p{ordinal}",
        kind="math",
        source="synthetic",
        prompt_token_ids=b"" if failed else pack_ids(prompt),
        completion_token_ids=b"" if failed else pack_ids(completion),
        logprobs=b"" if failed else pack_logprobs(logprobs if logprobs is not None else [-1.0] * len(completion)),
        finish_reason=None if failed else finish_reason,  # type: ignore[arg-type]
        policy_run_id="" if failed else (policy_run_id or run_id),
        policy_version_oldest=-1 if failed else version,
        policy_version_newest=-1 if failed else (version if newest is None else newest),
        sampling=None if failed else Sampling(temperature=temperature, max_new_tokens=16),
        status=status,  # type: ignore[arg-type]
        reward=None if failed else reward,
        verifier="test",
        verifier_version="0",
        verified_at_ms=1,
        **more,
    )


def make_group(
    ordinal: int, *, size: int = 4, version: int = 0, seed: int = 0, varied: bool = True, run_id: str = "run"
) -> list[Verdict]:
    """A whole group with random tokens; rewards differ unless ``varied`` is false."""
    rng = random.Random(f"{seed}/{ordinal}/{version}")
    prompt = [rng.randrange(4, VOCAB) for _ in range(rng.randrange(3, 9))]
    verdicts = []
    for index in range(size):
        length = rng.randrange(2, 12)
        right = index % 2 == 0 or not varied
        verdicts.append(
            make_verdict(
                ordinal,
                index,
                run_id=run_id,
                group_size=size,
                version=version,
                reward=1.0 if right else 0.0,
                status="correct" if right else "wrong",
                prompt=prompt,
                completion=[rng.randrange(4, VOCAB) for _ in range(length)],
                logprobs=[-4.0 - rng.random() * 0.3 for _ in range(length)],
                finish_reason="length" if index == 3 else "stop",
            )
        )
    return verdicts


def make_policy_dir(folder: Path, *, hidden: int = 32, layers: int = 2, vocab: int = VOCAB) -> Path:
    """A random Qwen2 of a few thousand parameters with a word-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3, **{f"w{i}": i for i in range(4, vocab)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(str(folder))
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(str(folder))
    return folder


class Stream:
    """Two groups of four for every step, as if from the topic."""

    def __init__(self, far: float | None = None, *, lag: int = 0) -> None:
        """
        Args:
            far: behaviour logprob of every second token, those between have -4; as they are made when None.
            lag: versions that groups are behind.
        """
        self.assembler = Assembler(Rules("run", 2, lag))
        self.results: list[StepResult] = []
        self._far = far
        self._lag = lag

    def next_batch(self) -> Batch:
        first = 2 * self.assembler.version + 1
        for ordinal in (first, first + 1):
            for verdict in make_group(ordinal, version=max(0, self.assembler.version - self._lag)):
                self.assembler.offer(self._spread(verdict), 0.0)
        batch = self.assembler.cut()
        assert batch is not None
        return batch

    def on_step(self, result: StepResult) -> bool:
        self.results.append(result)
        self.assembler.commit(result.batch)
        return True

    def _spread(self, verdict: Verdict) -> Verdict:
        if self._far is None:
            return verdict
        length = len(unpack_ids(verdict.completion_token_ids))
        values = [self._far if place % 2 else -4.0 for place in range(length)]
        return msgspec.structs.replace(verdict, logprobs=pack_logprobs(values))
