from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from grpo_trainer.config import LoraSettings, TrainerConfig


def test_configuration_and_service_import_nothing_heavy() -> None:
    code = "import sys, grpo_trainer.service; print(sorted({'torch', 'trl', 'peft'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "values",
    [
        {"target_modules": ("q_proj", "o_proj")},
        {"target_modules": ("v_proj",)},
        {"target_modules": ()},
        {"target_modules": ("q_proj", "v_proj", "lm_head")},
        {"use_rslora": True},
    ],
)
def test_adapters_that_sglang_cannot_serve_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LoraSettings.model_validate(values)


def test_upper_clip_follows_the_loss() -> None:
    assert TrainerConfig().clip_high == 0.28
    assert TrainerConfig(loss_type="cispo").clip_high == 5.0
    assert TrainerConfig(loss_type="grpo").clip_high == 0.2
    assert TrainerConfig(loss_type="cispo", epsilon_high=2.0).clip_high == 2.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr_scheduler": "cosine"}, "max_versions"),
        ({"loss_type": "vespo", "correction": "sequence_mask"}, "vespo"),
        ({"correction_min": 3.0}, "above"),
    ],
)
def test_contradictions_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainerConfig.model_validate(values)
