"""Sandboxes whose verifier is gone.

A killed verifier leaves none running as long as the engine runs. One whose machine or engine went down with it may, and
a container that was created and not yet started when its verifier was killed stays in that state. Every pool begins
with this collection.
Only containers with this package's label are looked at, and only those whose owner is known to be dead are removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from code_verifier.container import OWNER_LABEL, ROLE_LABEL, SANDBOX_LABEL, owner_state, remove_container
from code_verifier.engine import Engine


@dataclass(frozen=True, slots=True)
class Found:
    """A container of a sandbox.

    Attributes:
        id: Docker's.
        role: which of the two.
        owner: label of the verifier that made it.
        owner_state: whether that one lives; ``unknown`` on another machine.
        state: Docker's word: created, running, exited, ...
        removed: whether it was removed.
    """

    id: str
    role: str
    owner: str
    owner_state: Literal["alive", "dead", "unknown"]
    state: str
    removed: bool


def collect(engine: Engine, *, unknown: bool = False, dry_run: bool = False) -> list[Found]:
    """Remove the containers of dead owners.

    Args:
        engine: where to look.
        unknown: also remove those whose owner cannot be looked up from here.
        dry_run: only say what would be removed.

    Raises:
        EngineAway: the engine is.
    """
    with engine.calls() as api:
        listed = api.containers(all=True, filters={"label": f"{SANDBOX_LABEL}=1"})
    found = []
    for entry in listed:
        labels = entry.get("Labels") or {}
        owner = labels.get(OWNER_LABEL, "")
        state = owner_state(owner)
        doomed = state == "dead" or (unknown and state == "unknown")
        if doomed and not dry_run:
            remove_container(engine, entry["Id"])
        found.append(Found(entry["Id"], labels.get(ROLE_LABEL, "?"), owner, state, str(entry.get("State")), doomed))
    return found
