#!/usr/bin/env bash
# Tokens per second through the generator service against a bare client on the same SGLang server, at a fixed and at
# the found concurrency; then the same load while versions are delivered: what an update costs.
#
#   MODEL=path/to/Qwen2.5-Coder-1.5B-Instruct OUT=/tmp/throughput TRAIN=gsm8k/train.jsonl benchmarks/gpu/throughput.sh
#
#   TRAIN          problems (GSM8K's format); one plain prompt without it
#   GPU, PORT      index of the GPU (0), or cpu with ENGINE_COMMAND (see engine.sh); port of the server (33000)
#   GRAPHS         largest batch with a CUDA graph (512): above it SGLang falls to half its speed
#   CONCURRENCIES  requests in flight ("512 auto"; auto is bounded by GRAPHS)
#   SAMPLES, TOKENS, ROUNDS   completions a round (2048) of at most so many tokens (256), rounds of each side (6)
#   AT_MOST_S      seconds for the rounds of each setting (240), search and warm-up apart: none begins that would end later
#                  if it took as long as the longest so far
#   DELIVER        modes whose updates are measured under this load ("disk"; empty for none; also tensor-inline, tensor-ipc)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
MODEL=${MODEL:?name a model folder in MODEL}
export OUT=${OUT:?name a folder for logs and results in OUT}
GPU=${GPU:-0} PORT=${PORT:-33000} PYTHON=${PYTHON:-python3} GRAPHS=${GRAPHS:-512}
SAMPLES=${SAMPLES:-2048} TOKENS=${TOKENS:-256} ROUNDS=${ROUNDS:-6} AT_MOST_S=${AT_MOST_S:-240}
url=http://127.0.0.1:$PORT
mkdir -p "$OUT"
watcher=
finish() {
  if [ -n "$watcher" ]; then kill "$watcher" 2> /dev/null || true; fi
  "$here/engine.sh" stop throughput
}
trap finish EXIT

watch() { # NAME: sample the GPU into NAME.csv until unwatch
  if command -v nvidia-smi > /dev/null && [ "$GPU" != cpu ]; then
    nvidia-smi -i "$GPU" --query-gpu=timestamp,index,utilization.gpu,memory.used --format=csv,noheader,nounits -l 1 \
      > "$OUT/$1.csv" &
    watcher=$!
  fi
}
unwatch() {
  if [ -n "$watcher" ]; then kill "$watcher" 2> /dev/null || true; fi
  watcher=
}

prompts=()
if [ -n "${TRAIN:-}" ]; then
  "$PYTHON" -m gristmill problems export --source "gsm8k:$TRAIN" --n 1024 --out "$OUT/prompts.jsonl" > /dev/null
  prompts=(--prompts "$OUT/prompts.jsonl")
fi
"$here/engine.sh" start throughput "$GPU" "$PORT" "$MODEL" --mem-fraction-static "${MEM_FRACTION:-0.6}" \
  --max-running-requests $((2 * GRAPHS)) --cuda-graph-max-bs-decode "$GRAPHS"

read -r -a settings <<< "${CONCURRENCIES:-512 auto}"
status=0
for setting in "${settings[@]}"; do
  watch "rate-$setting"
  "$PYTHON" "$root/benchmarks/generator.py" --url "$url" --model "$MODEL" --in-flight "$setting" --tokens "$TOKENS" \
    --samples "$SAMPLES" --rounds "$ROUNDS" --at-most-s "$AT_MOST_S" "${prompts[@]}" \
    --json "$OUT/rate-$setting.json" 2>&1 | tee "$OUT/rate-$setting.txt" || status=$?
  unwatch
done

read -r -a deliver <<< "${DELIVER-disk}"
if [ "${#deliver[@]}" -gt 0 ]; then
  runs=()
  for mode in "${deliver[@]}"; do runs+=(--run "$mode@$url"); done
  device=cpu
  [ "$GPU" = cpu ] || device="cuda:$GPU"
  watch deliver
  "$PYTHON" "$here/delivery.py" --model "$MODEL" --out "$OUT" --trainer-device "$device" --repeats 3 --between 6 \
    --calm 8 --load "${LOAD:-512}" --streams 4 --tokens "$TOKENS" --prompt-tokens 128 "${runs[@]}" 2>&1 |
    tee "$OUT/deliver.txt" || status=$?
  unwatch
fi
grep -c "Decode batch.*cuda graph: False" "$OUT/throughput.log" > "$OUT/without_graph.txt" || true
"$PYTHON" "$here/throughput_report.py" "$OUT" | tee "$OUT/throughput.md"
exit "$status"
