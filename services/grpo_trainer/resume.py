"""What a starting trainer finds: its newest checkpoint, and what the topics say happened since.

Three cases, told apart by the ``policies`` topic, which is never trimmed:

* the log goes on: the checkpoint is taken up, decisions published since are replayed, reading resumes at its offsets;
* the log is new (the topics were lost or made anew): weights and version are kept, the accounts begin again with the
  log, whose ordinals count from 1;
* the log is ahead of the newest checkpoint: the checkpoint is not this run's last one, and going on would publish
  other weights under versions that were already used. That is refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.errors import ConfigError
from gristmill.messages import PolicyVersion, Rejection
from gristmill.reader import read_all
from gristmill.topics import Topics
from grpo_trainer.checkpoint import Checkpoints, State, load_state


@dataclass(frozen=True, slots=True)
class Found:
    """The checkpoint to go on from, and the last record of the run in the log."""

    folder: Path | None
    state: State | None
    announced: PolicyVersion | None

    @property
    def log_is_new(self) -> bool:
        """There is a checkpoint, and the log has never heard of the run."""
        return self.state is not None and self.announced is None


def find(checkpoints: Checkpoints, common: CommonConfig, codec: Codec, topics: Topics) -> Found:
    """Look at the disk and at the log.

    Raises:
        ConfigError: the log is ahead of the newest checkpoint, or the checkpoint is another run's or damaged.
    """
    folder = checkpoints.newest()
    state = load_state(folder) if folder is not None else None
    run_id = common.run_id
    if state is not None and state.policy.run_id != run_id:
        raise ConfigError(f"checkpoint {folder} is of run {state.policy.run_id!r}, not of {run_id!r}")
    announced = last_policy(common, codec, topics)
    version = -1 if state is None else state.version
    if announced is not None and announced.version > version:
        have = "there is no checkpoint" if state is None else f"the newest checkpoint is of version {version}"
        raise ConfigError(
            f"run {run_id!r}: topic {topics.policies.name} has version {announced.version}, but {have} under "
            f"data_dir {common.data_dir}: restore the run's checkpoints there, or start a new run with another run_id"
        )
    return Found(folder, state, announced)


def last_policy(common: CommonConfig, codec: Codec, topics: Topics) -> PolicyVersion | None:
    """The newest version of the run in the log, with its largest credit."""
    best: PolicyVersion | None = None
    for record in read_all(common, codec, topics.policies, PolicyVersion):
        found = record.message
        if found is None or found.run_id != common.run_id:
            continue
        if best is None or (found.version, found.admit_until) >= (best.version, best.admit_until):
            best = found
    return best


def published_rejections(common: CommonConfig, codec: Codec, topics: Topics) -> Iterator[Rejection]:
    """Every rejection of the run in the log."""
    for record in read_all(common, codec, topics.rejections, Rejection):
        if record.message is not None and record.message.run_id == common.run_id:
            yield record.message


@contextmanager
def only_trainer(folder: Path) -> Iterator[None]:
    """Keep a second trainer of the same run out.

    Raises:
        ConfigError: one is running, or the folder cannot be written.
    """
    path = folder / "trainer.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"data_dir: cannot write {error.filename}: {error.strerror}; set another one") from error
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise ConfigError(f"{path}: another trainer of this run is running (pid {file.read().strip()})") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
