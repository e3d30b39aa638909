"""Looks for gradients that are no number in attention's backward pass, as pytorch/pytorch#196678 tells of cuDNN's.

First the bare kernel, with scores as low as it takes. Then the model, with LoRA, under bfloat16 autocast: micro-batches
of a given width, in TRL's rows (prompt padded on the left, completion on the right, attention mask) and in ours (no
mask), cuDNN's attention on and off. ``CUDA_VISIBLE_DEVICES`` chooses the GPU.

    python benchmarks/gpu/attention_nan.py --model models/m05 --prompts gsm8k/train.jsonl --hunt 40 --out out/nan
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend
from training_batches import Row, Texts

from grpo_trainer.batch import IGNORED, Lines, TensorDict, lines_of
from grpo_trainer.config import LoraSettings, TrainerConfig
from grpo_trainer.model import load_policy
from grpo_trainer.trl_arguments import quiet_libraries

NAMED = 3
NARROWEST = 192


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--out", type=Path, required=True, help="folder for attention_nan.json")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--prompts", type=Path, help="GSM8K as JSON lines; random token ids without it")
    parser.add_argument("--hunt", type=int, default=40, help="micro-batches for each line of the table")
    parser.add_argument("--rows", type=int, default=16, help="rows of a micro-batch")
    parser.add_argument("--widths", default="320,448,576", help="each is 64 more than a multiple of 128")
    parser.add_argument("--controls", default="-64,-32,1", help="added to those widths to compare: --controls=-64,1")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--gpu-memory-fraction", type=float)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    widths, shifts = ([int(n) for n in text.split(",")] for text in (arguments.widths, arguments.controls))
    if min(widths) + min(0, *shifts) < NARROWEST:
        parser.error(f"too narrow: prompts of GSM8K need widths of {NARROWEST} and more")
    return arguments


def bare_kernel(length: int, *, masked: bool, device: torch.device) -> tuple[str, int]:
    """The kernels chosen, and elements of the queries' gradient that are not finite, with every score at -120."""
    size = 64
    generator = torch.Generator(device).manual_seed(0)
    queries, keys, values = (
        torch.randn(1, 2, length, size, device=device, generator=generator).bfloat16() for _ in range(3)
    )
    queries, keys = queries * 0.1, keys * 0.1
    queries[..., 0], keys[..., 0] = 1.0, -120.0 * math.sqrt(size)
    queries.requires_grad_()
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None] if masked else None
    chosen = SDPBackend(torch._fused_sdp_choice(queries, keys, values, attn_mask=mask, is_causal=not masked)).name
    out = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=not masked)
    (found,) = torch.autograd.grad(out.float().square().sum(), queries)
    return chosen, int((~found.isfinite()).sum())


def rows_of(texts: Texts, rows: int, width: int, *, trl: bool) -> TensorDict:
    """A micro-batch whose forward pass is exactly ``width`` wide, in TRL's layout or in ours."""
    made: list[Row] = []
    while len(made) < rows:
        prompt, completion = texts.group(1, 170, 210, 400)[0]
        if len(prompt) <= width - 8:
            made.append((prompt, completion[: width - len(prompt)]))
    # In TRL's rows every prompt takes the place of the longest. One row is made to reach the width.
    place = (max if trl else min)(range(rows), key=lambda n: len(made[n][0]))
    room = width - len(made[place][0])
    if trl:
        made = [(prompt, completion[:room]) for prompt, completion in made]
    while len(made[place][1]) < room:
        made[place][1].extend(texts.group(1, 170, 210, 400)[0][1][: room - len(made[place][1])])
    prompts, completions = max(len(p) for p, _ in made), max(len(c) for _, c in made)
    return {
        "prompt_ids": torch.tensor([[0] * (prompts - len(p)) + p for p, _ in made]),
        "prompt_mask": torch.tensor([[0] * (prompts - len(p)) + [1] * len(p) for p, _ in made]),
        "completion_ids": torch.tensor([c + [0] * (completions - len(c)) for _, c in made]),
        "completion_mask": torch.tensor([[1] * len(c) + [0] * (completions - len(c)) for _, c in made]),
    }


def trl_lines(tensors: TensorDict) -> Lines:
    """Ids, mask and labels as TRL makes them."""
    ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], 1)
    mask = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], 1)
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[:, : tensors["prompt_ids"].size(1)] = IGNORED
    return Lines(ids, mask, labels, ids)


