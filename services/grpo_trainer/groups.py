"""Samples and groups as the assembler holds them, and the reading of a verdict into a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from gristmill.errors import BadInput
from gristmill.messages import Verdict, make_group_id, make_sample_id, unpack_ids, unpack_logprobs

Fault: TypeAlias = Literal["failed", "invalid"]

TOKEN_BYTES = 4
MAX_GROUP_SIZE = 65536
"""A larger size can only be a corrupt record; the bound keeps one from asking for gigabytes."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a verdict lies in the topic."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A verdict as the trainer takes it: with a reward, or with the fault that keeps it from being trained on."""

    verdict: Verdict
    reward: float | None
    fault: Fault | None = None
    reason: str = ""

    @property
    def index(self) -> int:
        return self.verdict.index

    @property
    def length(self) -> int:
        """Completion tokens."""
        return len(self.verdict.completion_token_ids) // TOKEN_BYTES


@dataclass(slots=True)
class Group:
    """The samples of one problem that have arrived so far."""

    ordinal: int
    group_id: str
    size: int
    opened_at: float
    samples: dict[int, Sample] = field(default_factory=dict)
    first_offsets: dict[int, int] = field(default_factory=dict)
    """First offset by partition: where a resumed trainer must read from to see the group whole."""
    missing_why: Literal["incomplete", "failed"] = "incomplete"

    @property
    def scored(self) -> list[Sample]:
        """Samples that can be trained on, by index."""
        return [self.samples[index] for index in sorted(self.samples) if self.samples[index].fault is None]

    @property
    def missing(self) -> list[int]:
        """Indices that have not arrived."""
        return [index for index in range(self.size) if index not in self.samples]

    def sample_id(self, index: int) -> str:
        return make_sample_id(self.group_id, index)


def check_identity(verdict: Verdict) -> None:
    """Raises BadInput when the verdict's ids, ordinal, index and group size do not agree."""
    if verdict.ordinal < 1 or verdict.group_id != make_group_id(verdict.run_id, verdict.ordinal):
        raise BadInput(
            f"verdict {verdict.sample_id!r}: group_id {verdict.group_id!r} is not that of ordinal {verdict.ordinal} "
            f"of run {verdict.run_id!r}"
        )
    if verdict.index == -1:
        return
    if not 0 <= verdict.index < verdict.group_size <= MAX_GROUP_SIZE:
        raise BadInput(
            f"verdict {verdict.sample_id!r}: index {verdict.index} does not fit a group of {verdict.group_size} "
            f"(at most {MAX_GROUP_SIZE})"
        )
    if verdict.sample_id != make_sample_id(verdict.group_id, verdict.index):
        raise BadInput(f"verdict {verdict.sample_id!r}: sample_id is not that of index {verdict.index}")


def temperature_of(verdict: Verdict) -> float:
    """Temperature that the behaviour logprobs were taken at; greedy engines report them at 1."""
    if verdict.sampling is None or verdict.sampling.temperature == 0:
        return 1.0
    return verdict.sampling.temperature


def read_sample(
    verdict: Verdict, *, unparsable_reward: float | None, temperature: float | None, vocab_size: int | None = None
) -> Sample:
    """Decide whether a verdict can be trained on, leaving freshness aside.

    Args:
        verdict: one whose identity was checked.
        unparsable_reward: reward of status ``unparsable`` where the verifier gave none.
        temperature: the run's sampling temperature; None accepts any.
        vocab_size: bound of token ids; None accepts any.
    """
    reward = verdict.reward
    if verdict.status in ("timeout", "error"):
        return Sample(verdict, None, "failed", verdict.reason or verdict.status)
    if verdict.finish_reason == "abort":
        return Sample(verdict, None, "failed", "generation was aborted")
    if reward is None and verdict.status == "unparsable":
        if unparsable_reward is None:
            return Sample(verdict, None, "failed", verdict.reason or "unparsable")
        reward = unparsable_reward
    if reward is None:
        return Sample(verdict, None, "invalid", f"status {verdict.status} without a reward")
    problem = _payload_problem(verdict, reward, vocab_size)
    if problem is None and temperature is not None and temperature_of(verdict) != temperature:
        problem = f"sampled at temperature {temperature_of(verdict)}, the run trains at {temperature}"
    if problem is not None:
        return Sample(verdict, None, "invalid", problem)
    return Sample(verdict, float(reward))


def _payload_problem(verdict: Verdict, reward: float, vocab_size: int | None) -> str | None:
    if not math.isfinite(reward):
        return f"the reward is {reward}"
    if not verdict.prompt_token_ids or not verdict.completion_token_ids:
        return "no prompt or no completion tokens"
    if len(verdict.prompt_token_ids) % TOKEN_BYTES or len(verdict.completion_token_ids) % TOKEN_BYTES:
        return "token ids are not whole int32 values"
    if len(verdict.logprobs) != len(verdict.completion_token_ids):
        return (
            f"{len(verdict.completion_token_ids) // TOKEN_BYTES} completion tokens but "
            f"{len(verdict.logprobs) // TOKEN_BYTES} logprobs"
        )
    if not np.isfinite(unpack_logprobs(verdict.logprobs)).all():
        return "a logprob is no finite number"
    for ids in (unpack_ids(verdict.prompt_token_ids), unpack_ids(verdict.completion_token_ids)):
        if ids.min() < 0 or (vocab_size is not None and ids.max() >= vocab_size):
            return f"a token id is outside the vocabulary of {vocab_size}"
    return None
