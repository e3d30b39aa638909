"""Checkpoints: weights, optimizer, random state, accounts and offsets, in one atomic step.

A checkpoint is a folder that appears whole, by rename, or not at all. It also holds the records that announce its
step, so that a trainer that dies before they are out publishes the very same ones when it resumes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gristmill.errors import ConfigError
from gristmill.messages import PolicyVersion, Rejection, TrainingStep
from grpo_trainer.account import Account
from grpo_trainer.files import fsync_tree, replace_dir

STATE = "state.json"
FORMAT = 2


@dataclass(frozen=True, slots=True)
class State:
    """Everything of a checkpoint but the tensors."""

    account: Account
    read_from: dict[int, int]
    """Offset by partition to read from, so that every unsettled group is seen whole."""
    seen_until: dict[int, int]
    """Offset by partition up to which records had been read."""
    temperature: float | None
    policy: PolicyVersion
    step: TrainingStep | None
    rejections: tuple[Rejection, ...]
    """Decided and not known to be published."""

    @property
    def version(self) -> int:
        return self.policy.version


class Checkpoints:
    """The checkpoints of one run, in one folder, named ``<version>-<serial>``."""

    def __init__(self, folder: Path, kept: int) -> None:
        self._folder = folder
        self._kept = kept
        folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> Path | None:
        """Folder of the newest complete checkpoint."""
        return self._all()[-1] if self._all() else None

    def write_tensors(self, write: Callable[[Path], None]) -> Path:
        """Begin a checkpoint: ``write`` puts the tensors into the folder that is returned, and they are flushed."""
        temporary = self._folder / ".writing"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write(temporary)
        fsync_tree(temporary)
        return temporary

    def complete(self, temporary: Path, state: State) -> Path:
        """Finish a checkpoint: from here on it is the one to resume from."""
        (temporary / STATE).write_bytes(encode_state(state))
        fsync_tree(temporary)
        serial = 1 + max((serial_of(p) for p in self._all() if version_of(p) == state.version), default=0)
        target = self._folder / f"{state.version:08d}-{serial:04d}"
        replace_dir(temporary, target)
        for old in self._all()[: -self._kept]:
            shutil.rmtree(old)
        return target

    def _all(self) -> list[Path]:
        found = [path for path in self._folder.iterdir() if not path.name.startswith(".") and (path / STATE).is_file()]
        return sorted(found, key=lambda path: (version_of(path), serial_of(path)))


def version_of(folder: Path) -> int:
    """Policy version of a checkpoint folder."""
    return int(folder.name.partition("-")[0])


def serial_of(folder: Path) -> int:
    """Which of the checkpoints of one version it is."""
    return int(folder.name.partition("-")[2] or 0)


def encode_state(state: State) -> bytes:
    """State as JSON."""
    return msgspec.json.encode(
        {
            "format": FORMAT,
            "account": state.account.to_json(),
            "read_from": {str(p): offset for p, offset in state.read_from.items()},
            "seen_until": {str(p): offset for p, offset in state.seen_until.items()},
            "temperature": state.temperature,
            "policy": state.policy,
            "step": state.step,
            "rejections": state.rejections,
        }
    )


def load_state(folder: Path) -> State:
    """Read the state of a checkpoint.

    Raises:
        ConfigError: it is damaged, or of another release.
    """
    path = folder / STATE
    try:
        values: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        if values["format"] != FORMAT:
            raise ConfigError(f"{path}: format {values['format']}, this release reads {FORMAT}")
        return State(
            account=Account.from_json(values["account"]),
            read_from={int(p): int(offset) for p, offset in values["read_from"].items()},
            seen_until={int(p): int(offset) for p, offset in values["seen_until"].items()},
            temperature=values["temperature"],
            policy=msgspec.convert(values["policy"], PolicyVersion),
            step=msgspec.convert(values["step"], TrainingStep | None),
            rejections=msgspec.convert(values["rejections"], tuple[Rejection, ...]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"checkpoint {path} cannot be read: {type(error).__name__}: {error}") from error
