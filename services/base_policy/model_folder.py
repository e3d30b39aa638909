"""What makes a folder a usable base policy; checked without loading the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gristmill.errors import ConfigError

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")


def check_model_folder(folder: Path) -> None:
    """Demand `config.json` of a causal language model, a tokenizer, and all the weight files.

    Raises:
        ConfigError: the folder or a part of it is missing or unreadable; the message names it.
    """
    if not folder.is_dir():
        raise ConfigError(f"policy {folder}: no such folder")
    config = _read(folder / "config.json", "the model's configuration")
    names = config.get("architectures") or []
    if names and not any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise ConfigError(
            f"policy {folder}: config.json says {', '.join(map(str, names))}, which is no causal language model"
        )
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ConfigError(f"policy {folder}: no tokenizer; one of {', '.join(_TOKENIZERS)} must be there")
    if any((folder / name).is_file() for name in _SINGLE):
        return
    for name in _SINGLE:
        index = folder / f"{name}.index.json"
        if index.is_file():
            wanted = set(_read(index, "the list of weight files").get("weight_map", {}).values())
            missing = sorted(part for part in wanted if not (folder / part).is_file())
            if missing or not wanted:
                raise ConfigError(f"policy {folder}: weight files are missing: {', '.join(missing) or 'all'}")
            return
    raise ConfigError(f"policy {folder}: no weights; {' or '.join(_SINGLE)} (or its parts and index) must be there")


def has_chat_template(folder: Path) -> bool:
    """Whether the folder's tokenizer can render chat messages."""
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.is_file() and bool(_read(settings, "the tokenizer's settings").get("chat_template"))


def _read(path: Path, what: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"policy {path.parent}: cannot read {path.name}, {what}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"policy {path.parent}: {path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"policy {path.parent}: {path.name} is not a JSON object")
    return value
