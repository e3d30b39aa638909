"""Settings of the generator (section ``generator``)."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gristmill.config import Section


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

    engine_concurrency: int = Field(default=64, ge=1)
    """Requests in flight per engine."""
    problems_per_partition: int = Field(default=16, ge=1)
    """Groups handled at once per partition of the problems topic, waiting for credit included."""
    max_group_size: int = Field(default=1024, ge=1)
    """Largest group size that is accepted."""
    context_length: int | None = Field(default=None, ge=2)
    """Bound on prompt plus completion tokens; what the engines report when absent."""

    delivery: Literal["lora", "disk"] = "lora"
    """``lora``: adapters, hot-loaded under immutable names; ``disk``: whole weights by /update_weights_from_disk."""
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
        urls = tuple(url.rstrip("/") for url in value)
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ValueError(f"{url!r} is not a base URL such as http://127.0.0.1:30000")
        if len(set(urls)) != len(urls):
            raise ValueError("an engine is listed twice")
        return urls

    @model_validator(mode="after")
    def _admission(self) -> GeneratorConfig:
        if self.admission == "credit" and self.static_policy != StaticPolicy():
            raise ValueError("static_policy needs admission: off (with credit, the trainer announces the policies)")
        return self
