"""What a policy version with all weights costs between the optimizer step and its announcement.

Makes a random model of a given size, with an optimizer that has its moments, and publishes it the way the trainer does:
artifact, checkpoint (whole, and with the moments of the one before), snapshot for the weight source. No broker.

    python benchmarks/publish.py --size 1.5b --device cuda --folder /data/publish
"""

from __future__ import annotations

import argparse
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, get_scheduler

from grpo_trainer.files import fsync_tree
from grpo_trainer.model import Policy
from grpo_trainer.phases import Phases
from grpo_trainer.weight_source.snapshot import Snapshot

SHAPES = {
    "60m": (512, 1536, 12, 8, 2, 32_000),
    "135m": (576, 1536, 30, 9, 3, 49_152),
    "0.5b": (896, 4864, 24, 14, 2, 151_936),
    "1.5b": (1536, 8960, 28, 12, 2, 151_936),
}
"""Width, MLP width, layers, heads, key/value heads, vocabulary."""


def make_policy(size: str, device: torch.device) -> Policy:
    """A random policy whose optimizer has seen a step; bfloat16 is published."""
    width, mlp, layers, heads, kv_heads, vocabulary = SHAPES[size]
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    scheduler = get_scheduler("constant", optimizer)
    return Policy(model, tokenizer, optimizer, scheduler, None, "random", "full", torch.bfloat16, device)


def checkpoint(policy: Policy, folder: Path, moments_from: Path | None, phases: Phases) -> None:
    """The tensors of a checkpoint, durably."""
    with phases.measure("checkpoint"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        policy.save_trained(folder, 1, moments_from=moments_from)
        fsync_tree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SHAPES, default="60m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/gristmill-publish"))
    parser.add_argument("--repeat", type=int, default=2)
    arguments = parser.parse_args()
    policy = make_policy(arguments.size, torch.device(arguments.device))
    folder: Path = arguments.folder
    count = sum(tensor.numel() for tensor in policy.weights().values())
    print(
        f"{arguments.size}: {count / 1e6:.0f} M parameters on {arguments.device}; seconds, best of {arguments.repeat}"
    )
    print(f"{'way':34} {'total':>7}  phases")
    policy.publish_to(folder / "v0")
    for way in ("one after another", "at the same time", "at the same time, moments linked"):
        best: tuple[float, Phases] | None = None
        for _ in range(arguments.repeat):
            phases, began = Phases(), time.perf_counter()
            older = folder / "whole" if "linked" in way else None
            target = folder / ("linked" if older else "whole")
            if way == "one after another":
                policy.publish_to(folder / "v1", phases, like=folder / "v0")
                checkpoint(policy, target, None, phases)
            else:
                with ThreadPoolExecutor(1) as pool:
                    writing = pool.submit(checkpoint, policy, target, older, phases)
                    policy.publish_to(folder / "v1", phases, like=folder / "v0")
                    writing.result()
            total = time.perf_counter() - began
            if best is None or total < best[0]:
                best = total, phases
        if best is not None:
            shown = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in best[1].seconds.items())
            print(f"{way:34} {best[0]:7.2f}  {shown}", flush=True)
    for number in range(2):
        began = time.perf_counter()
        snapshot = Snapshot.take(number, f"v{number}", policy.weights(), policy.dtype, bucket_bytes=512 << 20)
        seconds = time.perf_counter() - began
        print(f"snapshot of {snapshot.size / 1e9:.2f} GB in {len(snapshot.buckets)} buckets: {seconds:.3f} s")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
