from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_trainer.advantages import EPSILON, advantages, has_variance

rewards = st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=8)


@given(st.lists(rewards, min_size=1, max_size=5), st.sampled_from(["group", "batch", "none"]))
def test_every_group_is_centred(groups: list[list[float]], scale: str) -> None:
    result = advantages(groups, scale)  # type: ignore[arg-type]
    assert [len(values) for values in result] == [len(group) for group in groups]
    for values, group in zip(result, groups, strict=True):
        assert values.dtype == np.float32
        assert abs(float(values.astype(np.float64).sum())) < 1e-3
        assert np.all(np.sign(values[values != 0]) == np.sign((np.array(group) - np.mean(group))[values != 0]))


def test_scales_as_trl_does() -> None:
    torch = pytest.importorskip("torch")
    groups = [[1.0, 0.0, 0.0, 1.0], [0.2, 0.9, 0.4, 0.4]]
    flat = torch.tensor(groups)
    centred = flat - flat.mean(1, keepdim=True)
    expected = {
        "group": centred / (flat.std(1, keepdim=True) + EPSILON),
        "batch": centred / (flat.std() + EPSILON),
        "none": centred,
    }
    for scale, values in expected.items():
        found = np.stack(advantages(groups, scale))  # type: ignore[arg-type]
        np.testing.assert_allclose(found, values.numpy(), rtol=1e-5)


def test_variance_is_about_rewards_not_their_mean() -> None:
    assert not has_variance([0.5, 0.5, 0.5])
    assert not has_variance([1.0])
    assert has_variance([0.0, 1.0])
    assert has_variance([0.3, 0.3, 0.31])
