from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from gristmill.errors import ConfigError
from grpo_trainer.config import LoraSettings, TrainerConfig
from grpo_trainer.gpu import ALLOCATOR, claim_gpu, spare_memory


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
        ({"weight_source": {"enabled": True}}, "needs weights full"),
        ({"weights": "full", "weight_source": {"enabled": True, "host": "0.0.0.0"}}, "advertise"),
        ({"device": "cuda:"}, "device"),
        ({"device": "gpu"}, "device"),
        ({"gpu_memory_fraction": 0.0}, "gpu_memory_fraction"),
        ({"gpu_memory_fraction": 1.1}, "gpu_memory_fraction"),
    ],
)
def test_contradictions_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainerConfig.model_validate(values)


@pytest.mark.parametrize(
    ("device", "before", "after"),
    [
        ("auto", None, "0"),
        ("cuda", None, "0"),
        ("cuda:3", None, "3"),
        ("cuda:1", "4,6", "6"),
        ("cuda", "GPU-a, GPU-b", "GPU-a"),
        ("cpu", None, None),
        ("cpu", "4,6", "4,6"),
        ("auto", "", ""),
    ],
)
def test_the_trainer_sees_one_gpu(device: str, before: str | None, after: str | None) -> None:
    assert TrainerConfig(device=device).device == device
    environ = {} if before is None else {"CUDA_VISIBLE_DEVICES": before}
    claim_gpu(device, environ)
    assert environ.get("CUDA_VISIBLE_DEVICES") == after


def test_a_gpu_that_is_not_visible_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cuda:2, but CUDA_VISIBLE_DEVICES='4,6' shows 2 GPUs"):
        claim_gpu("cuda:2", {"CUDA_VISIBLE_DEVICES": "4,6"})


def test_the_users_allocator_stays() -> None:
    environ: dict[str, str] = {}
    spare_memory(environ)
    assert environ == {ALLOCATOR: "expandable_segments:True"}
    spare_memory(environ := {ALLOCATOR: "max_split_size_mb:512"})
    assert environ == {ALLOCATOR: "max_split_size_mb:512"}
