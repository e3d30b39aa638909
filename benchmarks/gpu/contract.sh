#!/usr/bin/env bash
# The engine contract (tests/engine_contract) against a real SGLang server.
#
#   MODEL=path/to/SmolLM2-135M-Instruct OUT=/tmp/contract benchmarks/gpu/contract.sh [PYTEST ARGUMENTS...]
#
#   MODEL   a Hugging Face folder
#   OUT     folder for logs and results; the suite's adapters and checkpoints are made in it, too
#   GPU     index of the GPU (0), or cpu with ENGINE_COMMAND (see engine.sh)
#   PORT    port of the server (31000)
#   DTYPE   bfloat16 (default) or float32: what the server computes in
#   RANK0   device of the trainer's end of an NCCL group (cuda:1 where there are two GPUs)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
MODEL=${MODEL:?name a model folder in MODEL}
export OUT=${OUT:?name a folder for logs and results in OUT}
GPU=${GPU:-0} PORT=${PORT:-31000} PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import pytest' || { echo "contract.sh: $PYTHON has no pytest" >&2; exit 2; }
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
if [ -d "$MODEL" ]; then MODEL=$(cd "$MODEL" && pwd); fi
trap '"$here/engine.sh" stop contract' EXIT

"$here/engine.sh" start contract "$GPU" "$PORT" "$MODEL" --enable-lora --max-lora-rank 16 --lora-target-modules all \
  --max-loras-per-batch 8 --mem-fraction-static 0.8 --max-total-tokens "${TOKENS_HELD:-524288}" \
  --cuda-graph-max-bs-decode "${GRAPHS:-128}"

export GRISTMILL_ENGINE_URL="http://127.0.0.1:$PORT" GRISTMILL_ENGINE_MODEL=$MODEL GRISTMILL_ENGINE_SHARED="$OUT/shared"
if [ -n "${DTYPE:-}" ]; then export GRISTMILL_ENGINE_DTYPE=$DTYPE; fi
if [ -n "${RANK0:-}" ]; then export GRISTMILL_ENGINE_RANK0=$RANK0; fi
mkdir -p "$OUT/shared"
status=0
(cd "$root" && "$PYTHON" -m pytest tests/engine_contract -v -p no:cacheprovider --durations=10 \
  --junitxml="$OUT/contract.xml" "$@") 2>&1 | tee "$OUT/contract.txt" || status=$?

"$PYTHON" - "$OUT" << 'PY'
import json
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

out = Path(sys.argv[1])
cases = list(tree.parse(out / "contract.xml").getroot().iter("testcase"))
ends = {"failure": "failed", "error": "failed", "skipped": "skipped"}
rows = []
for case in cases:
    end = next((child for child in case if child.tag in ends), None)
    rows.append(
        {
            "test": case.get("name"),
            "end": "passed" if end is None else ends[end.tag],
            "seconds": float(case.get("time") or 0),
            "why": "" if end is None else (end.get("message") or "")[:300],
        }
    )
(out / "contract.json").write_text(json.dumps(rows, indent=1))
print("\n| end | tests |\n|---|---|")
for end in ("passed", "failed", "skipped"):
    print(f"| {end} | {sum(row['end'] == end for row in rows)} |")
for row in rows:
    if row["end"] != "passed":
        print(f"{row['end']}: {row['test']}: {row['why'].splitlines()[0][:200] if row['why'] else ''}")
PY
exit "$status"
