"""Configuration: one tree for the whole line, read the same way by every process.

Strength, rising: defaults, environment (``GRISTMILL_*``), YAML file, command-line flags. The top level
holds what every process shares (:class:`CommonConfig`); each service adds a section of its own
(``trainer``, ``generator``, ...), found by the entry-point group ``gristmill.config``. Unknown keys are
refused wherever they stand, with the nearest known one named.

Environment names join the path with ``__``: ``GRISTMILL_TOPIC_PREFIX``, ``GRISTMILL_TRAINER__MAX_STALENESS``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from gristmill.errors import ConfigError

ENV_PREFIX = "GRISTMILL_"
CONFIG_ENV = "GRISTMILL_CONFIG"
"""Names the YAML file when no ``--config`` flag does."""
RESERVED_ENV = frozenset({CONFIG_ENV})


class Section(BaseModel):
    """Base of every service's section: immutable, unknown keys refused, docstrings become descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


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


class Settings(BaseSettings, CommonConfig):
    """The whole tree. Built by :func:`settings_model`, which adds the sections of the installed services."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )
    yaml_values: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 (pydantic-settings passes it)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags and file come merged as ``init_settings``; only the environment is weaker."""
        del dotenv_settings, file_secret_settings
        return (init_settings, env_settings)

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


def load_settings(
    config_file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read the configuration.

    Args:
        config_file: YAML file; ``GRISTMILL_CONFIG`` names one when this is None.
        overrides: nested mapping of command-line flags, the strongest source.
        environ: environment to check for unknown keys, ``os.environ`` by default.

    Raises:
        ConfigError: unreadable file, unknown key or a value out of range; the message lists every problem.
    """
    env = os.environ if environ is None else environ
    model = settings_model()
    problems = list(_unknown_env(model, env))
    if problems:
        raise ConfigError("\n".join(problems))
    if config_file is None and env.get(CONFIG_ENV):
        config_file = Path(env[CONFIG_ENV])
    values = merge(_read_yaml(config_file) if config_file else {}, overrides or {})
    try:
        return model(**values)
    except ValidationError as error:
        source = f" (file {config_file})" if config_file else ""
        raise ConfigError(f"configuration{source}:\n" + "\n".join(_explain(model, error))) from error


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Turn ``--section.key=value`` and ``--key value`` flags into a nested mapping.

    Values are read as YAML scalars; dashes in keys stand for underscores; ``--flag`` alone means true.

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
        try:
            node[path[-1]] = yaml.safe_load(value) if value else ""
        except yaml.YAMLError as error:
            raise ConfigError(f"--{name}: {value!r} is not a value: {error}") from error
    return result


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of nested mappings, ``over`` winning."""
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        result[key] = merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return result


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: the top level must be a mapping of settings")
    return values


def _unknown_env(model: type[Settings], env: Mapping[str, str]) -> Iterator[str]:
    """Complaints about ``GRISTMILL_*`` variables that no setting answers to."""
    known = {name.upper(): name for name in EnvSettingsSource(model).settings_cls.model_fields}
    for variable in sorted(env):
        if not variable.startswith(ENV_PREFIX) or variable in RESERVED_ENV:
            continue
        head = variable[len(ENV_PREFIX) :].split("__")[0]
        if head not in known:
            near = difflib.get_close_matches(head, known, n=1)
            hint = f"; did you mean {ENV_PREFIX}{near[0]}?" if near else ""
            yield f"environment variable {variable}: no such setting{hint}"


def _explain(model: type[Settings], error: ValidationError) -> Iterator[str]:
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"])
        if item["type"] != "extra_forbidden":
            yield f"  {path}: {item['msg']} (got {_shown(item.get('input'))})"
            continue
        names = _names_at(model, item["loc"][:-1])
        near = difflib.get_close_matches(str(item["loc"][-1]), names, n=1)
        yield f"  {path}: no such setting" + (f"; did you mean {near[0]}?" if near else "")


def _shown(value: object) -> str:
    return "***" if isinstance(value, SecretStr) else repr(value)[:80]


def _names_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Field names of the section at ``path``, for suggestions."""
    current: type[BaseModel] | None = model
    for part in path:
        field = current.model_fields.get(str(part)) if current else None
        annotation = field.annotation if field else None
        current = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return list(current.model_fields) if current else []
