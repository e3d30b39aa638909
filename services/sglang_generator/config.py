"""Settings of the generator (section ``generator``)."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gristmill.config import Section

DeliveryMode: TypeAlias = Literal["lora", "disk", "tensor", "nccl"]

_KEY = re.compile(r"[!-~]+")

AUTO_START = 64
"""Limit that ``engine_concurrency: auto`` begins with."""


class StaticPolicy(Section):
    """The one policy of a line without a trainer."""

    version: int = Field(default=0, ge=0)
    """Version that completions are stamped with."""
    adapter: str | None = None
    """Name of an adapter that every engine already serves; the bare model when absent."""
    weight_version: str | None = None
    """``weight_version`` that engines must report; whatever they report at first contact when absent."""


class GeneratorConfig(Section):
    """Which engines sample, how hard they are driven, and how policies reach them."""

    engines: tuple[str, ...] = Field(default=("http://127.0.0.1:30000",), min_length=1)
    """Base URLs of the engines."""
    api_key: SecretStr | None = None
    """Key of the engines (SGLang ``--api-key``)."""
    admin_api_key: SecretStr | None = None
    """Key for loading weights and aborting (SGLang ``--admin-api-key``); ``api_key`` when absent."""
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer; what the engines report as their ``tokenizer_path`` when absent."""

    engine_concurrency: Annotated[int, Field(ge=1)] | Literal["auto"] = 64
    """Requests in flight per engine, at least 1; ``auto``: found by watching the engine's load (docs/generation.md)."""
    prefill_cost_s: float = Field(default=0.02, ge=0)
    """Seconds that a prefill takes an engine, whatever its size. At a full engine, requests wait for others to be sent
    with them as long as that saves time (docs/generation.md), a tenth of an answer's time at most; 0: not at all."""
    problems_per_partition: int = Field(default=16, ge=1)
    """Groups handled at once per partition of the problems topic, waiting for credit included."""
    max_group_size: int = Field(default=1024, ge=1)
    """Largest group size that is accepted."""
    context_length: int | None = Field(default=None, ge=2)
    """Bound on prompt plus completion tokens; what the engines report when absent."""

    delivery: DeliveryMode = "lora"
    """``lora``: adapters, hot-loaded under immutable names. The others replace whole weights: ``disk`` by a folder that
    the engines read, ``tensor`` in requests, ``nccl`` by broadcast from the trainer (docs/weight-delivery.md)."""
    lora_transfer: Literal["files", "tensors"] = "files"
    """``files``: engines read the adapter's folder; ``tensors``: it travels in the request, so that they need not."""
    tensor_transfer: Literal["inline", "ipc"] = "inline"
    """``inline``: bytes in the request, across hosts; ``ipc``: handles of the trainer's GPU memory, on one host."""
    tensor_chunk_mb: float = Field(default=128.0, gt=0)
    """Weights per request with ``inline``; this process holds about two chunks at a time."""
    weight_source: str | None = None
    """Base URL of the trainer's weight source (``trainer.weight_source``), for ``nccl`` and ``ipc``."""
    weight_source_key: SecretStr | None = None
    """Bearer key of the weight source."""
    group_backend: Literal["nccl", "gloo"] = "nccl"
    """Backend of the process group with ``nccl``; ``gloo`` when trainer and engine run on CPUs."""
    switch: Literal["all", "each"] = "all"
    """When new groups take a version: ``all``: once every engine in service has confirmed it; ``each``: as soon as one
    has, on that one."""
    keep_versions: int = Field(default=1, ge=0)
    """Drained adapters that stay loaded behind the current one, for generators that lag on the same engines."""
    adopt_adapters: bool = False
    """Trust adapters of this run that an engine holds at first contact if their path matches, instead of loading
    them anew. Spares a stall when a generator joins others on the same engines; a run id must then never be used
    again for another run while the engines live."""

    admission: Literal["credit", "off"] = "credit"
    """``credit``: a problem starts only within the trainer's ``admit_until``; ``off``: at once (no trainer)."""
    follow_policies: bool = False
    """With admission off: sample from the newest announced policy instead of ``static_policy``."""
    static_policy: StaticPolicy = StaticPolicy()
    """Policy that is sampled with admission off."""

    attempts: int = Field(default=4, ge=1)
    """Requests per sample before it is reported as failed. Waiting for an engine to come back is not an attempt."""
    retry_backoff_s: float = Field(default=0.2, gt=0)
    """Seconds before the second attempt on an engine that failed the sample, at most; doubled for each further one."""
    request_timeout_s: float = Field(default=900.0, gt=0)
    """Seconds that one sample may take."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds to connect to an engine."""
    control_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds that loading or unloading a policy may take, and a probe of a busy engine."""
    health_interval_s: float = Field(default=5.0, gt=0)
    """Seconds between health checks of an engine that has not answered anything else meanwhile."""
    health_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds without an answer to a health check after which an engine counts as hung."""
    breaker_failures: int = Field(default=3, ge=1)
    """Failures in a row that take an engine out of service."""
    breaker_reset_s: float = Field(default=1.0, gt=0)
    """Seconds out of service after the first opening; doubled for each opening without a success between."""
    breaker_max_s: float = Field(default=60.0, gt=0)
    """Upper bound of that."""
    max_refusals: int = Field(default=50, ge=1)
    """Problems in a row that engines may refuse, or that cannot be sent to any (no chat template, longer than the
    context), before the service ends: that is a wrong set-up, not bad problems."""

    @field_validator("engines")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        urls = tuple(_base_url(url) for url in value)
        if len(set(urls)) != len(urls):
            raise ValueError("an engine is listed twice")
        return urls

    @field_validator("api_key", "admin_api_key", "weight_source_key")
    @classmethod
    def _header_value(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _KEY.fullmatch(value.get_secret_value()):
            raise ValueError("a key goes into a header: visible ASCII characters only (no line end, no blank)")
        return value

    @field_validator("weight_source")
    @classmethod
    def _source_url(cls, value: str | None) -> str | None:
        return None if value is None else _base_url(value)

    @model_validator(mode="after")
    def _admission(self) -> GeneratorConfig:
        if self.admission == "credit" and self.static_policy != StaticPolicy():
            raise ValueError("static_policy needs admission: off (with credit, the trainer announces the policies)")
        return self

    @model_validator(mode="after")
    def _delivery(self) -> GeneratorConfig:
        if self.lora_transfer == "tensors" and self.delivery != "lora":
            raise ValueError(f"lora_transfer: tensors needs delivery: lora, not {self.delivery}")
        if self.lora_transfer == "tensors" and self.adopt_adapters:
            raise ValueError("adopt_adapters needs lora_transfer: files (adapters sent as tensors have no path)")
        if self.tensor_transfer == "ipc" and self.delivery != "tensor":
            raise ValueError(f"tensor_transfer: ipc needs delivery: tensor, not {self.delivery}")
        if self.weight_source is None and not self.reads_artifacts:
            what = "nccl" if self.delivery == "nccl" else "tensor with tensor_transfer: ipc"
            raise ValueError(f"delivery: {what} needs weight_source, the address of the trainer's weight source")
        if self.weight_source is None and self.weight_source_key is not None:
            raise ValueError("weight_source_key needs weight_source")
        return self

    @property
    def reads_artifacts(self) -> bool:
        """Whether this process or its engines read the announced artifact; else the trainer hands the weights over."""
        return self.delivery in ("lora", "disk") or (self.delivery == "tensor" and self.tensor_transfer == "inline")

    @property
    def first_concurrency(self) -> int:
        """Requests in flight per engine at the start."""
        return AUTO_START if self.engine_concurrency == "auto" else self.engine_concurrency


def _base_url(url: str) -> str:
    url = url.rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is not a base URL such as http://127.0.0.1:30000")
    return url
