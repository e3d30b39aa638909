"""One optimizer step of the trainer alone: seconds, tokens per second, memory, padding. No broker and no engine.

Arms, each with a policy of its own and the same batches: ``ours`` is the trainer as it is; ``trl`` is the same trainer
with TRL's own rows (prompts padded on the left, completions on the right, an attention mask) and cuDNN's attention as
torch has it by default, which on an H200 gives gradients that are no number (``attention_nan.py``), so that its steps
are taken again; ``trl-nocudnn``, the default reference, and ``ours-cudnn`` tell the two changes apart.

    python benchmarks/gpu/training.py --model models/m05 --prompts gsm8k/train.jsonl --out out/training --profile
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from grpo_trainer.config import LoraSettings, TrainerConfig
from grpo_trainer.gpu import claim_gpu, spare_memory

ARMS = ("ours", "trl", "trl-nocudnn", "ours-cudnn")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--out", type=Path, required=True, help="folder for training.json and profile.txt")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--gpu-memory-fraction", type=float)
    parser.add_argument("--weights", default="lora", choices=["lora", "full"])
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--rows", type=int, default=256, help="samples of a step")
    parser.add_argument("--group", type=int, default=8, help="samples of a group")
    parser.add_argument("--micro-batch-tokens", type=int, default=8192)
    parser.add_argument("--micro-batch-size", type=int, default=64)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, default=5, help="steps that count")
    parser.add_argument("--warmup", type=int, default=1, help="steps before those")
    parser.add_argument("--prompts", type=Path, help="GSM8K as JSON lines; random token ids without it")
    parser.add_argument("--mean-prompt", type=int, default=170, help="tokens, without --prompts")
    parser.add_argument("--mean-completion", type=int, default=210, help="tokens")
    parser.add_argument("--longest-completion", type=int, default=400, help="tokens")
    parser.add_argument("--arms", default="ours,trl-nocudnn", help=f"of {', '.join(ARMS)}; ratios are against the last")
    parser.add_argument("--profile", action="store_true", help="one more step of each arm of ours under torch.profiler")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.arms = arguments.arms.split(",")
    if unknown := set(arguments.arms) - set(ARMS):
        parser.error(f"unknown arms: {', '.join(sorted(unknown))}")
    return arguments


def config_of(arguments: argparse.Namespace) -> TrainerConfig:
    """The trainer's configuration."""
    return TrainerConfig(
        base_model=arguments.model,
        weights=arguments.weights,
        lora=LoraSettings(r=arguments.rank, alpha=2 * arguments.rank),
        groups_per_step=arguments.rows // arguments.group,
        micro_batch_size=arguments.micro_batch_size,
        micro_batch_tokens=arguments.micro_batch_tokens,
        gradient_checkpointing=arguments.gradient_checkpointing,
        device=arguments.device,
        dtype=arguments.dtype,
        gpu_memory_fraction=arguments.gpu_memory_fraction,
        learning_rate=1e-5 if arguments.weights == "lora" else 1e-6,
        seed=arguments.seed,
    )


def table(arms: dict[str, dict[str, Any]]) -> str:
    """What was measured, an arm a column, in Markdown."""

    def row(name: str, key: str, form: str = "{}") -> str:
        values = [arm.get(key) for arm in arms.values()]
        return f"| {name} | " + " | ".join("–" if value is None else form.format(value) for value in values) + " |"

    def steps(arm: dict[str, Any]) -> str:
        return f"{arm['steps_finite']} of {arm['steps_begun']}"

    lines = [
        "| | " + " | ".join(arms) + " |",
        "| --- |" + " --- |" * len(arms),
        row("seconds per step, median of those finite at once", "seconds", "{:.3f}"),
        row("fastest, slowest step", "range"),
        row("tokens per second", "tokens_per_s", "{:,.0f}"),
        row("micro-batches per step", "micro_batches", "{:.1f}"),
        row("padding", "padding", "{:.1%}"),
        row("peak GPU memory, GiB", "peak_gib", "{:.2f}"),
        row("  reserved, GiB", "reserved_gib", "{:.2f}"),
        row("loss of step 1", "first_loss", "{:.6g}"),
        row("gradient norm of step 1", "first_norm", "{:.6g}"),
        "| steps finite at once | " + " | ".join(steps(arm) for arm in arms.values()) + " |",
        row("gradients recovered", "recovered"),
        row("failed", "failed"),
    ]
    *others, last = arms
    for name in others:
        ours, reference = arms[name]["seconds"], arms[last]["seconds"]
        if ours and reference:
            lines.append(f"\n{name} / {last}: {ours / reference:.3f} of the seconds per step")
    return "\n".join(lines)


def main() -> None:
    """Measure every arm, print and write what came of it."""
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    claim_gpu(arguments.device)  # these two before torch looks at CUDA
    spare_memory()
    from training_step import Bench, environment

    bench = Bench(config_of(arguments), arguments)
    tokens = bench.tokens_per_step()
    print(
        f"{arguments.rows} rows a step, {statistics.mean(tokens):,.0f} tokens: prompts of {bench.mean_prompt:.0f}, "
        f"completions of {bench.mean_completion:.0f} on average",
        flush=True,
    )
    arms: dict[str, dict[str, Any]] = {}
    for name in arguments.arms:
        arms[name] = bench.measure(name)
        print(name, json.dumps(arms[name]), flush=True)
        settings = {key: value if value is None else str(value) for key, value in vars(arguments).items()}
        result = {"arguments": settings, "environment": environment(), "tokens_per_step": tokens, "arms": arms}
        (arguments.out / "training.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"\n{environment()}\n\n{table(arms)}")


if __name__ == "__main__":
    main()
