"""Loading the policy, and saving it as engines read it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, get_scheduler

from gristmill.artifacts import digest_dir
from gristmill.errors import ConfigError
from grpo_trainer.config import TrainerConfig
from grpo_trainer.files import fsync_tree, replace_dir
from grpo_trainer.phases import Phases
from grpo_trainer.tensorfile import layout_of, read_layout, saved_dtype, write_file

MODEL = "model.safetensors"
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.pt"
SCHEDULE = "schedule.pt"


@dataclass(slots=True)
class Policy:
    """The model under training with everything that a step changes in it."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LambdaLR
    reference: Any | None
    base_model: str
    kind: str
    dtype: torch.dtype
    device: torch.device

    @property
    def autocast(self) -> bool:
        """Whether forward passes run in bfloat16 over float32 weights."""
        return bool(self.dtype == torch.bfloat16)

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self.model.get_input_embeddings().weight.size(0))

    def trained(self) -> dict[str, torch.Tensor]:
        """Trained tensors by name, each once."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights by the name that they are published under, as they are in training; tied ones once."""
        found: dict[str, torch.Tensor] = {}
        seen: set[tuple[int, torch.Size]] = set()
        for name, tensor in self.model.state_dict().items():
            place = (tensor.data_ptr(), tensor.shape)
            if tensor.numel() and place not in seen:
                seen.add(place)
                found[name] = tensor
        return found

    def save_trained(self, folder: Path, version: int, *, moments_from: Path | None = None) -> bool:
        """Write trained weights, schedule and the optimizer's moments of ``version`` into ``folder``.

        Args:
            moments_from: an older checkpoint whose moments are linked to instead; they are most of the bytes.

        Returns:
            Whether the moments are those of ``version``.
        """
        write_file(folder / WEIGHTS, self.trained())
        torch.save(self.scheduler.state_dict(), folder / SCHEDULE)
        if moments_from is not None and link(moments_from / OPTIMIZER, folder / OPTIMIZER):
            return False
        with without_checksums():
            torch.save({"version": version, "optimizer": self.optimizer.state_dict()}, folder / OPTIMIZER)
        return True

    def load_trained(self, folder: Path) -> int:
        """Undo :meth:`save_trained`; the version that the moments are of.

        Raises:
            ConfigError: the checkpoint is of another model or adapter shape.
        """
        tensors = load_file(str(folder / WEIGHTS))
        own = self.trained()
        differing = set(own) ^ set(tensors) or {n for n in own if own[n].shape != tensors[n].shape}
        if differing:
            raise ConfigError(
                f"checkpoint {folder} does not fit the configured model: {sorted(differing)[0]} and "
                f"{len(differing) - 1} more tensors differ; keep base_model, weights and lora as they were in this "
                "run, or use a new run_id"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])
        # Into CPU memory: the optimizer moves to the GPU what it wants there.
        states = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
        self.optimizer.load_state_dict(states["optimizer"])
        self.scheduler.load_state_dict(torch.load(folder / SCHEDULE, weights_only=True))
        return int(states["version"])

    def publish_to(self, folder: Path, phases: Phases | None = None, *, like: Path | None = None) -> str:
        """Save what engines load, durably: under a temporary name first, then renamed to ``folder``.

        Args:
            like: artifact of an earlier version, made by the same run. All but the weights is taken from it.

        Returns:
            The digest of the folder, taken while the disk is still writing.
        """
        phases = phases or Phases()
        temporary = folder.with_name(f".{folder.name}.tmp")
        with phases.measure("save"):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            if self.kind == "lora":
                save_adapter(self.model, temporary, self.base_model)
            elif like is not None and self.resembles(like):
                shutil.copytree(like, temporary, ignore=shutil.ignore_patterns(MODEL), dirs_exist_ok=True)
                write_file(temporary / MODEL, self.weights(), self.dtype)
            else:
                state = {name: tensor.to(saved_dtype(tensor, self.dtype)) for name, tensor in self.weights().items()}
                self.model.save_pretrained(str(temporary), state_dict=state)
                set_dtype(temporary / "config.json", self.dtype)
                self.tokenizer.save_pretrained(str(temporary))
        with ThreadPoolExecutor(1) as pool:
            flushed = pool.submit(flush, temporary, phases)
            with phases.measure("hash"):
                digest = digest_dir(temporary)
            flushed.result()
        replace_dir(temporary, folder)
        return digest

    def resembles(self, folder: Path) -> bool:
        """Whether an artifact has our weights in one file, under our names: some models are renamed when saved."""
        return (folder / MODEL).is_file() and read_layout(folder) == layout_of(self.weights(), self.dtype)


