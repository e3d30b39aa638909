"""Configuration: one tree for the whole line, read the same way by every process.

Strength, rising: defaults, environment (``GRISTMILL_*``), YAML file, command-line flags. The top level
holds what every process shares (:class:`CommonConfig`); each service adds a section of its own
(``trainer``, ``generator``, ...), found by the entry-point group ``gristmill.config``. Unknown keys are
refused wherever they stand, with the nearest known one named, and all problems are reported at once.

Environment names join the path with ``__``: ``GRISTMILL_TOPIC_PREFIX``, ``GRISTMILL_TRAINER__MAX_STALENESS``; an
empty variable counts as absent. In flags and environment, text stands for itself; ``null`` is null, and lists and
mappings are written as YAML: ``[a, b]``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from gristmill.config_problems import explain, unknown_variables
from gristmill.errors import ConfigError

ENV_PREFIX = "GRISTMILL_"
CONFIG_ENV = "GRISTMILL_CONFIG"
"""Names the YAML file when no ``--config`` flag does."""
RESERVED_ENV = frozenset({CONFIG_ENV, "GRISTMILL_SHARED", "GRISTMILL_TEST_FORBID_SKIP"})
"""Variables with our prefix that are no settings; all but the first are for the tests."""


class Section(BaseModel):
    """Base of every service's section: immutable, unknown keys refused, docstrings become descriptions."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        hide_input_in_errors=True,  # it may be a key
    )


class SecurityConfig(Section):
    """How clients authenticate to the brokers and the registry."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Kafka security protocol."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """SASL mechanism, needed by the SASL protocols."""
    sasl_username: str | None = None
    """SASL user."""
    sasl_password: SecretStr | None = None
    """SASL password; give it by the environment, never in a file that is committed."""
    ssl_ca: Path | None = None
    """PEM file of the certificate authority; the system's store when absent."""
    ssl_certificate: Path | None = None
    """PEM file of the client certificate."""
    ssl_key: Path | None = None
    """PEM file of the client key."""
    registry_auth: SecretStr | None = None
    """``user:password`` for the schema registry."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = ("sasl_mechanism", "sasl_username", "sasl_password")
        missing = [name for name in needed if getattr(self, name) is None]
        if self.protocol.startswith("SASL") and missing:
            raise ValueError(f"protocol {self.protocol} needs {', '.join(missing)} too")
        return self


class CommonConfig(Section):
    """What every process of the line shares."""

    bootstrap: str = "127.0.0.1:9092"
    """Kafka bootstrap servers, ``host:port`` separated by commas."""
    topic_prefix: str = Field(default="", pattern=r"^[A-Za-z0-9._-]*$")
    """Put before every topic name and group id, so that several factories share a cluster."""
    registry_url: str | None = None
    """Schema registry with the Confluent API; without one, schema ids are fingerprints."""
    run_id: str = Field(default="default", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """Names one training run. Samples of another run are never trained on."""
    data_dir: Path = Path(".gristmill")
    """Where policies, checkpoints, models and logs are kept; shared by trainer and engines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line that is written."""
    log_format: Literal["auto", "console", "json"] = "auto"
    """``auto`` writes for people on a terminal and JSON elsewhere."""
    metrics_host: str = "127.0.0.1"
    """Address that metrics and health are served on."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of ``/metrics``, ``/healthz`` and ``/readyz``; 0 picks a free one, absent turns them off."""
    drain_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that a stopping service may take to finish what it has begun."""
    exit_timeout_s: float = Field(default=45.0, gt=0)
    """Seconds after which a stopping service ends at once, finished or not."""
    security: SecurityConfig = SecurityConfig()
    """Authentication and encryption."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.exit_timeout_s < self.drain_timeout_s:
            raise ValueError(
                f"exit_timeout_s {self.exit_timeout_s:g} would cut off drain_timeout_s {self.drain_timeout_s:g}: "
                "raise the one or lower the other"
            )
        return self


