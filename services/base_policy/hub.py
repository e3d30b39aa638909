"""Base policies from the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from gristmill.errors import ConfigError, InfrastructureError, MissingExtra

_WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.bin")
_UNWANTED = ("original/*", "onnx/*", "openvino/*", "*.onnx", "training_args.bin", "optimizer.bin")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form ``owner/name`` or ``name``."""
    return _HUB_ID.fullmatch(name) is not None


def download(hub_id: str, revision: str | None) -> Path:
    """A local snapshot of a hub model (in the hub's own cache; offline when it is there already).

    Raises:
        ConfigError: the hub knows no such model or revision, or demands a login.
        InfrastructureError: the hub cannot be reached and the model is not in the cache.
        MissingExtra: `huggingface_hub` is not installed.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the policy {hub_id} of the hub", "policy", "huggingface_hub") from error
    try:
        return Path(
            snapshot_download(hub_id, revision=revision, allow_patterns=list(_WANTED), ignore_patterns=list(_UNWANTED))
        )
    except LocalEntryNotFoundError as error:
        raise InfrastructureError(
            f"policy {hub_id}: the Hugging Face hub cannot be reached and the model is not in its cache; "
            "connect, or give a local folder"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        at = f" at revision {revision}" if revision else ""
        raise ConfigError(
            f"policy {hub_id}: no such local folder, and the hub has no such model{at} (or it needs a login: "
            "set HF_TOKEN)"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise InfrastructureError(f"policy {hub_id}: the Hugging Face hub failed: {error}") from error
