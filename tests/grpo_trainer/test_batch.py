from __future__ import annotations

import torch
from trainer_synthetic import make_group

from gristmill.messages import unpack_ids, unpack_logprobs
from grpo_trainer.assembler import Assembler, Batch, Rules
from grpo_trainer.batch import micro_batches, to_tensors


def make_batch(groups: int = 3) -> Batch:
    assembler = Assembler(Rules("run", groups, 0))
    for ordinal in range(1, groups + 1):
        for verdict in make_group(ordinal):
            assembler.offer(verdict, 0.0)
    batch = assembler.cut()
    assert batch is not None
    return batch


def rows_of(tensors: dict[str, torch.Tensor]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    return {
        (
            tuple(tensors["prompt_ids"][row][tensors["prompt_mask"][row].bool()].tolist()),
            tuple(tensors["completion_ids"][row][tensors["completion_mask"][row].bool()].tolist()),
        )
        for row in range(tensors["prompt_ids"].size(0))
    }


def test_ids_and_logprobs_are_the_engines_own() -> None:
    batch = make_batch()
    tensors = to_tensors(batch, scale="group", pad_id=0, mask_truncated=False)
    expected = {
        (tuple(unpack_ids(s.verdict.prompt_token_ids)), tuple(unpack_ids(s.verdict.completion_token_ids)))
        for s in batch.samples
    }
    assert rows_of(tensors) == expected
    mask = tensors["completion_mask"].bool()
    total = sum(float(unpack_logprobs(s.verdict.logprobs).sum()) for s in batch.samples)
    assert abs(float(tensors["sampling_per_token_logps"][mask].sum()) - total) < 1e-3
    assert float(tensors["sampling_per_token_logps"][~mask].abs().sum()) == 0
    assert int(tensors["num_items_in_batch"]) == sum(s.length for s in batch.samples)


def test_prompts_end_and_completions_begin_in_the_same_column() -> None:
    tensors = to_tensors(make_batch(), scale="none", pad_id=0, mask_truncated=False)
    assert bool(tensors["prompt_mask"][:, -1].all())
    assert bool(tensors["completion_mask"][:, 0].all())
    assert bool((tensors["prompt_mask"].diff(dim=1) >= 0).all())
    assert bool((tensors["completion_mask"].diff(dim=1) <= 0).all())


def test_truncated_completions_can_be_masked_and_still_set_the_baseline() -> None:
    batch = make_batch()
    plain = to_tensors(batch, scale="group", pad_id=0, mask_truncated=False)
    masked = to_tensors(batch, scale="group", pad_id=0, mask_truncated=True)
    truncated = [row for row in range(12) if not bool(masked["completion_mask"][row].any())]
    assert len(truncated) == 3, "one of each group ended by length"
    assert torch.equal(plain["advantages"], masked["advantages"])


def test_micro_batches_hold_every_row_once_and_keep_the_bound() -> None:
    tensors = to_tensors(make_batch(), scale="group", pad_id=0, mask_truncated=False)
    chunks = list(micro_batches(tensors, max_rows=4, max_tokens=60))
    assert sum(chunk.rows for chunk in chunks) == 12
    assert set().union(*(rows_of(chunk.tensors) for chunk in chunks)) == rows_of(tensors)
    for chunk in chunks:
        width = chunk.tensors["prompt_ids"].size(1) + chunk.tensors["completion_ids"].size(1)
        assert chunk.rows <= 4
        assert chunk.rows == 1 or width * chunk.rows <= 60
        assert bool(chunk.tensors["prompt_mask"][:, 0].any()), "trimmed to the longest prompt"
    assert sum(chunk.tokens for chunk in chunks) == int(tensors["num_items_in_batch"])


def test_a_row_longer_than_the_bound_goes_alone() -> None:
    tensors = to_tensors(make_batch(), scale="group", pad_id=0, mask_truncated=False)
    assert [chunk.rows for chunk in micro_batches(tensors, max_rows=4, max_tokens=1)] == [1] * 12
