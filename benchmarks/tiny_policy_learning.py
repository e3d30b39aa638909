"""Does GRPO lift the tiny policy? The line's learning problem without the line, in one process and one thread.

    python benchmarks/tiny_policy_learning.py [--seeds 3] [--versions 15] [--learning-rate 2e-3] [--out FILE]

Problems come from `gristmill problems export`, the policy from `gristmill policy prepare tiny` (made when it is not
in the cache), so this is what `gristmill demo` starts from. Then, for every seed: sample groups with transformers'
generate until there are enough with some spread of rewards (the line filters the others out), score by the exact
text in the box, take one optimizer step on LoRA weights with group-normalised advantages and a token-mean loss
(TRL's `dapo`), repeat. Held-out pass@1 is sampled before and after, at temperature 1 and greedily.

Times are CPU seconds of one thread, so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, AutoTokenizer

SOURCE = "arithmetic:levels=1-2,topics=addition+subtraction"
BOX = re.compile(r"\\boxed\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One training run: mean reward of every version's completions, and held-out pass@1 around it."""

    seed: int
    rewards: list[float]
    groups: list[int]
    sampled_before: float
    sampled_after: float
    greedy_before: float
    greedy_after: float
    generate_s: float
    train_s: float


class Bench:
    """The policy, its problems, and what is done with them."""

    def __init__(self, arguments: argparse.Namespace, policy: Path, train: list[Any], heldout: list[Any]) -> None:
        self.arguments = arguments
        self.policy = policy
        self.train = train
        self.heldout = heldout
        self.tokenizer = AutoTokenizer.from_pretrained(policy)

    @torch.no_grad()
    def sample(self, model: Any, rows: list[Any], size: int, *, greedy: bool = False) -> tuple[Any, Any, list[float]]:
        """`size` completions of each row: the encoded prompts, completion ids [rows * size, tokens], rewards."""
        texts = [
            self.tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
            for row in rows
            for _ in range(size)
        ]
        prompts = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        how = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        ids = model.generate(
            input_ids=prompts["input_ids"],
            attention_mask=prompts["attention_mask"],
            max_new_tokens=self.arguments.max_new_tokens,
            **how,
        )[:, prompts["input_ids"].shape[1] :]
        boxes = [BOX.findall(text) for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]
        answers = [row["answer"] for row in rows for _ in range(size)]
        rewards = [float(bool(box) and box[-1] == answer) for box, answer in zip(boxes, answers, strict=True)]
        return prompts, ids, rewards

    def pass_at_1(self, model: Any, *, greedy: bool = False) -> float:
        """Mean reward on the held-out problems."""
        return statistics.fmean(self.sample(model, self.heldout, 1, greedy=greedy)[2])

    def run(self, seed: int) -> Curve:
        """Train one adapter from scratch."""
        options = self.arguments
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(self.policy)
        adapter = LoraConfig(
            r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = get_peft_model(base, adapter).eval()
        weights = [value for value in model.parameters() if value.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=options.learning_rate, weight_decay=0.0)
        before = self.pass_at_1(model), self.pass_at_1(model, greedy=True)
        rows = cycle(self.train[seed * 997 % len(self.train) :] + self.train[: seed * 997 % len(self.train)])
        rewards, groups, spent = [], [], [0.0, 0.0]
        for _ in range(options.versions):
            start = time.process_time()
            batch, seen = self.collect(model, rows)
            sampled = time.process_time()
            self.step(model, optimizer, weights, batch)
            spent[0] += sampled - start
            spent[1] += time.process_time() - sampled
            rewards.append(statistics.fmean(seen))
            groups.append(len(seen) // options.group_size)
        return Curve(
            seed=seed,
            rewards=rewards,
            groups=groups,
            sampled_before=before[0],
            greedy_before=before[1],
            sampled_after=self.pass_at_1(model),
            greedy_after=self.pass_at_1(model, greedy=True),
            generate_s=spent[0] / options.versions,
            train_s=spent[1] / options.versions,
        )

    def collect(self, model: Any, rows: Any) -> tuple[list[Any], list[float]]:
        """Groups with some spread of rewards, as many as a step takes, and all rewards seen on the way."""
        size, wanted = self.arguments.group_size, self.arguments.groups
        batch: list[Any] = []
        seen: list[float] = []
        while len(batch) < wanted and len(seen) < 8 * wanted * size:
            prompts, ids, rewards = self.sample(model, [next(rows) for _ in range(wanted)], size)
            seen += rewards
            for at in range(0, len(rewards), size):
                part = slice(at, at + size)
                group = torch.tensor(rewards[part])
                if group.std() > 0:
                    advantages = (group - group.mean()) / (group.std() + 1e-4)
                    batch.append((prompts["input_ids"][part], prompts["attention_mask"][part], ids[part], advantages))
        return batch[:wanted], seen

    def step(self, model: Any, optimizer: Any, weights: list[Any], batch: list[Any]) -> None:
        """One optimizer step on a batch of groups."""
        if not batch:
            return
        blank, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        left = max(group[0].shape[1] for group in batch)
        right = max(group[2].shape[1] for group in batch)
        prompts = torch.cat([pad(group[0], (left - group[0].shape[1], 0), value=blank) for group in batch])
        mask = torch.cat([pad(group[1], (left - group[1].shape[1], 0)) for group in batch])
        ids = torch.cat([pad(group[2], (0, right - group[2].shape[1]), value=blank) for group in batch])
        advantages = torch.cat([group[3] for group in batch])[:, None]
        ended = (ids == end).cumsum(1) - (ids == end).int()
        counted = ((ended == 0) & (ids != blank)).float()
        attention = torch.cat([mask, counted.long()], 1)
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        logits = model(input_ids=torch.cat([prompts, ids], 1), attention_mask=attention, position_ids=positions).logits[
            :, left - 1 : -1
        ]
        logprobs = torch.log_softmax(logits, -1).gather(2, ids[:, :, None])[:, :, 0]
        ratio = torch.exp(logprobs - logprobs.detach())
        loss = -(ratio * advantages * counted).sum() / counted.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def gristmill(*arguments: str) -> str:
    """Run a command of this installation and return what it prints."""
    command = [sys.executable, "-m", "gristmill", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def export(folder: Path, name: str, split: str, count: int, seed: int) -> tuple[Path, list[Any]]:
    """Problems as the line would send them."""
    path = folder / name
    places = ("--split", split, "--n", str(count), "--seed", str(seed), "--out", str(path))
    gristmill("problems", "export", "--source", SOURCE, *places)
    return path, [json.loads(line) for line in path.read_text().splitlines()]


def balanced(rows: list[Any], count: int) -> list[Any]:
    """Rows of every level and topic in turn, as the endless stream has them; `count` in all."""
    groups: dict[tuple[Any, Any], list[Any]] = {}
    for row in rows:
        groups.setdefault((row["level"], row["topic"]), []).append(row)
    streams = [cycle(group) for group in groups.values()]
    return [next(streams[at % len(streams)]) for at in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--versions", type=int, default=15)
    parser.add_argument("--groups", type=int, default=16, help="groups per step")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=40)
    parser.add_argument("--heldout", type=int, default=256)
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data, train = export(folder, "train.jsonl", "train", 4000, 0)
        _, heldout = export(folder, "heldout.jsonl", "heldout", 400, 1)
        start = time.perf_counter()
        ready = json.loads(gristmill("policy", "prepare", "tiny", "--warmup-data", str(data), "--json"))
    made = f"made in {time.perf_counter() - start:.0f} s" if ready["built"] else "from the cache"
    print(f"policy {ready['path']} ({made})")
    bench = Bench(options, Path(ready["path"]), balanced(train, 4000), balanced(heldout, options.heldout))
    curves = []
    for seed in range(options.seeds):
        curve = bench.run(seed)
        curves.append(curve)
        print(f"seed {seed}: reward", " ".join(f"{reward:.2f}" for reward in curve.rewards))
        print(f"        groups sampled {curve.groups}")
        print(
            f"        held-out pass@1 sampled {curve.sampled_before:.3f} -> {curve.sampled_after:.3f}, "
            f"greedy {curve.greedy_before:.3f} -> {curve.greedy_after:.3f}; "
            f"CPU per version: generate {curve.generate_s:.2f} s, train {curve.train_s:.2f} s",
            flush=True,
        )
    if options.out:
        options.out.write_text(json.dumps([asdict(curve) for curve in curves], indent=2) + "\n")


if __name__ == "__main__":
    main()
