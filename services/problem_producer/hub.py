"""Rows of datasets on the Hugging Face hub (extra ``hub``)."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from gristmill.errors import ConfigError, InfrastructureError, MissingExtra
from problem_producer.config import SourceConfig
from problem_producer.items import Row
from problem_producer.rows import canonical_json


class HubDataset(NamedTuple):
    """Where a public dataset lies."""

    id: str
    config: str | None
    split: str


KNOWN = {
    "gsm8k": HubDataset("openai/gsm8k", "main", "train"),
    "math500": HubDataset("HuggingFaceH4/MATH-500", None, "test"),
    "aime": HubDataset("HuggingFaceH4/aime_2024", None, "train"),
    "humaneval": HubDataset("openai/openai_humaneval", None, "test"),
    "mbpp": HubDataset("google-research-datasets/mbpp", "full", "train"),
}


def locate(source: SourceConfig) -> HubDataset:
    """The dataset that a source names, with what is known of it filled in."""
    known = KNOWN.get(source.kind)
    if known is None or source.hub_id is not None:
        return HubDataset(source.hub_id or "", source.hub_config, source.subset or "train")
    return HubDataset(known.id, source.hub_config or known.config, source.subset or known.split)


class HubRows:
    """A split of a hub dataset, kept by `datasets` as memory-mapped Arrow; rows are counted from 1."""

    unit = "row"

    def __init__(self, source: SourceConfig) -> None:
        """Download the split, or take it from the hub's cache.

        Raises:
            MissingExtra: `datasets` is not installed.
            ConfigError: no such dataset, configuration, split or revision, or access is refused.
            InfrastructureError: the hub cannot be reached and the cache does not hold the split.
        """
        where = locate(source)
        self.label = "hf:" + "/".join(part for part in (where.id, where.config, where.split) if part)
        self._data: Any = _load(where, source.hub_revision, self.label)
        # The content, not the library's fingerprint, which changes between its releases.
        sha = hashlib.sha256()
        for index in range(len(self._data)):
            sha.update(self.raw(index))
        self.digest = sha.hexdigest()

    def __len__(self) -> int:
        return len(self._data)

    def line(self, index: int) -> int:
        return index + 1

    def raw(self, index: int) -> bytes:
        return canonical_json(self.row(index))

    def row(self, index: int) -> Row:
        row: Row = self._data[index]
        return row


def _load(where: HubDataset, revision: str | None, label: str) -> Any:
    try:
        import datasets
        from datasets.exceptions import DatasetNotFoundError
        from huggingface_hub.errors import HfHubHTTPError
    except ModuleNotFoundError as error:
        raise MissingExtra(f"source {label}", "hub", error.name or "datasets") from error
    instead = "download a file by other means and name it, as in gsm8k:train.jsonl"
    try:
        return datasets.load_dataset(where.id, where.config, split=where.split, revision=revision)
    except DatasetNotFoundError as error:
        raise ConfigError(f"{label}: {error}") from error
    except ValueError as error:  # an unknown configuration or split; offline, also what the cache lacks
        raise ConfigError(f"{label}: {error}") from error
    except (HfHubHTTPError, ConnectionError, OSError) as error:
        raise InfrastructureError(f"{label}: cannot fetch from the Hugging Face hub ({error}); {instead}") from error