def gradient(model: Any, lines: Lines, *, masked: bool) -> tuple[float, list[str]]:
    """Loss of a backward pass, and the parameters whose gradient is not finite, first reached first."""
    device = lines.ids.device.type
    model.zero_grad(set_to_none=True)
    mask = {"attention_mask": lines.mask} if masked else {}
    with torch.autocast(device, torch.bfloat16):
        logits = model(input_ids=lines.ids, use_cache=False, **mask).logits[:, :-1]
    # Only what is scored goes to float32: all logits of a vocabulary of 151,936 would be gigabytes.
    scored = lines.labels[:, 1:] != IGNORED
    loss = functional.cross_entropy(logits[scored].float(), lines.labels[:, 1:][scored])
    loss.backward()
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    fine = torch.stack([grad.isfinite().all() for _, grad in named]).tolist()
    return loss.item(), [name for (name, _), good in zip(named, fine, strict=True) if not good][::-1]


def hunt(model: Any, texts: Texts, arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Every layout at every kind of width, cuDNN's attention on and off, each with the same rows."""
    targets = [int(width) for width in arguments.widths.split(",")]
    shifts = [0, *(int(shift) for shift in arguments.controls.split(","))]
    found: dict[tuple[bool, bool, int], dict[str, Any]] = defaultdict(lambda: {"passes": 0, "broken": 0, "worst": []})
    for number in range(arguments.hunt):
        for shift in shifts:
            width = targets[number % len(targets)] + shift
            for trl in (True, False):
                tensors = rows_of(texts, arguments.rows, width, trl=trl)
                lines = (trl_lines(tensors) if trl else lines_of(tensors)).to(device)
                assert lines.ids.size(1) == width, (lines.ids.shape, width)
                for cudnn in (True, False):
                    torch.backends.cuda.enable_cudnn_sdp(cudnn)
                    loss, broken = gradient(model, lines, masked=trl)
                    cell = found[trl, cudnn, width % 128]
                    cell["passes"] += 1
                    cell["broken"] += bool(broken)
                    cell["loss_finite"] = cell.get("loss_finite", True) and math.isfinite(loss)
                    if len(broken) > len(cell["worst"]):
                        cell["worst"] = broken
    return [
        {"layout": "TRL's, mask" if trl else "ours, no mask", "cudnn": cudnn, "residue": residue, **cell}
        for (trl, cudnn, residue), cell in sorted(found.items(), key=lambda item: (not item[0][0], item[0][2] != 64))
    ]


def main() -> None:
    """Hunt, print and write what was found."""
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    quiet_libraries()
    config = TrainerConfig(
        base_model=arguments.model,
        lora=LoraSettings(r=arguments.rank, alpha=2 * arguments.rank),
        device=arguments.device,
        dtype="bfloat16",
        gpu_memory_fraction=arguments.gpu_memory_fraction,
    )
    policy = load_policy(config)
    device = policy.device
    card = torch.cuda.get_device_name(0) if device.type == "cuda" else "CPU"
    cudnn = torch.backends.cudnn.version()
    print(f"{card}, torch {torch.__version__}, cuDNN {cudnn}, attention {policy.model.config._attn_implementation}")
    print("\n| bare kernel, width | mask | cuDNN | chosen | gradient elements that are not finite |")
    print("| --- | --- | --- | --- | --- |")
    kernels = []
    for length in (704, 640, 672):
        for masked, on in ((True, True), (True, False), (False, True), (False, False)):
            torch.backends.cuda.enable_cudnn_sdp(on)
            chosen, count = bare_kernel(length, masked=masked, device=device)
            kernels.append({"width": length, "masked": masked, "cudnn": on, "chosen": chosen, "broken": count})
            mask, cudnn_is = "yes" if masked else "no", "on" if on else "off"
            print(f"| {length} | {mask} | {cudnn_is} | {chosen} | {count:,} |", flush=True)
    vocab = min(policy.vocab_size, len(policy.tokenizer))
    texts = Texts(policy.tokenizer, arguments.prompts, vocab, random.Random(arguments.seed))
    policy.model.train()
    began = time.perf_counter()
    cells = hunt(policy.model, texts, arguments, device)
    print(f"\nmodel: {sum(cell['passes'] for cell in cells)} passes in {time.perf_counter() - began:.0f} s\n")
    result = {"card": card, "torch": torch.__version__, "cudnn": cudnn, "kernels": kernels, "model": cells}
    (arguments.out / "attention_nan.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print("| layout | cuDNN | width mod 128 | micro-batches | with non-finite gradients | first parameters |")
    print("| --- | --- | --- | --- | --- | --- |")
    for cell in cells:
        first = ", ".join(name.removeprefix("base_model.model.model.") for name in cell["worst"][:NAMED])
        print(
            f"| {cell['layout']} | {'on' if cell['cudnn'] else 'off'} | {cell['residue']} | {cell['passes']} "
            f"| {cell['broken']} | {first} |"
        )


if __name__ == "__main__":
    main()