def load_policy(config: TrainerConfig) -> Policy:
    """Load the base model, put the adapter on, and make optimizer and scheduler.

    Raises:
        ConfigError: no model, one that cannot be loaded, or a device that is not there.
    """
    if config.base_model is None:
        raise ConfigError("trainer.base_model is not set: name the folder or hub id of the model to train")
    device, dtype = choose_device(config)
    if device.type == "cuda" and config.gpu_memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(config.gpu_memory_fraction, device)
    avoid_cudnn_attention()
    full = config.weights == "full"
    torch.manual_seed(config.seed)
    tokenizer = load_tokenizer(config.base_model)
    model = load_base(config.base_model, torch.float32 if full else dtype).to(device)
    reference = None
    if full:
        if config.beta:
            reference = load_base(config.base_model, dtype).to(device).requires_grad_(False).eval()
    else:
        model = add_adapter(model, config)
    if config.gradient_checkpointing and not full:
        model.enable_input_require_grads()
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        weight_decay=config.weight_decay,
        fused=device.type == "cuda",  # in place: the other way needs the weights' memory once more
    )
    scheduler = get_scheduler(
        config.lr_scheduler,
        optimizer,
        num_warmup_steps=config.warmup_steps,
        num_training_steps=config.max_versions,
    )
    return Policy(model, tokenizer, optimizer, scheduler, reference, config.base_model, config.weights, dtype, device)


def avoid_cudnn_attention() -> None:
    """Leave attention to torch's flash and memory-efficient kernels.

    From 2.11, torch prefers cuDNN's on an H100 or H200. With a mask, and a width of 64 more than a multiple of 128, the
    backward pass of that one gives NaN where a query's scores are all very negative, as in one head of Qwen2.5-0.5B
    (pytorch/pytorch#196678, huggingface/trl#7181). Our rows need no mask, but models with sliding windows make one.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def choose_device(config: TrainerConfig) -> tuple[torch.device, torch.dtype]:
    """Device and forward dtype in force. The service has hidden all GPUs but the configured one by now.

    Raises:
        ConfigError: a GPU is asked for and there is none.
    """
    cuda = torch.cuda.is_available()
    if config.device.startswith("cuda") and not cuda:
        raise ConfigError(f"trainer.device is {config.device}, but torch sees no such GPU; set it to auto or cpu")
    device = torch.device("cuda", 0) if cuda and config.device != "cpu" else torch.device("cpu")
    if config.dtype == "auto":
        return device, torch.bfloat16 if device.type == "cuda" else torch.float32
    return device, torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


def load_tokenizer(base_model: str) -> PreTrainedTokenizerBase:
    """Raises ConfigError when there is none."""
    try:
        return AutoTokenizer.from_pretrained(base_model, padding_side="left")
    except (OSError, ValueError) as error:
        raise ConfigError(f"trainer.base_model {base_model}: no tokenizer could be loaded: {error}") from error


def load_base(base_model: str, dtype: torch.dtype) -> Any:
    """Raises ConfigError when the model cannot be loaded."""
    try:
        return AutoModelForCausalLM.from_pretrained(base_model, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ConfigError(f"trainer.base_model {base_model}: cannot be loaded: {error}") from error


def add_adapter(model: Any, config: TrainerConfig) -> PeftModel:
    """Put a LoRA adapter on; B is zero, so version 0 is the base policy.

    Raises:
        ConfigError: a target module that the model lacks.
    """
    lora = config.lora
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    unknown = sorted(set(lora.target_modules) - names)
    if unknown:
        raise ConfigError(f"trainer.lora.target_modules: {config.base_model} has no module {', '.join(unknown)}")
    return get_peft_model(
        model,
        LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=list(lora.target_modules),
            bias="none",
            task_type="CAUSAL_LM",
        ),
    )


def save_adapter(model: PeftModel, folder: Path, base_model: str) -> None:
    """Write ``adapter_model.safetensors`` and an ``adapter_config.json`` of what SGLang reads, nothing else."""
    model.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values["target_modules"] = sorted(values["target_modules"])
    values["base_model_name_or_path"] = base_model
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def set_dtype(path: Path, dtype: torch.dtype) -> None:
    """Make a saved ``config.json`` name the dtype that the weights were saved in."""
    values = json.loads(path.read_text(encoding="utf-8"))
    for key in ("dtype", "torch_dtype"):
        if key in values:
            values[key] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


@contextmanager
def without_checksums() -> Iterator[None]:
    """Torch's files carry CRCs that cost more time than writing does; the disk has its own."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def link(source: Path, target: Path) -> bool:
    """Give a file a second name; whether the file system could."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def flush(folder: Path, phases: Phases) -> None:
    """Flush a saved folder to the disk."""
    with phases.measure("flush"):
        fsync_tree(folder)
