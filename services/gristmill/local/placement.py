"""Who gets which GPU: from what is visible and what is wished to one assignment, or a refusal that says why.

Pure: :mod:`gristmill.local.gpus` asks the machine. GPUs are named to processes by index in the order of the PCI bus,
since SGLang reads CUDA_VISIBLE_DEVICES as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gristmill.errors import ConfigError

MOST_MEMORY = 0.95
"""Largest sum of memory fractions on a shared GPU: CUDA contexts and graphs need the rest."""
SHARED_FRACTION = 0.45
"""Fraction of each role on a shared GPU when none is given."""
BESIDE_EMBEDDED = 0.3
"""Fraction of a trainer that shares its GPU with the embedded engine, whose cache takes 60 % of what is free."""

Engine = Literal["sglang", "embedded", "running"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as nvidia-smi lists it."""

    index: int
    uuid: str
    name: str
    memory_mib: int

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user wants, and what the settings imply."""

    engine_kind: Engine
    """``running``: the engines are the user's own, and none of our business."""
    trainer: tuple[str, ...] | None = None
    engine: tuple[str, ...] | None = None
    share: bool = False
    tp: int = 1
    """GPUs of one SGLang server."""
    trainer_on_cpu: bool = False
    engine_on_cpu: bool = False
    same_view: bool = False
    """Trainer and engines must see each other's GPUs (CUDA IPC)."""
    engine_fraction: float | None = None
    trainer_fraction: float | None = None

    @property
    def group(self) -> int:
        """GPUs of one engine."""
        return self.tp if self.engine_kind == "sglang" else 1

    @property
    def none(self) -> bool:
        """Whether no GPU is asked for, so that every process may look for itself."""
        return self.trainer is None and self.engine is None and not self.share


@dataclass(frozen=True, slots=True)
class Seat:
    """GPUs of one process among those that it sees."""

    gpus: tuple[Gpu, ...]
    visible: tuple[Gpu, ...]

    @property
    def first(self) -> int:
        """Place of its first GPU among those that it sees."""
        return self.visible.index(self.gpus[0])

    @property
    def env(self) -> dict[str, str]:
        """Environment that makes the process see just these."""
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in self.visible),
        }


@dataclass(frozen=True, slots=True)
class Placement:
    """Who sits where. A role without a seat is not placed: it runs on the CPU, or is not ours to place."""

    trainer: Seat | None
    engines: tuple[Seat, ...]
    engine_fraction: float | None
    trainer_fraction: float | None
    remarks: tuple[str, ...] = ()

    @property
    def shared(self) -> tuple[Gpu, ...]:
        """GPUs that the trainer and an engine both use."""
        mine = self.trainer.gpus if self.trainer else ()
        return tuple(gpu for seat in self.engines for gpu in seat.gpus if gpu in mine)

    def describe(self) -> list[str]:
        """Lines for people."""
        lines = [f"{', '.join(map(str, self.trainer.gpus))}: trainer"] if self.trainer else []
        for number, seat in enumerate(self.engines):
            label = "engine" if len(self.engines) == 1 else f"engine {number}"
            lines.append(f"{', '.join(map(str, seat.gpus))}: {label}")
        return [*lines, *self.remarks]


def parse_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """GPUs from the CSV of ``nvidia-smi --query-gpu=index,uuid,name,memory.total``; units and header left out."""
    gpus = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) < 4 or not parts[0].isdigit():
            continue
        memory = parts[-1]  # not a number where memory is the host's own
        gpus.append(Gpu(int(parts[0]), parts[1], ", ".join(parts[2:-1]), int(memory) if memory.isdigit() else 0))
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def only_visible(gpus: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """Those of the GPUs that CUDA_VISIBLE_DEVICES lets through, in its order; it ends at the first unknown entry."""
    if variable is None:
        return tuple(gpus)
    seen: list[Gpu] = []
    for item in variable.split(","):
        found = find(gpus, item.strip())
        if found is None:
            break
        if found not in seen:
            seen.append(found)
    return tuple(seen)


def find(gpus: Sequence[Gpu], name: str) -> Gpu | None:
    """The GPU with this index, UUID, or unambiguous beginning of a UUID."""
    if name.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(name)), None)
    matches = [gpu for gpu in gpus if name and gpu.uuid.lower().startswith(name.lower())]
    return matches[0] if len(matches) == 1 else None


