"""SGLang's native HTTP bodies as typed values, and the checks that a response must pass.

A response that fails a check is an error of the engine, never a completion: token ids and behaviour logprobs
go to the trainer exactly as the engine gave them, so they must be whole and consistent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from gristmill.messages import FinishReason, Sampling, pack_ids
from sglang_generator.errors import EngineError

MAX_LOGPROB = 1e-3
"""A logprob above zero by more than rounding is no logprob."""


class Finish(msgspec.Struct, gc=False):
    type: str
    message: str | None = None
    status_code: int | None = None


class MetaInfo(msgspec.Struct, gc=False):
    id: str
    finish_reason: Finish | None
    completion_tokens: int
    prompt_tokens: int = 0
    """SGLang leaves it out of the reply to a request that was aborted in its queue."""
    cached_tokens: int = 0
    weight_version: str | None = None
    lora_path: str | msgspec.UnsetType | None = msgspec.UNSET
    """Adapter that served the request. SGLang does not tell; the embedded engine does, null for the bare model."""
    output_token_logprobs: list[tuple[float | None, int, Any]] = []


class GenerateReply(msgspec.Struct, gc=False):
    output_ids: list[int]
    meta_info: MetaInfo
    text: str = ""


_encode = msgspec.json.Encoder().encode
_decode_reply = msgspec.json.Decoder(GenerateReply).decode


class ModelInfo(msgspec.Struct):
    model_path: str
    tokenizer_path: str | None = None
    weight_version: str | None = None


class ModelCard(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class ModelList(msgspec.Struct):
    data: list[ModelCard]


class LoraReply(msgspec.Struct):
    success: bool
    error_message: str | None = None
    loaded_adapters: dict[str, Any] | None = None


class Reply(msgspec.Struct):
    """SGLang's answer to the calls that change weights; ``message`` says what happened, or why it did not."""

    success: bool
    message: str = ""


class Rank(msgspec.Struct):
    """One rank's part of a checksum. Its keys are parameter names, which tell the shape of the engine."""

    checksums: dict[str, str] = {}


class Checksum(msgspec.Struct):
    success: bool
    message: str = ""
    ranks: list[Rank] = []
    per_engine_checksum: str | None = None


class ScoreMeta(msgspec.Struct):
    weight_version: str | None = None
    lora_path: str | msgspec.UnsetType | None = msgspec.UNSET
    input_token_logprobs: list[tuple[float | None, int, Any]] = []


class ScoreReply(msgspec.Struct):
    meta_info: ScoreMeta


class Queues(msgspec.Struct):
    retracted: int = 0


class RankLoad(msgspec.Struct):
    """One rank's entry of ``/v1/loads``."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    token_usage: float = 0.0
    max_running_requests: int = 0
    gen_throughput: float = 0.0
    queues: Queues | None = None


class Loads(msgspec.Struct):
    loads: list[RankLoad]


class GraphPhase(msgspec.Struct):
    backend: str | None = None
    max_bs: int | None = None
    bs: list[int] | None = None


class GraphConfig(msgspec.Struct):
    decode: GraphPhase | None = None


class InternalState(msgspec.Struct):
    """What a scheduler says of itself: the values in force rather than those of the command line."""

    effective_max_running_requests_per_dp: int | None = None
    cuda_graph_config: GraphConfig | None = None


class ServerInfo(msgspec.Struct):
    """The few of ``/server_info``'s hundreds of keys that matter here."""

    tp_size: int = 1
    dp_size: int = 1
    max_running_requests: int | None = None
    disable_cuda_graph: bool = False
    cuda_graph_config: GraphConfig | None = None
    internal_states: list[InternalState] = []

    def largest_graph(self) -> int | None:
        """Largest decoding batch that a CUDA graph was captured for; None without graphs, or where nothing is said."""
        states = [state.cuda_graph_config for state in self.internal_states]
        config = next((found for found in (*states, self.cuda_graph_config) if found is not None), None)
        if self.disable_cuda_graph or config is None or config.decode is None or config.decode.backend == "disabled":
            return None
        captured = max(config.decode.bs, default=None) if config.decode.bs else config.decode.max_bs
        return None if captured is None else captured * max(1, self.dp_size)

    def most_running(self) -> int | None:
        """Requests that run at once."""
        per_rank = [state.effective_max_running_requests_per_dp for state in self.internal_states]
        known = [count for count in per_rank if count]
        return sum(known) if known else self.max_running_requests


@dataclass(frozen=True, slots=True)
class Expected:
    """What the engine must serve a request with.

    ``adapter`` is an adapter name or None for the bare weights; ``weight_version`` None accepts any.
    """

    adapter: str | None
    weight_version: str | None


class Prompt:
    """Token ids of a prompt, once in each form in which they are needed."""

    __slots__ = ("count", "json", "packed")

    def __init__(self, ids: Sequence[int]) -> None:
        self.count = len(ids)
        self.packed = pack_ids(ids)
        self.json = _encode(ids)