class Settings(BaseSettings, CommonConfig):
    """The whole tree. Built by :func:`settings_model`, which adds the sections of the installed services."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        env_ignore_empty=True,
        env_parse_none_str="null",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 (pydantic-settings passes it)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """:func:`load_settings` merges the sources, so that it knows where each value came from."""
        del env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    @property
    def common(self) -> CommonConfig:
        """The shared part alone."""
        return CommonConfig.model_validate({name: getattr(self, name) for name in CommonConfig.model_fields})

    def section(self, name: str, model: type[S]) -> S:
        """The section ``name``, checked to be of class ``model``."""
        value = getattr(self, name)
        if not isinstance(value, model):
            raise ConfigError(f"section {name!r} is a {type(value).__name__}, not a {model.__name__}")
        return value


S = TypeVar("S", bound=Section)


@cache
def sections() -> dict[str, type[Section]]:
    """Section classes of the installed services by name."""
    found = {point.name: cast(type[Section], point.load()) for point in entry_points(group="gristmill.config")}
    return dict(sorted(found.items()))


@cache
def settings_model() -> type[Settings]:
    """The settings class with one field per installed section."""
    fields: dict[str, Any] = {
        name: (model, Field(default_factory=model, description=(model.__doc__ or "").strip()))
        for name, model in sections().items()
    }
    return create_model("GristmillSettings", __base__=Settings, **fields)


class _Environment(EnvSettingsSource):
    """The ``GRISTMILL_*`` variables of a given environment as a nested mapping."""

    def __init__(self, model: type[Settings], environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(model)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): None if value == "null" else value for name, value in self._environ.items() if value}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ARG002
        return _read_value(value) if isinstance(value, str) else value


def load_settings(
    config_file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    model: type[Settings] | None = None,
) -> Settings:
    """Read the configuration.

    Args:
        config_file: YAML file; ``GRISTMILL_CONFIG`` names one when this is None.
        overrides: nested mapping of command-line flags, the strongest source.
        environ: environment, ``os.environ`` by default.
        model: settings class, by default the one with the sections of all installed services.

    Raises:
        ConfigError: unreadable file, unknown key or a value out of range; the message lists every problem.
    """
    env = os.environ if environ is None else environ
    model = model or settings_model()
    if config_file is None and env.get(CONFIG_ENV):
        config_file = Path(env[CONFIG_ENV])
    sources: dict[str, Mapping[str, Any]] = {
        "environment": _Environment(model, env)(),
        f"file {config_file}": _read_yaml(config_file) if config_file else {},
        "flags": overrides or {},
    }
    ours = {name: value for name, value in env.items() if name not in RESERVED_ENV}
    problems = list(unknown_variables(model, ours, ENV_PREFIX))
    values: dict[str, Any] = {}
    for source in sources.values():
        values = merge(values, source)
    try:
        settings = model(**values)
    except ValidationError as error:
        problems += explain(model, error, sources)
    if problems:
        raise ConfigError("\n".join(["the configuration cannot be used:", *problems]))
    return settings


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Turn ``--section.key=value`` and ``--key value`` flags into a nested mapping.

    Dashes in keys stand for underscores; ``--flag`` alone means true.

    Raises:
        ConfigError: an argument that is not such a flag.
    """
    result: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or len(argument) < 3:
            raise ConfigError(f"unexpected argument {argument!r}: settings are given as --section.key=value")
        name, equals, value = argument[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        path = name.replace("-", "_").split(".")
        node = result
        for part in path[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ConfigError(f"--{name}: {part} already has a plain value")
        if isinstance(node.get(path[-1]), dict):
            raise ConfigError(f"--{name}: {name} already has values of its own")
        node[path[-1]] = _read_value(value)
    return result


def _read_value(text: str) -> Any:
    """The value that a flag or variable stands for: the text itself, except for null, lists, mappings and quotes.

    Numbers and truth values stay text for pydantic to read, so that a run called ``007`` or ``2026-01-01`` keeps
    its name.
    """
    if text != "null" and not text.startswith(("[", "{", '"', "'")):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r} is not a value: {error}") from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of nested mappings, ``over`` winning."""
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        result[key] = merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return result


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where YAML libraries silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands twice", key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return cast(dict[Any, Any], super().construct_mapping(node, deep))


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: the top level must be a mapping of settings")
    return {str(key): value for key, value in values.items()}
