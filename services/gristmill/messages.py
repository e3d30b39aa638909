"""The messages of the line as typed, immutable values.

The Avro schemas in ``schemas/`` are the contract; these classes mirror them field by field and
``tests/gristmill/test_messages.py`` fails when the two differ. Token ids and logprobs stay packed
(little-endian int32 and float32), as on the wire; :func:`unpack_ids` and :func:`unpack_logprobs` give
zero-copy numpy views.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from gristmill.errors import BadInput

ProblemKind: TypeAlias = Literal["math", "code"]
FinishReason: TypeAlias = Literal["stop", "length", "abort"]
VerdictStatus: TypeAlias = Literal["correct", "wrong", "unparsable", "timeout", "error"]
PolicyKind: TypeAlias = Literal["lora", "full"]
RejectionReason: TypeAlias = Literal["stale", "zero_variance", "duplicate", "incomplete", "invalid", "failed"]


class Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record that only occurs inside messages."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A record with a topic of its own. ``schema`` names its file in ``schemas/``."""

    schema: ClassVar[str]

    @property
    def key(self) -> str:
        """Kafka key: decides the partition, so all samples of a group share one."""
        raise NotImplementedError


class ChatMessage(Part, frozen=True, kw_only=True, gc=False):
    role: str
    content: str


class Sampling(Part, frozen=True, kw_only=True, gc=False):
    temperature: float
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    seed: int | None = None


class TestCase(Part, frozen=True, kw_only=True, gc=False):
    __test__: ClassVar[bool] = False  # not a pytest class

    input: str
    expected: str


class CodeTests(Part, frozen=True, kw_only=True, gc=False):
    kind: Literal["assert", "call", "stdio"]
    source: str = ""
    cases: tuple[TestCase, ...] = ()
    entry_point: str | None = None
    checker: str = "tokens"
    checker_source: str | None = None
    time_limit_s: float | None = None
    prompt: str | None = None


class PolicySpan(Part, frozen=True, kw_only=True, gc=False):
    version: int
    start: int
    length: int


class Problem(Message, frozen=True, kw_only=True):
    """A problem that asks for one group of completions."""

    schema: ClassVar[str] = "problem"

    run_id: str
    ordinal: int
    group_id: str
    problem_id: str
    kind: ProblemKind
    messages: tuple[ChatMessage, ...] = ()
    prompt: str | None = None
    reference: str | None = None
    tests: CodeTests | None = None
    source: str
    difficulty: float | None = None
    epoch: int = 0
    group_size: int
    sampling: Sampling
    created_at_ms: int
    metadata: dict[str, str] = {}

    @property
    def key(self) -> str:
        return self.group_id


class Completion(Message, frozen=True, kw_only=True):
    """One sampled reasoning path, with token ids and logprobs exactly as the engine gave them."""

    schema: ClassVar[str] = "completion"

    run_id: str
    sample_id: str
    group_id: str
    index: int
    ordinal: int
    group_size: int
    problem_id: str
    kind: ProblemKind
    source: str
    difficulty: float | None = None
    reference: str | None = None
    tests: CodeTests | None = None
    prompt_token_ids: bytes
    completion_token_ids: bytes
    logprobs: bytes
    text: str
    finish_reason: FinishReason
    policy_run_id: str
    policy_version_oldest: int
    policy_version_newest: int
    policy_spans: tuple[PolicySpan, ...]
    sampling: Sampling
    engine: str
    engine_weight_version: str
    cached_tokens: int = 0
    attempts: int = 1
    admission_wait_s: float
    generation_s: float
    problem_created_at_ms: int
    completed_at_ms: int

    @property
    def key(self) -> str:
        return self.group_id


class Verdict(Message, frozen=True, kw_only=True):
    """A scored completion with everything the trainer needs.

    ``index == -1`` with ``group_size == 0`` says that the whole group failed and nothing more is known.
    """

    schema: ClassVar[str] = "verdict"

    run_id: str
    sample_id: str
    group_id: str
    index: int
    ordinal: int
    group_size: int
    problem_id: str
    kind: ProblemKind | None = None
    source: str = ""
    difficulty: float | None = None
    prompt_token_ids: bytes
    completion_token_ids: bytes
    logprobs: bytes
    finish_reason: FinishReason | None = None
    policy_run_id: str = ""
    policy_version_oldest: int = -1
    policy_version_newest: int = -1
    policy_spans: tuple[PolicySpan, ...] = ()
    sampling: Sampling | None = None
    status: VerdictStatus
    reward: float | None = None
    reason: str = ""
    extracted: str | None = None
    gold: str | None = None
    stage: str = ""
    detail: str | None = None
    verifier: str
    verifier_version: str
    engine: str = ""
    generation_s: float = 0.0
    verify_s: float = 0.0
    problem_created_at_ms: int = 0
    completed_at_ms: int = 0
    verified_at_ms: int

    @property
    def key(self) -> str:
        return self.group_id


