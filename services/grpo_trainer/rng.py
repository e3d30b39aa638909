"""The random state of a run, so that a resumed one draws what the uninterrupted one would have drawn."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

FILE = "rng.pt"


@dataclass(frozen=True, slots=True)
class RngState:
    """State of every generator that training may draw from."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...] = ()

    @classmethod
    def now(cls) -> RngState:
        """Take the present state."""
        name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else ()
        numpy_state = {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        }
        return cls(random.getstate(), numpy_state, torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Make this the present state."""
        version, internal, gauss = self.python
        random.setstate((version, tuple(internal), gauss))
        state = self.numpy
        keys = state["keys"].numpy().astype(np.uint32)
        np.random.set_state((state["name"], keys, state["position"], state["has_gauss"], state["cached"]))
        torch.set_rng_state(self.cpu)
        if self.cuda and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(list(self.cuda)[: torch.cuda.device_count()])

    def save(self, folder: Path) -> None:
        """Write into a checkpoint folder."""
        version, internal, gauss = self.python
        values = {"python": [version, list(internal), gauss], "numpy": self.numpy, "cpu": self.cpu}
        torch.save(values | {"cuda": list(self.cuda)}, folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> RngState:
        """Undo :meth:`save`."""
        values = torch.load(folder / FILE, weights_only=True)
        return cls(tuple(values["python"]), values["numpy"], values["cpu"], tuple(values["cuda"]))
