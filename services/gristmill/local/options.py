"""What the user asked of the local runner, and the settings tree that follows from it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, SecretStr

from gristmill.broker import free_port
from gristmill.config import ENV_PREFIX, Section, Settings, load_settings, merge
from gristmill.errors import ConfigError
from gristmill.local.config import LocalConfig
from gristmill.local.delivery import agree, setting, source_secrets, source_values


@dataclass(frozen=True, slots=True)
class LineOptions:
    """Options of ``gristmill up`` and ``gristmill demo``."""

    policy: str = "tiny"
    """``tiny``, ``smollm2``, a local path or a hub id."""
    sources: tuple[str, ...] = ()
    """Problem sources, as ``problems.sources`` takes them; none leaves it to the profile."""
    engines: tuple[str, ...] = ()
    """URLs of running engines, or ``sglang`` alone to start it; none starts the embedded one."""
    gpus: tuple[str, ...] = ()
    """``ROLE=LIST``, the GPUs of a role."""
    share_gpu: bool = False
    """Let trainer and engine share a GPU."""
    bootstrap: str | None = None
    """A running cluster; None starts the embedded broker."""
    versions: int | None = None
    """Policy versions to train; None goes on until stopped."""
    hold_out: bool = False
    """Keep the sources' held-out problems out of training, to evaluate on them."""
    config_file: Path | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    """``--section.key=value`` settings."""


@dataclass(frozen=True, slots=True)
class ResolvedLine:
    """Settings of one local line and the values that its children read."""

    options: LineOptions
    settings: Settings
    values: dict[str, Any]
    """For a file; secrets are not among them."""
    secrets: dict[str, str] = field(default_factory=dict)
    """For the environment of children."""
    remarks: tuple[str, ...] = ()
    """What follows from the settings without having been said."""

    @property
    def bootstrap(self) -> str | None:
        """The cluster that the user named, by flag, file or environment; None for the embedded broker."""
        return self.settings.bootstrap if "bootstrap" in self.settings.model_fields_set else None

    @property
    def engines(self) -> tuple[str, ...]:
        """URLs of the engines that the user named; none for the embedded one."""
        return tuple(self.chosen("generator", "engines") or ())

    @property
    def engine_port(self) -> int | None:
        """Port that the user wants the embedded engine on."""
        return self.chosen("engine", "port") or None

    @property
    def verifiers(self) -> tuple[str, ...]:
        """Services that score: those named in ``local.verifiers``, else those that the sources need."""
        kinds = self.settings.section("local", LocalConfig).verifiers
        if kinds is None:
            sources = getattr(getattr(self.settings, "problems", None), "sources", ())
            kinds = tuple(getattr(source, "problem_kind", "math") for source in sources)
        return tuple(f"{kind}_verifier" for kind in sorted(set(kinds), reverse=True))

    def chosen(self, section: str, name: str) -> Any:
        """A setting of another package's section, None where only its default stands."""
        found = getattr(self.settings, section, None)
        return getattr(found, name) if isinstance(found, Section) and name in found.model_fields_set else None

    @property
    def run_dir(self) -> Path:
        return self.settings.data_dir.absolute() / "runs" / self.settings.run_id


def resolve(options: LineOptions, run_id: str) -> ResolvedLine:
    """Merge, rising in strength: the policy's profile, the environment, the file, the flags.

    The profile steps back wherever the environment sets the same key, since children read it from a file.

    Raises:
        ConfigError: an unknown key or a bad value in any of them.
    """
    user = _read(options.config_file)
    chosen = _chosen(options)
    flags = dict(options.flags)
    if "run_id" not in {**user, **flags} and f"{ENV_PREFIX}RUN_ID" not in os.environ:
        flags["run_id"] = run_id
    own = merge(merge(user, chosen), flags)
    profile = load_profile(options.policy, _engine(own))
    known = load_settings(None, merge(PLACEHOLDER, _over(profile, own)))
    agreement = agree(known)
    profile = merge(profile, agreement.values)
    if setting(known, "trainer.weights") == "full" or agreement.full:
        profile = merge(profile, full_profile(options.policy, _engine(own)))
    values = merge(_source_values(known, own), _over(profile, own))
    settings = load_settings(None, values)
    public, secrets = split_secrets(values, type(settings))
    line = ResolvedLine(options, settings, public, secrets | source_secrets(settings), agreement.remarks)
    _refuse_second_policy(line)
    _refuse_two_engines(line)
    return line


PLACEHOLDER = {"generator": {"weight_source": "http://127.0.0.1:1"}}
"""Stands in for an address that the runner finds, while it reads settings that cannot do without."""


