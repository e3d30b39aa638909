"""Advantages of a batch of groups, as TRL computes them, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Scale: TypeAlias = Literal["group", "batch", "none"]

EPSILON = 1e-4
"""Added to the standard deviation before dividing, as in TRL."""
EQUAL_WITHIN = 1e-8
"""Rewards closer than this count as equal."""


def has_variance(rewards: Sequence[float]) -> bool:
    """Whether any reward differs from another, so that the group has something to teach."""
    return len(rewards) > 1 and max(rewards) - min(rewards) > EQUAL_WITHIN


def advantages(groups: Sequence[Sequence[float]], scale: Scale) -> list[npt.NDArray[np.float32]]:
    """Advantage of every sample, group by group.

    The mean of the sample's own group is taken off; the result is divided by the standard deviation (n - 1) of the
    group or of the whole batch, or by nothing.

    Args:
        groups: rewards of each group; each has at least one.
        scale: what to divide by.

    Returns:
        One ``float32[n]`` array per group, in order.
    """
    centred = [np.asarray(rewards, dtype=np.float64) - np.mean(rewards) for rewards in groups]
    if scale == "group":
        centred = [values / (_spread(values) + EPSILON) for values in centred]
    elif scale == "batch":
        everything = np.concatenate([np.asarray(rewards, dtype=np.float64) for rewards in groups])
        spread = _spread(everything)
        centred = [values / (spread + EPSILON) for values in centred]
    return [values.astype(np.float32) for values in centred]


def _spread(values: npt.NDArray[np.float64]) -> float:
    return float(np.std(values, ddof=1)) if values.size > 1 else 0.0
