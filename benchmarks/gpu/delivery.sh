#!/usr/bin/env bash
# Weight delivery, measured: every mode, under load, from the trainer's call to the first token (see delivery.py).
#
#   MODEL=path/to/model OUT=/tmp/delivery GPUS="0 1" benchmarks/gpu/delivery.sh [FLAGS OF delivery.py...]
#
#   MODEL    a Hugging Face folder
#   OUT      folder for logs, results and artifacts (three versions of the whole model)
#   GPUS     one or two GPU indices: the trainer is on the first. With two, engines are on the second, and one more on
#            the first for CUDA IPC on one card. With one GPU nccl is left out: it takes two. "cpu" for ENGINE_COMMAND
#   MODES    which modes to run ("lora-files lora-tensors disk tensor-inline tensor-ipc nccl")
#   REPEATS  versions per mode (5); FIFTY adapters in a row (50, 0 for none); RESTART=0 leaves the kill -9 out
#   NEAR=0   with two GPUs: no engine on the trainer's own
#   TOKENS_HELD, GRAPHS: --max-total-tokens and --cuda-graph-max-bs-decode of every server
# See engine.sh for SGLANG_SITE, SGLANG_FLAGS and ENGINE_COMMAND.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
MODEL=${MODEL:?name a model folder in MODEL}
export OUT=${OUT:?name a folder for logs and results in OUT}
PYTHON=${PYTHON:-python3}
read -r -a gpus <<< "${GPUS:-0}"
read -r -a modes <<< "${MODES:-lora-files lora-tensors disk tensor-inline tensor-ipc nccl}"
PORT=${PORT:-32000}
trainer=${gpus[0]} engine=${gpus[${#gpus[@]} - 1]}
device=cpu
[ "$trainer" = cpu ] || device="cuda:$trainer"
mkdir -p "$OUT"
trap 'for name in lora full near; do "$here/engine.sh" stop "$name"; done' EXIT

common=(--mem-fraction-static 0.8 --max-total-tokens "${TOKENS_HELD:-262144}" --cuda-graph-max-bs-decode "${GRAPHS:-64}")
lora=("$engine" "$PORT" "$MODEL" "${common[@]}" --enable-lora --max-lora-rank "${RANK:-16}" --lora-target-modules all
  --max-loras-per-batch 8 --max-loaded-loras 16)
want() { [[ " ${modes[*]} " == *" $1 "* ]]; }
declare -A servers=() pids=()
if want lora-files || want lora-tensors; then servers[lora]=1; fi
if want disk || want tensor-inline || want nccl || want tensor-ipc; then servers[full]=1; fi
if want tensor-ipc && [ "${#gpus[@]}" -gt 1 ] && [ "${NEAR:-1}" = 1 ]; then servers[near]=1; fi

# One after the other begins, all start at once: each looks at the free memory of its GPU in its first seconds.
if [ -n "${servers[lora]:-}" ]; then "$here/engine.sh" start lora "${lora[@]}" & pids[lora]=$!; sleep "${STAGGER:-10}"; fi
if [ -n "${servers[full]:-}" ]; then
  "$here/engine.sh" start full "$engine" $((PORT + 1)) "$MODEL" "${common[@]}" &
  pids[full]=$!
fi
if [ -n "${servers[near]:-}" ]; then
  "$here/engine.sh" start near "$trainer" $((PORT + 2)) "$MODEL" "${common[@]}" &
  pids[near]=$!
fi
for name in "${!pids[@]}"; do
  wait "${pids[$name]}" || { echo "delivery.sh: the server '$name' did not start; its modes are left out" >&2; unset "servers[$name]"; }
done

runs=() rest=()
for mode in "${modes[@]}"; do
  case $mode in
    lora-*) [ -z "${servers[lora]:-}" ] || runs+=(--run "$mode@http://127.0.0.1:$PORT") ;;
    tensor-ipc)
      if [ "$device" = cpu ]; then
        echo "tensor-ipc: left out, CUDA IPC takes a GPU"
      elif [ "${#gpus[@]}" -gt 1 ]; then
        [ -z "${servers[near]:-}" ] || runs+=(--run "tensor-ipc/one card@http://127.0.0.1:$((PORT + 2))")
        [ -z "${servers[full]:-}" ] || runs+=(--run "tensor-ipc/two cards@http://127.0.0.1:$((PORT + 1))")
      else
        [ -z "${servers[full]:-}" ] || runs+=(--run "tensor-ipc/one card@http://127.0.0.1:$((PORT + 1))")
      fi
      ;;
    nccl)
      if [ "$device" != cpu ] && [ "${#gpus[@]}" -lt 2 ]; then
        echo "nccl: left out, it takes two GPUs"
      else
        [ -z "${servers[full]:-}" ] || runs+=(--run "nccl@http://127.0.0.1:$((PORT + 1))")
      fi
      ;;
    *) [ -z "${servers[full]:-}" ] || runs+=(--run "$mode@http://127.0.0.1:$((PORT + 1))") ;;
  esac
done
if [ -n "${servers[full]:-}" ]; then rest+=(--cross); fi
if [ -n "${servers[lora]:-}" ]; then
  rest+=(--fifty "${FIFTY:-50}" --engine-gpu "$engine")
  if [ "${RESTART:-1}" = 1 ]; then
    printf -v again '%q ' "$here/engine.sh" start lora "${lora[@]}"
    rest+=(--restart "$again" --restart-pid "$OUT/lora.pid")
  fi
fi

if [ "${#runs[@]}" = 0 ]; then
  echo "delivery.sh: no mode is left to run" >&2
  exit 1
fi
"$PYTHON" "$here/delivery.py" --model "$MODEL" --out "$OUT" --trainer-device "$device" --rank "${RANK:-16}" \
  --repeats "${REPEATS:-5}" "${runs[@]}" "${rest[@]}" "$@" 2> >(tee "$OUT/delivery.err" >&2) | tee "$OUT/delivery.txt"
