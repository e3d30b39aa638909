"""What `training.py` measures: the batches, the arms, the clock."""

from __future__ import annotations

import argparse
import gc
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
import trl
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from training_batches import Texts, make_batch, score
from trl import GRPOTrainer

from grpo_trainer.assembler import Batch
from grpo_trainer.batch import lines_of, micro_batches, to_tensors
from grpo_trainer.config import TrainerConfig
from grpo_trainer.model import load_policy
from grpo_trainer.observed import observe
from grpo_trainer.recovery import Recovery
from grpo_trainer.seam import Diverged, StreamTrainer
from grpo_trainer.step import StepResult

GIB = 2**30


class TrlRows(StreamTrainer):
    """The trainer with the rows that TRL makes."""

    def _get_per_token_logps_and_entropies(self, *positional: Any, **named: Any) -> Any:
        found = GRPOTrainer._get_per_token_logps_and_entropies(self, *positional, **named)
        if self._current is not None and found[1] is not None:
            observe(self._observed, found[0].detach(), found[1].detach(), self._current, self._config)
        return found


def environment() -> str:
    """Card and versions."""
    card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    return f"{card}, torch {torch.__version__}, transformers {transformers.__version__}, TRL {trl.__version__}"


def wait(device: torch.device) -> None:
    """Let the GPU finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(slots=True)
class Clock:
    """Hands out the batches, and takes the time from one to the end of its step."""

    batches: Sequence[Batch]
    device: torch.device
    profiled: int | None = None
    seconds: list[float] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    begun: int = 0
    profiler: profile | None = None
    _began: float = 0.0

    def next_batch(self) -> Batch:
        if self.begun == self.profiled:
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device.type == "cuda" else [])]
            self.profiler = profile(activities=kinds)
            self.profiler.start()
        batch = self.batches[self.begun]
        self.begun += 1
        wait(self.device)
        self._began = time.perf_counter()
        return batch

    def on_step(self, result: StepResult) -> bool:
        wait(self.device)
        self.seconds.append(time.perf_counter() - self._began)
        self.results.append(result)
        if self.profiler is not None:
            self.profiler.stop()
        return True


class Bench:
    """The same batches for every arm."""

    def __init__(self, config: TrainerConfig, arguments: argparse.Namespace) -> None:
        self._config, self._arguments = config, arguments
        rng = random.Random(arguments.seed)
        policy = load_policy(config)
        vocab = min(policy.vocab_size, len(policy.tokenizer))
        texts, longest = Texts(policy.tokenizer, arguments.prompts, vocab, rng), arguments.longest_completion
        lengths = (arguments.mean_prompt, arguments.mean_completion, longest)
        self._batches = []
        for version in range(arguments.warmup + arguments.steps + 1):
            groups = [texts.group(arguments.group, *lengths) for _ in range(config.groups_per_step)]
            batch = make_batch(version, groups, rng, longest)
            score(policy, batch)
            self._batches.append(batch)
        verdicts = [sample.verdict for batch in self._batches for sample in batch.samples]
        self.mean_prompt = statistics.mean(len(verdict.prompt_token_ids) / 4 for verdict in verdicts)
        self.mean_completion = statistics.mean(len(verdict.completion_token_ids) / 4 for verdict in verdicts)

    def tokens_per_step(self) -> list[int]:
        """Real tokens of each batch."""
        return [
            sum(len(s.verdict.prompt_token_ids) + len(s.verdict.completion_token_ids) for s in batch.samples) // 4
            for batch in self._batches
        ]

    def measure(self, name: str) -> dict[str, Any]:
        """Train an arm's policy of its own."""
        gc.collect()  # what the arm before left
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        ours, arguments = name.startswith("ours"), self._arguments
        policy = load_policy(self._config)
        torch.backends.cuda.enable_cudnn_sdp(name in ("trl", "ours-cudnn"))  # load_policy turned it off
        counted = arguments.warmup + arguments.steps
        profiled = counted if arguments.profile and ours else None
        clock, failed = Clock(self._batches, policy.device, profiled), None
        try:
            (StreamTrainer if ours else TrlRows)(
                model=policy.model,
                tokenizer=policy.tokenizer,
                optimizer=policy.optimizer,
                scheduler=policy.scheduler,
                config=self._config,
                source=clock,
                on_step=clock.on_step,
                steps=counted + (profiled is not None),
                work_dir=arguments.out / name,
                reference=policy.reference,
                bf16=policy.autocast,
                cpu=policy.device.type == "cpu",
                on_recovery=clock.recoveries.append,
            ).train()
        except (Diverged, torch.OutOfMemoryError) as error:
            failed = f"step {clock.begun}: {type(error).__name__}: {str(error)[:300]}"
        if clock.profiler is not None:
            self._report(name, clock.profiler, clock.seconds[-1])
        return self._sum_up(clock, counted, ours=ours, cuda=policy.device.type == "cuda", failed=failed)

    def _sum_up(self, clock: Clock, counted: int, *, ours: bool, cuda: bool, failed: str | None) -> dict[str, Any]:
        first, tokens = self._arguments.warmup, self.tokens_per_step()
        broken = {recovery.version - 1 for recovery in clock.recoveries}
        finite = [
            result.batch.version not in broken and math.isfinite(result.loss) and math.isfinite(result.grad_norm)
            for result in clock.results
        ]
        sound = [n for n, fine in enumerate(finite) if fine and first <= n < counted]
        seconds = [clock.seconds[n] for n in sound]
        chunks, cells = self._shape(ours=ours)
        peak, reserved = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if cuda else (0, 0)
        return {
            "seconds": statistics.median(seconds) if seconds else None,
            "range": f"{min(seconds):.3f}, {max(seconds):.3f}" if seconds else None,
            "tokens_per_s": sum(tokens[n] for n in sound) / sum(seconds) if seconds else None,
            "micro_batches": chunks / len(tokens),
            "padding": 1 - sum(tokens) / cells,
            "peak_gib": peak / GIB if cuda else None,
            "reserved_gib": reserved / GIB if cuda else None,
            "first_loss": clock.results[0].loss if clock.results else None,
            "first_norm": clock.results[0].grad_norm if clock.results else None,
            "steps_finite": sum(finite),
            "steps_begun": clock.begun,
            "recovered": len(clock.recoveries),
            "recoveries": [f"{r.version}: {r.how}, {r.rows} rows of {r.width}" for r in clock.recoveries],
            "failed": failed,
            "all_seconds": [round(value, 4) for value in clock.seconds],
            "losses": [result.loss for result in clock.results],
            "norms": [result.grad_norm for result in clock.results],
        }

    def _shape(self, *, ours: bool) -> tuple[int, int]:
        """Micro-batches and columns times rows, of all batches; both arms divide a batch alike."""
        limits = {"max_rows": self._config.micro_batch_size, "max_tokens": self._config.micro_batch_tokens}
        number = cells = 0
        for batch in self._batches:
            for chunk in micro_batches(to_tensors(batch, scale="group", pad_id=0, mask_truncated=False), **limits):
                padded = chunk.tensors["prompt_ids"].size(1) + chunk.tensors["completion_ids"].size(1)
                cells += chunk.rows * (lines_of(chunk.tensors).ids.size(1) if ours else padded)
                number += 1
        return number, cells

    def _report(self, name: str, profiler: profile, seconds: float) -> None:
        events = profiler.key_averages()
        on_device = [event for event in events if event.device_type != DeviceType.CPU]
        kernels = [event for event in on_device if not getattr(event, "is_user_annotation", False)]
        busy = sum(event.self_device_time_total for event in kernels) / 1e6
        text = f"{name}: one step under the profiler, {seconds:.3f} s; kernels ran for {busy:.3f} s\n"
        for key in [*(["self_device_time_total"] if kernels else []), "self_cpu_time_total"]:
            text += f"\nby {key}\n{events.table(sort_by=key, row_limit=25, max_name_column_width=60)}\n"
        (self._arguments.out / f"profile-{name}.txt").write_text(text, encoding="utf-8")
        print(text, flush=True)