def place(gpus: Sequence[Gpu], wishes: Wishes, hidden: str = "") -> Placement | None:
    """Assign the visible GPUs; None when nothing is to be placed and every process may look for itself.

    Args:
        gpus: the visible ones, in their order.
        wishes: what is wanted.
        hidden: why there are no others, for messages.

    Raises:
        ConfigError: a wish cannot be met; the message says what can.
    """
    _check_roles(wishes)
    trainer_wish = _named(gpus, wishes.trainer, "trainer", hidden)
    engine_wish = _named(gpus, wishes.engine, "engine", hidden)
    if wishes.engine_kind == "sglang" and not gpus:
        raise ConfigError(
            f"--engine sglang needs a GPU, and none is visible{hidden}; leave --engine out for the embedded engine, "
            "which runs on a CPU, or name a running server by its URL"
        )
    if not gpus or (wishes.engine_kind == "running" and trainer_wish is None):
        return None
    if wishes.engine_kind == "embedded" and wishes.none and (wishes.engine_on_cpu or len(gpus) == 1):
        return None  # with one GPU the embedded engine and the trainer share it, as small policies may
    trainer = _trainer(gpus, wishes, trainer_wish, engine_wish)
    engines = _engines(gpus, wishes, trainer, engine_wish)
    placed = {gpu.index for gpu in engines}
    shared = trainer is not None and trainer.index in placed
    if trainer is not None and shared and not wishes.share:
        raise ConfigError(_overlap(gpus, trainer, wishes))
    engine_fraction, trainer_fraction, remarks = _fractions(wishes, shared)
    left = [str(gpu) for gpu in gpus if gpu.index not in placed and gpu != trainer]
    if left:
        remarks = (*remarks, f"not used: {', '.join(left)}")
    together = list(engines)
    if trainer is not None and trainer not in together:
        together.insert(0, trainer)
    groups = [tuple(engines[i : i + wishes.group]) for i in range(0, len(engines), wishes.group)]

    def seat(mine: tuple[Gpu, ...]) -> Seat:
        return Seat(mine, tuple(together) if wishes.same_view else mine)

    return Placement(
        trainer=seat((trainer,)) if trainer is not None else None,
        engines=tuple(seat(group) for group in groups),
        engine_fraction=engine_fraction,
        trainer_fraction=trainer_fraction,
        remarks=remarks,
    )


def _check_roles(wishes: Wishes) -> None:
    if wishes.trainer is not None and wishes.trainer_on_cpu:
        raise ConfigError("--gpus trainer: trainer.device is cpu; leave one of the two out")
    if wishes.engine is not None and wishes.engine_kind == "running":
        raise ConfigError("--gpus engine: engines that are named by URL run already, where whoever started them chose")
    if wishes.engine is not None and wishes.engine_on_cpu:
        raise ConfigError("--gpus engine: engine.device is cpu; leave one of the two out")
    if wishes.trainer is not None and len(wishes.trainer) > 1:
        raise ConfigError(f"--gpus trainer={','.join(wishes.trainer)}: the trainer uses one GPU")
    if wishes.engine is not None and wishes.engine_kind == "embedded" and len(wishes.engine) > 1:
        raise ConfigError(
            f"--gpus engine={','.join(wishes.engine)}: the embedded engine uses one GPU; --engine sglang starts a "
            "server for each"
        )


