"""Request bodies, field for field as SGLang names them. What is not listed here is refused, never ignored.

Fields that SGLang has and this engine has not are listed too where they have a neutral value: that value is
accepted, any other is refused by name.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from embedded_engine.errors import RefusedRequest
from embedded_engine.model.sampling import Draw
from embedded_engine.request import SamplingPlan

TokenId = StrictInt
Number = StrictFloat | StrictInt

GREEDY_BELOW = 1e-6
TOP_K_ALL = 1 << 30


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class SamplingParams(Body):
    """`sampling_params` of /generate; null means the default."""

    max_new_tokens: StrictInt | None = 128
    """Most tokens to sample; null: up to the context length."""
    min_new_tokens: StrictInt | None = None
    """Before so many tokens no stop token is drawn."""
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: StrictInt | None = None
    min_p: Number | None = None
    stop: StrictStr | list[StrictStr] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: StrictBool | None = None
    """Never stop at a token, those of `stop_token_ids` included (as SGLang)."""
    skip_special_tokens: StrictBool | None = None
    no_stop_trim: StrictBool | None = None
    sampling_seed: StrictInt | None = None
    stream_interval: StrictInt | None = None
    n: StrictInt | None = None
    """Only 1: send several requests with their own rids."""
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    repetition_penalty: Number | None = None
    spaces_between_special_tokens: StrictBool | None = None
    stop_regex: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None
    custom_params: Any = None
    logit_bias: Any = None

    def plan(self, prompt_tokens: int, context_length: int, vocab_size: int, eos: frozenset[int]) -> SamplingPlan:
        """Check everything and settle the defaults.

        Raises:
            RefusedRequest: a value out of range, or one that this engine does not support.
        """
        self._refuse_unsupported()
        temperature = 1.0 if self.temperature is None else float(self.temperature)
        top_p = 1.0 if self.top_p is None else float(self.top_p)
        min_p = 0.0 if self.min_p is None else float(self.min_p)
        top_k = -1 if self.top_k is None else self.top_k
        minimum = self.min_new_tokens or 0
        _require(math.isfinite(temperature) and temperature >= 0.0,
                 f"temperature must be a non-negative finite number, got {temperature}.")  # fmt: skip
        _require(0.0 < top_p <= 1.0, f"top_p must be in (0, 1], got {top_p}.")
        _require(0.0 <= min_p <= 1.0, f"min_p must be in [0, 1], got {min_p}.")
        _require(top_k == -1 or top_k >= 1, f"top_k must be -1 (disable) or at least 1, got {top_k}.")
        _require(self.max_new_tokens is None or self.max_new_tokens >= 0,
                 f"max_new_tokens must be at least 0, got {self.max_new_tokens}.")  # fmt: skip
        _require(self.stream_interval is None or self.stream_interval >= 1,
                 f"stream_interval must be at least 1, got {self.stream_interval}.")  # fmt: skip
        _require(
            prompt_tokens < context_length,
            f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context_length} tokens).",
        )
        maximum = context_length - prompt_tokens if self.max_new_tokens is None else self.max_new_tokens
        _require(
            prompt_tokens + maximum <= context_length,
            f"Requested token count exceeds the model's maximum context length of {context_length} tokens. You "
            f"requested a total of {prompt_tokens + maximum} tokens: {prompt_tokens} tokens from the input "
            f"messages and {maximum} tokens for the completion. Please reduce the number of tokens in the input "
            f"messages or the completion to fit within the limit.",
        )
        _require(0 <= minimum <= maximum,
                 f"min_new_tokens must be in [0, max_new_tokens({maximum})], got {minimum}.")  # fmt: skip
        stop_ids = frozenset(self.stop_token_ids or ())
        _require(all(0 <= token < vocab_size for token in stop_ids),
                 f"stop_token_ids must be in [0, {vocab_size - 1}].")  # fmt: skip
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        _require(all(stops), "stop strings must not be empty.")
        ignore_eos = bool(self.ignore_eos)
        greedy = temperature < GREEDY_BELOW
        return SamplingPlan(
            draw=Draw(
                temperature=0.0 if greedy else temperature,
                top_k=0 if top_k == -1 or top_k >= min(vocab_size, TOP_K_ALL) else top_k,
                top_p=top_p,
                min_p=min_p,
            ),
            max_new_tokens=maximum,
            min_new_tokens=minimum,
            seed=self.sampling_seed,
            ignore_eos=ignore_eos,
            stop_token_ids=frozenset() if ignore_eos else stop_ids | eos,
            stop=stops,
            no_stop_trim=bool(self.no_stop_trim),
            skip_special_tokens=self.skip_special_tokens is not False,
            stream_interval=self.stream_interval or 1,
        )

    def _refuse_unsupported(self) -> None:
        if self.n not in (None, 1):
            raise RefusedRequest(f"n must be 1, got {self.n}: send {self.n} requests with rids of their own.")
        neutral: dict[str, tuple[Any, ...]] = {
            "frequency_penalty": (None, 0),
            "presence_penalty": (None, 0),
            "repetition_penalty": (None, 1),
            "spaces_between_special_tokens": (None, True),
        }
        absent = ("stop_regex", "json_schema", "regex", "ebnf", "structural_tag", "custom_params", "logit_bias")
        neutral.update(dict.fromkeys(absent, (None,)))
        for name, values in neutral.items():
            if getattr(self, name) not in values:
                raise RefusedRequest(f"{name}={getattr(self, name)!r} is not supported by the embedded engine.")


class GenerateRequest(Body):
    """POST /generate, one request."""

    rid: StrictStr | None = Field(default=None, min_length=1, max_length=256)
    text: StrictStr | None = None
    input_ids: list[TokenId] | None = None
    sampling_params: SamplingParams | None = None
    return_logprob: StrictBool | None = None
    logprob_start_len: StrictInt | None = None
    """First prompt position whose log-probability is returned; -1: of the output only."""
    return_text_in_logprobs: StrictBool = False
    return_prompt_token_ids: StrictBool = False
    stream: StrictBool = False
    lora_path: StrictStr | None = None
    """Name of a loaded adapter."""
    priority: StrictInt | None = None
    """Larger goes first in the queue."""
    log_metrics: Literal[True] = True
    no_logs: StrictBool = False
    """Requests are never logged, so either value holds."""
    routing_key: StrictStr | None = None
    """For routers; means nothing to a single server."""
    top_logprobs_num: Literal[0] | None = None
    token_ids_logprob: None = None
    return_hidden_states: Literal[False] = False
    return_entropy: Literal[False] = False
    return_sampling_mask: Literal[False] | None = None


class AbortRequest(Body):
    """POST /abort_request."""

    rid: StrictStr | None = None
    abort_all: StrictBool = False
    abort_message: StrictStr | None = None


class PauseRequest(Body):
    """POST /pause_generation."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueRequest(Body):
    """POST /continue_generation."""

    torch_empty_cache: StrictBool = True


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RefusedRequest(message)