class PolicyVersion(Message, frozen=True, kw_only=True):
    """A policy version whose weights are durable at ``uri``, and the credit that goes with it."""

    schema: ClassVar[str] = "policy_version"

    run_id: str
    version: int
    step: int
    name: str
    base_model: str
    kind: PolicyKind
    uri: str
    sha256: str
    admit_until: int
    settled_groups: int
    trained: int
    rejected: int
    filtered: int
    failed: int
    duplicates: int = 0
    max_staleness: int
    groups_per_step: int
    published_at_ms: int

    @property
    def key(self) -> str:
        return self.run_id


class Rejection(Message, frozen=True, kw_only=True):
    """Samples that were not trained on, and why."""

    schema: ClassVar[str] = "rejection"

    run_id: str
    group_id: str
    ordinal: int
    sample_ids: tuple[str, ...]
    who: str
    why: RejectionReason
    reason: str = ""
    lag: int | None = None
    trainer_version: int
    policy_version_oldest: int | None = None
    lengths: tuple[int, ...]
    rewards: tuple[float | None, ...] = ()
    rejected_at_ms: int

    @property
    def key(self) -> str:
        return self.group_id


class TrainingStep(Message, frozen=True, kw_only=True):
    """One optimizer step: which samples it took, and what came of it."""

    schema: ClassVar[str] = "training_step"

    run_id: str
    step: int
    version: int
    group_ids: tuple[str, ...]
    sample_ids: tuple[str, ...]
    policy_versions: tuple[int, ...]
    loss: float
    reward_mean: float
    reward_std: float
    correct_fraction: float
    kl: float | None = None
    clip_fraction: float
    entropy: float
    grad_norm: float
    learning_rate: float
    mismatch_kl: float
    mismatch_max_ratio: float
    importance_ratio_mean: float
    staleness: dict[str, int]
    prompt_tokens: int
    completion_tokens: int
    completion_length_mean: float
    truncated_fraction: float
    wait_s: float
    train_s: float
    publish_s: float
    metrics: dict[str, float] = {}
    trained_at_ms: int

    @property
    def key(self) -> str:
        return self.run_id


MESSAGES: tuple[type[Message], ...] = (Problem, Completion, Verdict, PolicyVersion, Rejection, TrainingStep)


def make_group_id(run_id: str, ordinal: int) -> str:
    """``run_id`` must not contain ``:`` or ``/``; ordinals count from 1."""
    return f"{run_id}:{ordinal:08d}"


def make_sample_id(group_id: str, index: int) -> str:
    return f"{group_id}/{index}"


def parse_group_id(group_id: str) -> tuple[str, int]:
    """Split a group id into run id and ordinal.

    Raises:
        BadInput: the text is not a group id.
    """
    run_id, colon, ordinal = group_id.partition(":")
    if not (run_id and colon and ordinal.isascii() and ordinal.isdigit()):
        raise BadInput(f"{group_id!r} is not a group id of the form 'run:00000001'")
    return run_id, int(ordinal)


def parse_sample_id(sample_id: str) -> tuple[str, int]:
    """Split a sample id into group id and index.

    Raises:
        BadInput: the text is not a sample id.
    """
    group_id, slash, index = sample_id.rpartition("/")
    if not (slash and index.isascii() and index.isdigit()):
        raise BadInput(f"{sample_id!r} is not a sample id of the form 'run:00000001/0'")
    parse_group_id(group_id)
    return group_id, int(index)


def now_ms() -> int:
    """Wall-clock milliseconds since the epoch (UTC), as the ``*_at_ms`` fields hold."""
    return time.time_ns() // 1_000_000


def pack_ids(ids: Iterable[int] | npt.NDArray[np.integer]) -> bytes:
    """Token ids to little-endian int32 bytes.

    Raises:
        BadInput: something is not an integer of 32 bits.
    """
    return _pack(ids, "i", "token ids")


def unpack_ids(data: bytes) -> npt.NDArray[np.int32]:
    """Little-endian int32 bytes to a read-only ``int32[n]`` view.

    Raises:
        BadInput: the length is not a multiple of four.
    """
    return _unpack(data, "<i4", "token ids")


def pack_logprobs(values: Iterable[float] | npt.NDArray[np.floating]) -> bytes:
    """Logprobs to little-endian float32 bytes.

    Raises:
        BadInput: something is not a number within the range of float32.
    """
    return _pack(values, "f", "logprobs")


def unpack_logprobs(data: bytes) -> npt.NDArray[np.float32]:
    """Little-endian float32 bytes to a read-only ``float32[n]`` view.

    Raises:
        BadInput: the length is not a multiple of four.
    """
    return _unpack(data, "<f4", "logprobs")


def _pack(values: Iterable[Any] | npt.NDArray[Any], code: str, what: str) -> bytes:
    """``struct`` checks type and range of every value, which numpy's casts do not."""
    numbers = values.tolist() if isinstance(values, np.ndarray) else list(values)
    try:
        return struct.pack(f"<{len(numbers)}{code}", *numbers)
    except (struct.error, OverflowError) as error:
        raise BadInput(f"{what} do not fit 32-bit values: {error}") from error


def _unpack(data: bytes, dtype: str, what: str) -> npt.NDArray[Any]:
    if len(data) % 4:
        raise BadInput(f"{what}: {len(data)} bytes are not a whole number of 4-byte values")
    return np.frombuffer(data, dtype=dtype)