def _named(gpus: Sequence[Gpu], names: tuple[str, ...] | None, role: str, hidden: str) -> list[Gpu] | None:
    """The GPUs that a role is given by name."""
    if names is None:
        return None
    wanted: list[Gpu] = []
    for name in names:
        gpu = find(gpus, name)
        if gpu is None:
            known = ", ".join(str(item) for item in gpus) or "none"
            raise ConfigError(f"--gpus {role}: no GPU {name!r} is visible; visible: {known}{hidden}")
        if gpu in wanted:
            raise ConfigError(f"--gpus {role}: {gpu} is listed twice")
        wanted.append(gpu)
    return wanted


def _trainer(gpus: Sequence[Gpu], wishes: Wishes, wanted: list[Gpu] | None, engine: list[Gpu] | None) -> Gpu | None:
    if wishes.trainer_on_cpu:
        return None
    if wanted is not None:
        return wanted[0]
    free = [gpu for gpu in gpus if gpu not in (engine or ())]
    return (free or list(engine or gpus))[0]


def _engines(gpus: Sequence[Gpu], wishes: Wishes, trainer: Gpu | None, wanted: list[Gpu] | None) -> list[Gpu]:
    """GPUs of all engines, a whole number of groups."""
    if wishes.engine_kind == "running" or wishes.engine_on_cpu:
        return []
    tp = wishes.group
    if wanted is not None:
        if len(wanted) % tp:
            raise ConfigError(
                f"--gpus engine: {len(wanted)} GPU{'s' * (len(wanted) > 1)} cannot be dealt out in groups of "
                f"local.sglang.tp = {tp}"
            )
        return wanted
    rest = [gpu for gpu in gpus if gpu != trainer]
    if len(rest) < tp and len(gpus) >= tp:
        rest = list(gpus)  # only by sharing, which is checked by the caller
    if len(rest) < tp:
        raise ConfigError(f"local.sglang.tp = {tp} needs {tp} GPUs, and {len(gpus)} can be seen")
    return rest[:1] if wishes.engine_kind == "embedded" else rest[: len(rest) // tp * tp]


def _overlap(gpus: Sequence[Gpu], trainer: Gpu, wishes: Wishes) -> str:
    if wishes.trainer is None and wishes.engine is None and len(gpus) == 1:
        start = f"{trainer} is the only one visible, and the trainer and the engine would share it"
    else:
        start = f"{trainer} would be shared by the trainer and an engine"
    return (
        f"{start}; say --share-gpu to let them (each then gets a share of its memory), or give each its own with "
        "--gpus trainer=… --gpus engine=…"
    )


def _fractions(wishes: Wishes, shared: bool) -> tuple[float | None, float | None, tuple[str, ...]]:
    """Memory fractions of engine and trainer, and what to say about them.

    Raises:
        ConfigError: one of them is missing, or they exceed a GPU.
    """
    engine, trainer = wishes.engine_fraction, wishes.trainer_fraction
    if not shared:
        return engine, trainer, ()
    if wishes.engine_kind == "embedded":
        if trainer is not None:
            return engine, trainer, ()
        said = f"on the shared GPU the trainer gets {BESIDE_EMBEDDED:.0%} of the memory (trainer.gpu_memory_fraction)"
        return engine, BESIDE_EMBEDDED, (said,)
    if engine is None and trainer is None:
        said = (
            f"on the shared GPU engine and trainer get {SHARED_FRACTION:.0%} of the memory each "
            "(local.sglang.mem_fraction, trainer.gpu_memory_fraction)"
        )
        return SHARED_FRACTION, SHARED_FRACTION, (said,)
    if engine is None or trainer is None:
        given, missing = "local.sglang.mem_fraction", "trainer.gpu_memory_fraction"
        if engine is None:
            given, missing = missing, given
        raise ConfigError(f"trainer and engine share a GPU: {given} is set, so set {missing}, too, or neither")
    if engine + trainer > MOST_MEMORY + 1e-9:
        raise ConfigError(
            f"trainer and engine share a GPU: local.sglang.mem_fraction {engine:g} and trainer.gpu_memory_fraction "
            f"{trainer:g} make {engine + trainer:g} of its memory, more than {MOST_MEMORY:g}"
        )
    return engine, trainer, ()