def _chosen(options: LineOptions) -> dict[str, Any]:
    """The options as settings."""
    chosen: dict[str, Any] = {"problems": {}, "generator": {}, "local": {}}
    if options.sources:
        chosen["problems"]["sources"] = list(options.sources)
    if options.hold_out:
        chosen["problems"]["split"] = "train"
    if SGLANG in options.engines:
        if len(options.engines) > 1:
            raise ConfigError(
                f"--engine {SGLANG} starts SGLang here, and --engine URL names a running server: give one of the two"
            )
        chosen["local"]["engine"] = SGLANG
    elif options.engines:
        chosen["generator"]["engines"] = list(options.engines)
    gpus = read_gpus(options.gpus)
    if options.share_gpu:
        gpus["share"] = True
    if gpus:
        chosen["local"]["gpus"] = gpus
    if options.bootstrap is not None:
        chosen["bootstrap"] = options.bootstrap
    if options.versions is not None:
        chosen["trainer"] = {"max_versions": options.versions}
    return {name: value for name, value in chosen.items() if value != {}}


SGLANG = "sglang"
ROLES = ("trainer", "engine")


def read_gpus(texts: Sequence[str]) -> dict[str, Any]:
    """``trainer=0`` and ``engine=1,2`` as settings of ``local.gpus``.

    Raises:
        ConfigError: not of that form, an unknown role, or a role twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        role, equals, names = text.partition("=")
        if not equals or not names or role not in ROLES:
            raise ConfigError(f"--gpus {text}: give a role and its GPUs, as in --gpus trainer=0 --gpus engine=1,2")
        if role in found:
            raise ConfigError(f"--gpus {role} stands twice; list the GPUs of a role in one, as in {role}=1,2")
        found[role] = names
    return found


def _engine(own: Mapping[str, Any]) -> str:
    """Kind of engine that the user's settings name; checked only later."""
    local = own.get("local")
    named = local.get("engine") if isinstance(local, Mapping) else None
    return str(named or os.environ.get(f"{ENV_PREFIX}LOCAL__ENGINE") or "embedded")


def _over(profile: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return merge(_without_env(profile, os.environ), own)


def _source_values(known: Settings, own: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the weight source, which step back where the user set them."""
    generator = own.get("generator")
    told = isinstance(generator, Mapping) and "weight_source" in generator
    return source_values(known, free_port, told or bool(os.environ.get(f"{ENV_PREFIX}GENERATOR__WEIGHT_SOURCE")))


def _refuse_second_policy(line: ResolvedLine) -> None:
    """The runner gives one policy to trainer and engine; a setting that it would override is an error."""
    for section, name in (("trainer", "base_model"), ("engine", "model_path")):
        if line.chosen(section, name):
            raise ConfigError(
                f"{section}.{name} is set, but the local runner takes the policy of trainer and engine from --policy: "
                f"leave {section}.{name} out and say --policy {line.chosen(section, name)}"
            )


def _refuse_two_engines(line: ResolvedLine) -> None:
    if line.engines and line.settings.section("local", LocalConfig).engine == SGLANG:
        raise ConfigError(
            f"generator.engines names running servers ({', '.join(line.engines)}), and --engine {SGLANG} starts its "
            "own: leave one of the two out"
        )


def split_secrets(
    values: Mapping[str, Any], model: type[BaseModel], prefix: str = ENV_PREFIX
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values without the secrets among them, and these as environment variables."""
    public: dict[str, Any] = dict(values)
    secrets: dict[str, str] = {}
    for name, info in model.model_fields.items():
        value, variable = values.get(name), f"{prefix}{name.upper()}"
        kinds = (info.annotation, *get_args(info.annotation))
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if SecretStr in kinds and value is not None:
            secrets[variable] = str(public.pop(name))
        elif isinstance(value, Mapping) and inner is not None:
            public[name], found = split_secrets(value, inner, f"{variable}__")
            secrets |= found
    return public, secrets


def load_profile(policy: str, engine: str = "embedded") -> dict[str, Any]:
    """Settings that suit a policy on one machine: ``profiles/<policy>.yaml``; without one, ``sglang.yaml`` with that
    engine and ``default.yaml`` else."""
    return _profile(policy) or _profile("sglang" if engine == SGLANG else "default")


def full_profile(policy: str, engine: str) -> dict[str, Any]:
    """What is different when whole weights are trained under the profile of :func:`load_profile`."""
    return _profile("sglang-full") if engine == SGLANG and not _profile(policy) else {}


def _profile(name: str) -> dict[str, Any]:
    path = files("gristmill.local") / "profiles" / f"{name}.yaml"
    loaded = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    return loaded if isinstance(loaded, dict) else {}


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        named = os.environ.get(f"{ENV_PREFIX}CONFIG")
        if not named:
            return {}
        path = Path(named)
    load_settings(path, PLACEHOLDER)  # refuses unknown keys with the file's name
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    if loaded is not None and not isinstance(loaded, dict):
        raise ConfigError(f"{path}: the top level must be a mapping of settings")
    return loaded or {}


def _without_env(profile: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    result = deepcopy(profile)
    for name in environ:
        if not name.startswith(ENV_PREFIX):
            continue
        *parents, last = name[len(ENV_PREFIX) :].lower().split("__")
        node: Any = result
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(last, None)
    return result
