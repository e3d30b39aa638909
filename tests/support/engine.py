"""An embedded engine in a thread, small random models and adapters, and the reference to compare with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import httpx
import torch

Kind = Literal["qwen2", "llama", "qwen3"]
ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
EOS = 1
TIMEOUT_S = 120
VOCAB = 320


def make_model(folder: Path, kind: Kind = "qwen2", *, hidden: int = 64, layers: int = 2, seed: int = 0) -> Path:
    """A random model with a byte-level tokenizer, all norms and biases off their defaults."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

    torch.manual_seed(seed)
    symbols = ["<pad>", "<eos>", "<bos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>").save_pretrained(folder)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.15,
        "eos_token_id": EOS,
        "bos_token_id": None,
        "pad_token_id": 0,
    }
    llama3 = {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    config = {
        "qwen2": lambda: Qwen2Config(tie_word_embeddings=True, **shape),
        "llama": lambda: LlamaConfig(tie_word_embeddings=False, rope_parameters=llama3, **shape),
        "qwen3": lambda: Qwen3Config(tie_word_embeddings=True, head_dim=24, **shape),
    }[kind]()
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return folder


def make_adapter(
    model: Path, folder: Path, *, r: int = 8, alpha: int = 16, targets: Sequence[str] = ALL_TARGETS, seed: int = 1,
    **settings: Any,
) -> Path:  # fmt: skip
    """A random adapter whose deltas change every logit."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(model)
    config = LoraConfig(r=r, lora_alpha=alpha, target_modules=list(targets), task_type="CAUSAL_LM", **settings)
    peft_model = get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if "lora_B" in name or "lora_magnitude" in name:
                parameter.normal_(0, 0.08)
    peft_model.save_pretrained(folder)
    return folder


def make_changed(model: Path, folder: Path) -> Path:
    """A checkpoint of the same shape and type whose weights all differ a little, with the same tokenizer.

    Little enough for a trained model to stay one: with a fifth of each tensor's spread as noise, SmolLM2-135M's
    logprobs differ by 0.2 between two implementations in bfloat16, with a twentieth by 0.05.
    """
    import shutil

    from safetensors import safe_open
    from safetensors.torch import save_file

    shutil.copytree(model, folder, dirs_exist_ok=True)
    for path in folder.glob("*.safetensors"):
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            metadata = file.metadata()
        generator = torch.Generator().manual_seed(5)
        for name, tensor in tensors.items():
            noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std().nan_to_num(0.1) * 0.05
            tensors[name] = (tensor.float() + noise).to(tensor.dtype)
        save_file(tensors, str(path), metadata=metadata)
    return folder


class Reference:
    """A fresh transformers (and PEFT) model: what the engine's numbers must equal."""

    def __init__(
        self, model: Path, adapter: Path | None = None, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        self._device = device
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
        if adapter is not None:
            self._model = PeftModel.from_pretrained(self._model, adapter).eval().to(dtype)
        self._model.to(device)

    def distributions(self, prompt: Sequence[int], output: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """Log-probabilities of all tokens at each position of the output [output, vocabulary]."""
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *output]], device=self._device)
            logits = self._model(ids).logits[0].float().cpu()
        return torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, dim=-1)

    def logprobs(self, prompt: Sequence[int], output: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each output token after all before it."""
        scaled = self.distributions(prompt, output, temperature)
        return [scaled[at, token].item() for at, token in enumerate(output)]

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The likeliest continuation."""
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(count):
                ids = torch.tensor([tokens], device=self._device)
                tokens.append(int(self._model(ids).logits[0, -1].argmax()))
        return tokens[len(prompt) :]


class RunningEngine:
    """A real server on a free port, in a thread of this process."""

    def __init__(self, model: Path, **settings: Any) -> None:
        # Here, not above: the contract suite runs where the embedded engine's libraries are not installed.
        from embedded_engine.config import EngineConfig
        from embedded_engine.server import EngineServer

        self.server = EngineServer(EngineConfig(model_path=str(model), port=0, threads=1, seed=7, **settings))
        self.url = self.server.url
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def __enter__(self) -> RunningEngine:
        self._thread.start()
        while not self.server.started and self._thread.is_alive():
            self._thread.join(0.01)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.server.should_exit = True
        self.server.engine.begin_stop()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the engine did not stop"

    def _run(self) -> None:
        try:
            asyncio.run(self.server.run_engine())
        except Exception as error:  # noqa: BLE001 (kept for the test to look at)
            self.failure = error


class Client:
    """The few calls that tests make, blocking; ``post`` and ``get`` return (status, decoded body)."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.http = httpx.Client(base_url=url, timeout=TIMEOUT_S, **settings)

    def post(self, path: str, /, **body: Any) -> tuple[int, Any]:
        return _decoded(self.http.post(path, json=body))

    def get(self, path: str, /, **query: Any) -> tuple[int, Any]:
        return _decoded(self.http.get(path, params=query))

    def generate(self, ids: Sequence[int], *, lora: str | None = None, rid: str | None = None, **params: Any) -> Any:
        """A generation that must succeed, with log-probabilities."""
        body: dict[str, Any] = {"input_ids": list(ids), "sampling_params": params, "return_logprob": True}
        if lora is not None:
            body["lora_path"] = lora
        if rid is not None:
            body["rid"] = rid
        status, answer = self.post("/generate", **body)
        assert status == 200, answer
        return answer


def _decoded(response: httpx.Response) -> tuple[int, Any]:
    if response.headers.get("content-type", "").startswith("application/json"):
        return response.status_code, response.json()
    return response.status_code, response.text
