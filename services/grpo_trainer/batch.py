"""A batch of verdicts as the padded tensors that TRL's loss reads, and its division into micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gristmill.messages import unpack_ids, unpack_logprobs
from grpo_trainer.advantages import Scale, advantages
from grpo_trainer.assembler import Batch
from grpo_trainer.groups import Sample

TensorDict = dict[str, torch.Tensor]

IGNORED = -100
"""Label of a token that is not scored."""
ROW_KEYS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "sampling_per_token_logps")
LEFT_PADDED = frozenset({"prompt_ids", "prompt_mask"})


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some rows of a batch, trimmed to their own longest prompt and completion."""

    tensors: TensorDict
    rows: int
    tokens: int
    """Completion tokens that carry the loss."""

    def single_rows(self) -> Iterator[MicroBatch]:
        """The same rows, each alone."""
        yield from micro_batches(self.tensors, max_rows=1, max_tokens=1)


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows of a micro-batch as the model reads them: completion right behind prompt, padding on the right only.

    A causal model needs no mask then, as nothing before the padding sees it. That keeps attention in the kernels that
    know causality without a mask (faster, and without the cuDNN fault that ``docs/training.md`` tells of), gives
    tokens the positions that they had in the engine, and saves the columns that a long prompt and a long completion of
    different rows would need.
    """

    ids: torch.Tensor
    """int64[B, W]; behind its end, a row goes on with any valid id."""
    mask: torch.Tensor
    """int64[B, W], for losses that count tokens; attention does not need it."""
    labels: torch.Tensor
    """int64[B, W], the ids of the completion tokens that carry the loss."""
    columns: torch.Tensor
    """int64[B, C]: where in the next-token logprobs, [B, W - 1], each completion token's is."""

    def to(self, device: torch.device) -> Lines:
        """The same on a device."""
        return Lines(self.ids.to(device), self.mask.to(device), self.labels.to(device), self.columns.to(device))


def lines_of(tensors: TensorDict) -> Lines:
    """Close the gap between prompts, padded on the left, and completions, padded on the right."""
    prompt_mask, completion_mask = tensors["prompt_mask"], tensors["completion_mask"]
    ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], dim=1)
    prompts = prompt_mask.sum(1, keepdim=True)
    lengths = prompts + completion_mask.sum(1, keepdim=True)
    # A row without loss keeps one column behind its prompt, so that there always is a next token.
    width = int(torch.maximum(lengths, prompts + 1).max())
    column = torch.arange(width)
    start = prompt_mask.size(1) - prompts
    ids = ids.gather(1, (column + start).clamp(max=ids.size(1) - 1))
    real = column < lengths
    labels = torch.where(real & (column >= prompts), ids, IGNORED)
    columns = (torch.arange(completion_mask.size(1)) + prompts - 1).clamp(max=width - 2)
    return Lines(ids, real.long(), labels, columns)


def to_tensors(batch: Batch, *, scale: Scale, pad_id: int, mask_truncated: bool) -> TensorDict:
    """Pad a batch: prompts on the left, completions on the right, longest rows first.

    Args:
        batch: groups of scored samples.
        scale: how advantages are scaled.
        pad_id: id that fills the padding.
        mask_truncated: give completions that ended by length a mask of zeros.

    Returns:
        ``prompt_ids``, ``prompt_mask`` int64[B, P]; ``completion_ids``, ``completion_mask`` int64[B, C];
        ``advantages`` float32[B]; ``sampling_per_token_logps`` float32[B, C], 0 where masked; ``lag`` int64[B];
        ``order`` int64[B], the place of each row in ``batch.samples``; ``num_items_in_batch`` int64[], the tokens that
        carry the loss.
    """
    values = advantages([[s.reward or 0.0 for s in group.scored] for group in batch.groups], scale)
    rows = list(zip(batch.samples, np.concatenate(values).tolist(), range(len(batch.samples)), strict=True))
    rows.sort(key=lambda row: -_tokens(row[0]))
    samples = [sample for sample, _, _ in rows]
    prompts = [unpack_ids(sample.verdict.prompt_token_ids) for sample in samples]
    completions = [unpack_ids(sample.verdict.completion_token_ids) for sample in samples]
    logprobs = [unpack_logprobs(sample.verdict.logprobs) for sample in samples]
    keep = [not (mask_truncated and sample.verdict.finish_reason == "length") for sample in samples]
    prompt_ids, prompt_mask = _pad(prompts, pad_id, left=True)
    completion_ids, completion_mask = _pad(completions, pad_id, left=False)
    completion_mask[~np.asarray(keep)] = 0
    sampling = np.zeros(completion_ids.shape, dtype=np.float32)
    for row, line in enumerate(logprobs):
        sampling[row, : len(line)] = line
    # The loss multiplies by the mask after exp: what is masked must not be able to overflow there.
    sampling[completion_mask == 0] = 0.0
    lags = [batch.version - sample.verdict.policy_version_oldest for sample in samples]
    return {
        "prompt_ids": torch.from_numpy(prompt_ids),
        "prompt_mask": torch.from_numpy(prompt_mask),
        "completion_ids": torch.from_numpy(completion_ids),
        "completion_mask": torch.from_numpy(completion_mask),
        "advantages": torch.tensor([advantage for _, advantage, _ in rows], dtype=torch.float32),
        "sampling_per_token_logps": torch.from_numpy(sampling),
        "lag": torch.tensor(lags),
        "order": torch.tensor([place for _, _, place in rows]),
        "num_items_in_batch": torch.tensor(int(completion_mask.sum())),
    }


def micro_batches(tensors: TensorDict, *, max_rows: int, max_tokens: int) -> Iterator[MicroBatch]:
    """Divide a batch, longest rows first, so that each forward pass holds at most ``max_tokens`` padded tokens.

    A row longer than that goes alone. No row is left out and none is made up, so nothing has to be masked.
    """
    prompt_lengths = tensors["prompt_mask"].sum(1)
    # A row without loss (truncated and masked) may be cut short: nothing of it is read.
    completion_lengths = tensors["completion_mask"].sum(1).clamp(min=1)
    lengths = (prompt_lengths + completion_lengths).tolist()
    total = len(lengths)
    start = 0
    while start < total:
        width, end = lengths[start], start + 1
        while end < total and end - start < max_rows:
            wider = max(width, lengths[end])
            if wider * (end + 1 - start) > max_tokens:
                break
            width, end = wider, end + 1
        prompt, completion = int(prompt_lengths[start:end].max()), int(completion_lengths[start:end].max())
        yield _slice(tensors, start, end, prompt, completion)
        start = end


def _slice(tensors: TensorDict, start: int, end: int, prompt: int, completion: int) -> MicroBatch:
    def trimmed(key: str) -> torch.Tensor:
        rows = tensors[key][start:end]
        if rows.dim() == 1:
            return rows
        return rows[:, rows.size(1) - prompt :] if key in LEFT_PADDED else rows[:, :completion]

    chunk = {key: trimmed(key) for key in (*ROW_KEYS, "lag", "order")}
    return MicroBatch(chunk, end - start, int(chunk["completion_mask"].sum()))


def _tokens(sample: Sample) -> int:
    return len(sample.verdict.prompt_token_ids) + len(sample.verdict.completion_token_ids)


def _pad(
    rows: list[npt.NDArray[np.int32]], pad_id: int, *, left: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    width = max(len(row) for row in rows)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for number, row in enumerate(rows):
        span = slice(width - len(row), width) if left else slice(0, len(row))
        ids[number, span] = row
        mask[number, span] = 1
    return ids, mask
