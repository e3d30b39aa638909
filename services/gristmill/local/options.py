"""What the user asked of the local runner, and the settings tree that follows from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from gristmill.config import ENV_PREFIX, Settings, load_settings, merge
from gristmill.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LineOptions:
    """Options of ``gristmill up`` and ``gristmill demo``."""

    policy: str = "tiny"
    """``tiny``, ``smollm2``, a local path or a hub id."""
    sources: tuple[str, ...] = ()
    """Problem sources, as ``problems.sources`` takes them; none leaves it to the profile."""
    engines: tuple[str, ...] = ()
    """URLs of running engines; none starts the embedded one."""
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

    @property
    def run_dir(self) -> Path:
        return self.settings.data_dir.absolute() / "runs" / self.settings.run_id


def resolve(options: LineOptions, run_id: str) -> ResolvedLine:
    """Merge, rising in strength: the policy's profile, the environment, the file, the flags.

    The profile steps back wherever the environment sets the same key, since children read it from a file.

    Raises:
        ConfigError: an unknown key or a bad value in any of them.
    """
    profile = _without_env(load_profile(options.policy), os.environ)
    user = _read(options.config_file)
    flags = dict(options.flags)
    chosen: dict[str, Any] = {"problems": {}}
    if options.sources:
        chosen["problems"]["sources"] = list(options.sources)
    if options.hold_out:
        chosen["problems"]["split"] = "train"
    if options.engines:
        chosen["generator"] = {"engines": list(options.engines)}
    if options.bootstrap is not None:
        chosen["bootstrap"] = options.bootstrap
    if options.versions is not None:
        chosen["trainer"] = {"max_versions": options.versions}
    values = merge(merge(merge(profile, user), chosen), flags)
    if "run_id" not in values and f"{ENV_PREFIX}RUN_ID" not in os.environ:
        values["run_id"] = run_id
    return ResolvedLine(options, load_settings(None, values), values)


def load_profile(policy: str) -> dict[str, Any]:
    """Settings that suit a policy on one machine: ``profiles/<policy>.yaml``, or ``profiles/default.yaml``."""
    folder = files("gristmill.local") / "profiles"
    path = folder / f"{policy}.yaml"
    text = (path if path.is_file() else folder / "default.yaml").read_text(encoding="utf-8")
    loaded = yaml.safe_load(text)
    return loaded if isinstance(loaded, dict) else {}


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        named = os.environ.get(f"{ENV_PREFIX}CONFIG")
        if not named:
            return {}
        path = Path(named)
    load_settings(path)  # refuses unknown keys with the file's name
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
