#!/usr/bin/env bash
# The whole line on GPUs: GSM8K, a real model, SGLang; held-out pass@1 before and after.
#
#   MODEL=path/to/Qwen2.5-Coder-1.5B-Instruct TRAIN=gsm8k/train.jsonl TEST=gsm8k/test.jsonl OUT=/tmp/line GPUS="0 1" \
#     benchmarks/gpu/line.sh [--section.key=value ...]
#
#   GPUS        one index: trainer and engine share the card; two: the trainer has the first, SGLang the second
#   VERSIONS    policy versions (30)
#   DELIVERY    lora (default), disk, tensor or nccl; the last three train whole weights
#   EVAL        held-out problems, from the beginning of TEST (1319, which is all of GSM8K's)
#   ENGINE      sglang (default); "embedded" for a rehearsal on a CPU, say with MODEL=tiny and no TRAIN and TEST
#
# The numbers, all of which can be overridden by flags:
#   32 groups of 8     256 samples a step. GRPO's baseline is the mean of a group; 8 is the usual least, and 32 prompts
#                      that have some spread keep the gradient's noise low enough for steps of this size.
#   LoRA r 32, 1e-4    "LoRA Without Regret" (Schulman et al., 2025): in RL even low ranks learn as full training does,
#                      at ten times its learning rate. 1e-6 to 5e-6 is usual for whole weights of models this small,
#                      so 1e-5 to 5e-5; twice that, since the run is short, was stable in the four runs of docs/results.
#   full 2e-6          when whole weights are trained.
#   temperature 1      the behaviour policy is the policy: ratios are 1 but for lag and rounding.
#   400 new tokens     these models answer GSM8K in 150 to 300; what does not end by then scores 0.
#   16384 tokens       a micro-batch: with the 1.5B model 47 GiB in use, and with the 0.5B 8192 took a third longer.
#   max_staleness 1    generation and training overlap; token_truncate corrects for the lag of one version.
# See engine.sh for SGLANG_SITE and SGLANG_FLAGS.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
MODEL=${MODEL:?name a model folder in MODEL}
export OUT=${OUT:?name a folder for logs and results in OUT}
PYTHON=${PYTHON:-python3}
DELIVERY=${DELIVERY:-lora}
read -r -a gpus <<< "${GPUS:-0}"
run=line-$(date +%H%M%S)
mkdir -p "$OUT"

flags=(--policy "$MODEL" --versions "${VERSIONS:-30}" --run-id "$run" --data_dir="$OUT/data")
if [ -n "${TRAIN:-}" ]; then flags+=(--source "gsm8k:$TRAIN"); fi
if [ -n "${TEST:-}" ]; then flags+=(--local.eval_source="gsm8k:$TEST"); fi
flags+=(--local.eval_problems="${EVAL:-1319}" --local.eval_samples=1 --generator.delivery="$DELIVERY")
if [ "${ENGINE:-sglang}" = sglang ]; then
  rate=1e-4
  [ "$DELIVERY" = lora ] || rate=2e-6
  flags+=(--engine sglang --gpus "trainer=${gpus[0]}" --gpus "engine=${gpus[${#gpus[@]} - 1]}")
  [ "${#gpus[@]}" -gt 1 ] || flags+=(--share-gpu)
  flags+=(--problems.group_size=8 --problems.sampling.temperature=1.0 --problems.sampling.max_new_tokens=400
    --trainer.groups_per_step=32 --trainer.max_staleness=1 --trainer.learning_rate="$rate" --trainer.lora.r=32
    --trainer.lora.alpha=64 --trainer.unparsable_reward=0 --math.unparsable_reward=0 --trainer.checkpoint_every=10
    --trainer.micro_batch_tokens=16384)
  if [ -n "${SGLANG_SITE:-}" ]; then flags+=("--local.sglang.env.PYTHONPATH=$SGLANG_SITE"); fi
  if [ -n "${SGLANG_FLAGS:-}" ]; then flags+=("--local.sglang.args=$SGLANG_FLAGS"); fi
fi
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used --format=csv,noheader,nounits -l 1 > "$OUT/gpu.csv" &
  watcher=$!
  trap 'kill "$watcher" 2> /dev/null || true' EXIT
fi

status=0
"$PYTHON" -m gristmill demo "${flags[@]}" "$@" 2>&1 | tee "$OUT/line.txt" || status=$?
folder=$OUT/data/runs/$run
cp "$folder"/{summary.json,training.jsonl} "$OUT/" 2> /dev/null || true
cp "$folder"/*.yaml "$OUT/" 2> /dev/null || true
mkdir -p "$OUT/logs"
for log in "$folder"/logs/*; do
  if [ -f "$log" ]; then cut -c1-2000 "$log" | tail -n 4000 > "$OUT/logs/$(basename "$log")"; fi
done
"$PYTHON" "$here/line_report.py" "$OUT" | tee "$OUT/line.md"
exit "$status"