class Request:
    """One request for a sample: what is sent, and what the answer is checked against."""

    __slots__ = ("_expected", "_params", "_prompt", "rid")

    def __init__(self, rid: str, prompt: Prompt, params: dict[str, Any], expected: Expected) -> None:
        self.rid = rid
        self._prompt = prompt
        self._params = params
        self._expected = expected

    @property
    def content(self) -> bytes:
        """What is sent. Made when it is: hundreds of requests that wait hold one prompt together."""
        adapter = self._expected.adapter
        return b'{"rid":%b,"input_ids":%b,"sampling_params":%b,"return_logprob":true%b}' % (
            _encode(self.rid),
            self._prompt.json,
            _encode(self._params),
            b"" if adapter is None else b',"lora_path":' + _encode(adapter),
        )

    def read(self, content: bytes) -> Generated:
        """Check the answer.

        Raises:
            EngineError: it is not what was asked for.
        """
        try:
            reply = _decode_reply(content)
        except msgspec.DecodeError as error:
            raise EngineError("protocol", f"not SGLang's response: {error}") from error
        return check(
            reply,
            rid=self.rid,
            prompt_tokens=self._prompt.count,
            max_new_tokens=self._params["max_new_tokens"],
            expected=self._expected,
        )


@dataclass(frozen=True, slots=True)
class Generated:
    """A checked response: ids int32 and logprobs float32, packed little-endian, of equal length."""

    ids: bytes
    logprobs: bytes
    text: str
    finish_reason: FinishReason
    cached_tokens: int
    weight_version: str


def sampling_params(sampling: Sampling, index: int) -> dict[str, Any]:
    """``sampling_params`` of the sample ``index``; values equal to SGLang's defaults are left out."""
    params: dict[str, Any] = {"max_new_tokens": sampling.max_new_tokens, "temperature": sampling.temperature}
    if sampling.top_p != 1.0:
        params["top_p"] = sampling.top_p
    if sampling.top_k != -1:
        params["top_k"] = sampling.top_k
    if sampling.min_p != 0.0:
        params["min_p"] = sampling.min_p
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed + index
    return params


def check(reply: GenerateReply, *, rid: str, prompt_tokens: int, max_new_tokens: int, expected: Expected) -> Generated:
    """Turn a reply into a completion.

    Raises:
        EngineError: ``aborted``, ``mismatch`` (served by another policy), or ``invalid`` (inconsistent).
    """
    meta = reply.meta_info
    finish = meta.finish_reason
    if finish is None or finish.type not in ("stop", "length", "abort"):
        raise EngineError("invalid", f"finish reason {finish and finish.type!r} is none of stop, length, abort")
    if finish.type == "abort":
        raise EngineError("aborted", f"the engine aborted the request: {finish.message or 'no reason given'}")
    if meta.id != rid:
        raise EngineError("mismatch", f"the response is for request {meta.id}, not {rid}")
    if expected.weight_version is not None and meta.weight_version != expected.weight_version:
        raise EngineError("mismatch", f"weight_version {meta.weight_version!r}, asked for {expected.weight_version!r}")
    if meta.lora_path is not msgspec.UNSET and meta.lora_path != expected.adapter:
        raise EngineError("mismatch", f"adapter {meta.lora_path!r}, asked for {expected.adapter!r}")
    count, scored = len(reply.output_ids), len(meta.output_token_logprobs)
    if not 0 < count <= max_new_tokens:
        raise EngineError("invalid", f"{count} tokens for a request of 1 to {max_new_tokens}")
    if meta.completion_tokens != count or scored != count:
        raise EngineError(
            "invalid", f"{count} output ids, {scored} logprobs, completion_tokens {meta.completion_tokens}"
        )
    if meta.prompt_tokens != prompt_tokens:
        raise EngineError("invalid", f"prompt_tokens {meta.prompt_tokens}, {prompt_tokens} were sent")
    values, scored_ids, _ = zip(*meta.output_token_logprobs, strict=True)
    if list(scored_ids) != reply.output_ids:
        raise EngineError("invalid", "the token ids of the logprobs differ from output_ids")
    logprobs = np.array(values, dtype="<f4")
    if not np.isfinite(logprobs).all() or float(logprobs.max()) > MAX_LOGPROB:
        raise EngineError("invalid", "a logprob is not a finite number of at most 0")
    try:
        ids = np.array(reply.output_ids, dtype="<i4")
    except OverflowError:
        raise EngineError("invalid", "a token id does not fit 32 bits") from None
    return Generated(
        ids=ids.tobytes(),
        logprobs=logprobs.tobytes(),
        text=reply.text,
        finish_reason="stop" if finish.type == "stop" else "length",
        cached_tokens=meta.cached_tokens,
        weight_version=meta.weight_version or "",
    )
