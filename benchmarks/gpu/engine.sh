#!/usr/bin/env bash
# Start and stop an SGLang server for the scripts beside this one.
#
#   engine.sh start NAME GPU PORT MODEL [FLAGS...]   start detached, wait until it is healthy
#   engine.sh stop NAME                              end its whole process group
#   engine.sh kill NAME                              the same by SIGKILL
#
# GPU is an index among the visible GPUs, or "cpu". $OUT/NAME.pid holds the process group, $OUT/NAME.log the log.
#
#   SGLANG_SITE     PYTHONPATH of the server, for an installation of its own
#   SGLANG_FLAGS    further flags of every server
#   ENGINE_COMMAND  starts another server instead, with {model} and {port} filled in and the flags left out, such as
#                   "gristmill engine --model {model} --port {port}"
#   WAIT            seconds until it must be healthy (300)
set -euo pipefail

OUT=${OUT:?name a folder for logs and results in OUT}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"

healthy() { curl -sf -m 2 "http://127.0.0.1:$1/health" > /dev/null; }

start() {
  local name=$1 gpu=$2 port=$3 model=$4
  shift 4
  local -a command
  if [ -n "${ENGINE_COMMAND:-}" ]; then
    local text=${ENGINE_COMMAND//\{model\}/$model}
    read -r -a command <<< "${text//\{port\}/$port}"
  else
    local -a extra=()
    read -r -a extra <<< "${SGLANG_FLAGS:-}" || true
    command=("$PYTHON" -m sglang.launch_server --model-path "$model" --host 127.0.0.1 --port "$port" --enable-metrics
      --base-gpu-id "$gpu" "${extra[@]}" "$@")
    if [ -n "${SGLANG_SITE:-}" ]; then command=(env "PYTHONPATH=$SGLANG_SITE" "${command[@]}"); fi
  fi
  if healthy "$port"; then
    echo "engine.sh: something answers on port $port already" >&2
    return 1
  fi
  local began pid
  began=$(date +%s)
  export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false # else /health samples a token, and waits while paused
  setsid nohup "${command[@]}" >> "$OUT/$name.log" 2>&1 < /dev/null &
  pid=$!
  echo "$pid" > "$OUT/$name.pid"
  while ! healthy "$port"; do
    if ! kill -0 "$pid" 2> /dev/null || [ $(($(date +%s) - began)) -gt "${WAIT:-300}" ]; then
      echo "engine.sh: $name is not healthy after $(($(date +%s) - began)) s; the end of $OUT/$name.log:" >&2
      tail -n 30 "$OUT/$name.log" | cut -c1-300 >&2
      stop "$name" KILL
      return 1
    fi
    sleep 0.5
  done
  echo "$name: healthy on port $port after $(($(date +%s) - began)) s"
}

stop() {
  local name=$1 signal=$2 pid
  [ -f "$OUT/$name.pid" ] || return 0
  pid=$(cat "$OUT/$name.pid")
  kill "-$signal" -- "-$pid" 2> /dev/null || true
  for _ in $(seq 100); do
    kill -0 -- "-$pid" 2> /dev/null || break
    sleep 0.1
  done
  kill -KILL -- "-$pid" 2> /dev/null || true
  rm -f "$OUT/$name.pid"
}

case ${1:-} in
  start) shift; start "$@" ;;
  stop) stop "$2" TERM ;;
  kill) stop "$2" KILL ;;
  *)
    echo "engine.sh: start NAME GPU PORT MODEL [FLAGS...] | stop NAME | kill NAME" >&2
    exit 2
    ;;
esac
