"""How long does a policy version take from the trainer to the engines, in every mode of delivery, under load?

    python benchmarks/gpu/delivery.py --model MODEL --out OUT --run lora-files@URL --run disk@URL …

`delivery.sh` starts the servers and calls this. The trainer's side is the real one (`grpo_trainer.model` saves and
hashes, `grpo_trainer.weight_source` lends and broadcasts) in a process of its own; in place of an optimizer step it
adds a little noise. The generator's side is the real one, too (`sglang_generator.fleet` with its engines and
deliveries), and its engines are kept busy all the time: `--load` requests at once, `--streams` of them streamed, so
that every token has a time. A version is timed from the trainer's call until its first token.

Besides: `--fifty N` adapters in a row on one engine (adapters and GPU memory must stay flat), `--restart COMMAND`
(the server is killed, started again by COMMAND, and must get the next version before any traffic), and `--cross`
(one version by every mode of whole weights: the engine's checksums must be equal).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

sys.path.insert(0, str(Path(__file__).parent))

from delivery_trainer import TrainerProcess

from gristmill.artifacts import verify_dir
from gristmill.errors import GristmillError
from gristmill.logs import configure_logging, get_logger
from gristmill.messages import PolicyVersion, Sampling, unpack_ids, unpack_logprobs
from gristmill.metrics import Metrics
from sglang_generator.config import GeneratorConfig
from sglang_generator.delivery import Receipt, make_delivery
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.fleet import Fleet
from sglang_generator.instruments import Instruments
from sglang_generator.placement import Placement
from sglang_generator.policy import Policy, announced_policy
from sglang_generator.wire import Prompt

MODES: dict[str, dict[str, str]] = {
    "lora-files": {"delivery": "lora", "lora_transfer": "files"},
    "lora-tensors": {"delivery": "lora", "lora_transfer": "tensors"},
    "disk": {"delivery": "disk"},
    "tensor-inline": {"delivery": "tensor", "tensor_transfer": "inline"},
    "tensor-ipc": {"delivery": "tensor", "tensor_transfer": "ipc"},
    "nccl": {"delivery": "nccl"},
}
FROM_SOURCE = ("tensor-ipc", "nccl")
STEP_TIMEOUT_S = 120.0
SCORED = 8
"""Samples after a restart that are scored under their own adapter and without it."""


class Load:
    """Keeps an engine busy through a fleet, and notes when tokens come."""

    def __init__(self, fleet: Fleet, arguments: argparse.Namespace) -> None:
        self.fleet = fleet
        self.arguments = arguments
        self.tokens_at: list[float] = []
        self.first_token: dict[int, float] = {}
        self.idle: list[tuple[float, float]] = []
        self.finished = 0
        self.tokens = 0
        """Of finished requests."""
        self.failed: list[str] = []
        self.misstamped: list[str] = []
        self.samples: list[tuple[Policy, list[int], list[int], list[float]]] = []
        self.kept_version: int | None = None
        """Version of the samples that are kept."""
        self.in_flight = 0
        self._idle_since: float | None = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for number in range(self.arguments.load):
            worker = self._worker(number, streamed=number < self.arguments.streams)
            self._tasks.append(asyncio.create_task(worker))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def idle_s(self, begin: float, end: float) -> float:
        """Seconds of an interval without any request at the engine."""
        spans = [*self.idle, *([(self._idle_since, end)] if self._idle_since is not None else [])]
        return sum(max(0.0, min(end, stop) - max(begin, start)) for start, stop in spans)

    def longest_gap_s(self, begin: float, end: float) -> float:
        """Longest time without a token of any stream that reaches into an interval."""
        before = [at for at in self.tokens_at if at < begin][-1:]
        after = [at for at in self.tokens_at if at > end][:1]
        times = [*before, *(at for at in self.tokens_at if begin <= at <= end), *after]
        return max((late - early for early, late in pairwise(times)), default=end - begin)

    async def _worker(self, number: int, *, streamed: bool) -> None:
        rng = random.Random(number)
        while True:
            placement = await self.fleet.place(1)
            ids = [rng.randrange(5, 300) for _ in range(self.arguments.prompt_tokens)]
            self._enter()
            try:
                await (self._stream(placement, ids) if streamed else self._ask(placement, ids))
                self.finished += 1
            except (EngineError, OSError, asyncio.IncompleteReadError, ValueError) as error:
                self.failed.append(f"{type(error).__name__}: {error}"[:200])
                await asyncio.sleep(0.05)
            finally:
                self._leave()
                self.fleet.finish(placement.engine)
                self.fleet.release(placement)

    async def _ask(self, placement: Placement, ids: list[int]) -> None:
        sampling = Sampling(temperature=1.0, max_new_tokens=self.arguments.tokens)
        _, result = await placement.engine.ask(placement.policy, Prompt(ids), sampling, 0)
        if result is None:
            raise EngineError("lost", f"{placement.engine.url} left service before the request was sent")
        self.tokens += len(result.ids) // 4
        if placement.policy.version == self.kept_version and len(self.samples) < SCORED:
            output = unpack_ids(result.ids).tolist()
            self.samples.append((placement.policy, ids, output, unpack_logprobs(result.logprobs).tolist()))

    async def _stream(self, placement: Placement, ids: list[int]) -> None:
        parts = urlsplit(placement.engine.url)
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": self.arguments.tokens, "temperature": 1.0, "ignore_eos": True},
            "return_logprob": True,
            "stream": True,
            "lora_path": placement.policy.adapter,
        }
        content = json.dumps({key: value for key, value in body.items() if value is not None}).encode()
        head = (
            f"POST /generate HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
        try:
            writer.write(head.encode() + content)
            status = await reader.readline()
            if b" 200 " not in status:
                raise ValueError(f"{status!r} {(await reader.read(2000))[-300:]!r}")
            last = b""
            while line := await reader.readline():
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                now = time.monotonic()
                self.tokens_at.append(now)
                self.first_token.setdefault(placement.policy.version, now)
                last = line
            answer = json.loads(last[6:])
            self.tokens += answer["meta_info"]["completion_tokens"]
            self._check_stamp(placement.policy, answer)
        finally:
            writer.close()

    def _check_stamp(self, policy: Policy, answer: Any) -> None:
        meta = answer["meta_info"]
        told = (meta.get("lora_path", policy.adapter), meta["weight_version"] if policy.weight_version else None)
        if told != (policy.adapter, policy.weight_version):
            self.misstamped.append(f"asked {policy.name}, answered {told}")

    def _enter(self) -> None:
        self.in_flight += 1
        if self._idle_since is not None:
            self.idle.append((self._idle_since, time.monotonic()))
            self._idle_since = None

    def _leave(self) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self._idle_since = time.monotonic()


class Generator:
    """A fleet of one engine, with the times of its deliveries."""

    def __init__(self, mode: str, url: str, run_id: str, source: str | None, arguments: argparse.Namespace) -> None:
        self.config = GeneratorConfig(
            engines=(url,),
            engine_concurrency=arguments.load,
            control_timeout_s=STEP_TIMEOUT_S,
            health_interval_s=1.0,
            weight_source=source if mode in FROM_SOURCE else None,
            **({"group_backend": "nccl" if arguments.trainer_device.startswith("cuda") else "gloo"}),
            **MODES[mode],  # type: ignore[arg-type]
        )
        log = get_logger()
        self.current_at: dict[int, float] = {}
        self.fleet = Fleet(self.config, run_id, Instruments(Metrics()), log, self._on_current, lambda: None)
        self.puts: dict[int, tuple[float, float, Receipt]] = {}
        self._put = self.fleet.delivery.put
        self.fleet.delivery.put = self._timed_put  # type: ignore[method-assign]
        self.load = Load(self.fleet, arguments)
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self.fleet.run())

    async def close(self) -> None:
        await self.load.stop()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self.fleet.close()

    async def take(self, record: PolicyVersion) -> float:
        """As the follower does: verify what is read, then let the fleet deliver it. Seconds of verification."""
        began = time.monotonic()
        path = await asyncio.to_thread(verify_dir, record.uri, record.sha256) if self.config.reads_artifacts else None
        took = time.monotonic() - began
        self.fleet.set_target(announced_policy(record, path))
        return took

    async def current(self, version: int) -> None:
        await self._until(lambda: version in self.current_at, f"version {version} is not current")

    async def served(self, version: int) -> None:
        await self._until(lambda: version in self.load.first_token, f"version {version} gave no token")

    async def _until(self, condition: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while not condition():
            if self._task.done():
                await self._task
            if time.monotonic() > deadline:
                trouble = self.fleet.engines[0].trouble
                raise GristmillError(f"{complaint} after {STEP_TIMEOUT_S:g} s; engine: {trouble}")
            await asyncio.sleep(0.001)

    def _on_current(self, policy: Policy) -> None:
        self.current_at[policy.version] = time.monotonic()

    async def _timed_put(self, client: EngineClient, policy: Policy, pinned: str | None, trusted: bool) -> Receipt:
        began = time.monotonic()
        receipt = await self._put(client, policy, pinned, trusted)
        self.puts[policy.version] = (began, time.monotonic(), receipt)
        return receipt


async def publish(trainer: TrainerProcess) -> dict[str, Any]:
    """A new version: its record, when the trainer was called, and what that took."""
    called = time.monotonic()
    answer = await asyncio.to_thread(trainer.publish)
    return {**answer, "called": called, "published": time.monotonic()}


async def measure(mode: str, label: str, url: str, trainer: TrainerProcess, arguments: argparse.Namespace) -> Any:
    """Some versions by one mode, under load; one row each."""
    generator = Generator(mode, url, trainer.run_id, trainer.source, arguments)
    rows: list[dict[str, Any]] = []
    try:
        first = await publish(trainer)
        await generator.take(first["record"])
        await generator.current(first["record"].version)
        generator.load.start()
        await generator.served(first["record"].version)
        calm_rate = await token_rate(generator.load, arguments.calm) if arguments.calm else None
        begun, tokens = time.monotonic(), generator.load.tokens
        for _ in range(arguments.repeats):
            await asyncio.sleep(arguments.between)
            made = await publish(trainer)
            version = made["record"].version
            verify_s = await generator.take(made["record"])
            told = time.monotonic()
            await generator.current(version)
            await generator.served(version)
            began, ended, receipt = generator.puts[version]
            served = generator.load.first_token[version]
            load = generator.load
            calm = (made["called"] - arguments.between / 2, made["called"])
            rows.append(
                {
                    "mode": mode,
                    "label": label,
                    "version": version,
                    "bytes": receipt.moved,
                    "checksum": receipt.checksum,
                    "verified_by": receipt.verified,
                    "publish_s": made["published"] - made["called"],
                    "publish_phases": made["phases"],
                    "verify_artifact_s": verify_s,
                    "drain_s": began - told,
                    "transfer_s": receipt.transfer_s,
                    "verify_s": receipt.verify_s,
                    "confirm_s": receipt.first_token_s,
                    "first_token_s": ended - made["called"],
                    "served_s": served - made["called"],
                    "gap_s": load.longest_gap_s(told, served),
                    "calm_gap_s": load.longest_gap_s(*calm),
                    "idle_s": load.idle_s(told, served),
                }
            )
            print(f"  {label} v{version}: first token {rows[-1]['first_token_s']:.3f} s", flush=True)
        load = generator.load
        if calm_rate is not None:
            await asyncio.sleep(arguments.between)  # so that what was begun before the last update counts, too
        seconds = time.monotonic() - begun
        ends = {"finished": load.finished, "failed": load.failed[:5], "misstamped": load.misstamped[:5]}
        result: dict[str, Any] = {"label": label, "mode": mode, "rows": rows, "load": ends}
        if calm_rate is not None:
            result["throughput"] = {
                "calm_tokens_per_s": calm_rate,
                "tokens_per_s": (load.tokens - tokens) / seconds,
                "period_s": seconds / arguments.repeats,
                "lost_s_per_version": (seconds - (load.tokens - tokens) / calm_rate) / arguments.repeats,
            }
        assert not load.misstamped, load.misstamped[:5]
    finally:
        await generator.close()
    return result


async def token_rate(load: Load, seconds: float) -> float:
    """Tokens per second of finished requests, once the first have finished."""
    while load.finished < load.arguments.load:  # noqa: ASYNC110 (a counter, not an event)
        await asyncio.sleep(0.05)
    began, tokens = time.monotonic(), load.tokens
    await asyncio.sleep(seconds)
    return (load.tokens - tokens) / (time.monotonic() - began)


async def fifty(url: str, trainer: TrainerProcess, arguments: argparse.Namespace) -> Any:
    """Many adapters in a row: how many the engine lists, and the GPU memory, after each."""
    generator = Generator("lora-files", url, trainer.run_id, None, arguments)
    counts: list[dict[str, Any]] = []
    try:
        for number in range(arguments.fifty):
            made = await publish(trainer)
            await generator.take(made["record"])
            await generator.current(made["record"].version)
            if not number:
                generator.load.start()
            await generator.served(made["record"].version)
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
                models = (await http.get("/v1/models")).json()["data"]
            adapters = [card["id"] for card in models if card.get("parent") is not None]
            counts.append(
                {"adapters": len(adapters), "gpu_mib": gpu_memory(arguments.engine_gpu), "at_s": time.monotonic()}
            )
        ends = {"finished": generator.load.finished, "failed": generator.load.failed[:5]}
    finally:
        await generator.close()
    settled = counts[min(4, len(counts) - 1) :]
    memory = [count["gpu_mib"] for count in settled if count["gpu_mib"]]
    return {
        "versions": len(counts),
        "seconds": counts[-1]["at_s"] - counts[0]["at_s"],
        "adapters_after_5th": settled[0]["adapters"],
        "adapters_most": max(count["adapters"] for count in settled),
        "adapters_last": settled[-1]["adapters"],
        "gpu_mib_after_5th": memory[0] if memory else None,
        "gpu_mib_last": memory[-1] if memory else None,
        "load": ends,
        "counts": counts,
    }


async def restart(url: str, trainer: TrainerProcess, arguments: argparse.Namespace) -> Any:
    """Kill the server under load and start it again, with a new version waiting."""
    generator = Generator("lora-files", url, trainer.run_id, None, arguments)
    load = generator.load
    try:
        first = await publish(trainer)
        await generator.take(first["record"])
        await generator.current(first["record"].version)
        load.start()
        await generator.served(first["record"].version)
        await asyncio.sleep(arguments.between)
        finished, failed, killed = load.finished, len(load.failed), time.monotonic()
        os.killpg(int(Path(arguments.restart_pid).read_text()), signal.SIGKILL)
        made = await publish(trainer)
        version = made["record"].version
        await generator.take(made["record"])
        started = await asyncio.create_subprocess_shell(arguments.restart)
        load.kept_version = version
        assert await started.wait() == 0, "the server did not start again"
        healthy = time.monotonic()
        await generator.current(version)
        await generator.served(version)
        _, put_at, receipt = generator.puts[version]
        early = [at for at in load.tokens_at if killed + 1.0 < at < put_at]
        await generator._until(lambda: len(load.samples) >= SCORED, "samples after the restart are missing")
        own, other = await scores(url, load.samples[:SCORED])
        result = {
            "healthy_after_s": healthy - killed,
            "version_confirmed_after_healthy_s": put_at - healthy,
            "served_after_healthy_s": load.first_token[version] - healthy,
            "tokens_before_confirmation": len(early),
            "verified_by": receipt.verified,
            "requests_lost_with_it": len(load.failed) - failed,
            "finished_since": load.finished - finished,
            "misstamped": load.misstamped[:5],
            "samples_scored": len(load.samples),
            "mean_logprob_difference_to_own_adapter": own,
            "mean_logprob_difference_to_base_model": other,
        }
        assert not early, f"{len(early)} tokens came before the version was confirmed"
        assert not load.misstamped, load.misstamped[:5]
    finally:
        await generator.close()
    return result


async def scores(url: str, samples: list[tuple[Policy, list[int], list[int], list[float]]]) -> tuple[float, float]:
    """Mean difference of the samples' logprobs to those of their own adapter, and of the base model."""
    differences: dict[bool, list[float]] = {True: [], False: []}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        for policy, prompt, output, logprobs in samples:
            for own in (True, False):
                body: dict[str, Any] = {
                    "input_ids": prompt + output,
                    "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
                    "return_logprob": True,
                    "logprob_start_len": len(prompt) - 1,
                }
                if own:
                    body["lora_path"] = policy.adapter
                response = await http.post("/generate", json=body)
                assert response.status_code == 200, response.text[:300]
                triples = response.json()["meta_info"]["input_token_logprobs"]
                scored = [triple[0] for triple in triples[1:]]
                differences[own] += [abs(a - b) for a, b in zip(logprobs, scored, strict=True)]
    return statistics.fmean(differences[True]), statistics.fmean(differences[False])


async def cross(runs: list[tuple[str, str, str]], trainer: TrainerProcess, arguments: argparse.Namespace) -> Any:
    """One version by every mode of whole weights, the base weights in between: the checksums of the engine."""
    made = await publish(trainer)
    record: PolicyVersion = made["record"]
    found: dict[str, dict[str, str]] = {}
    for number, (mode, label, url) in enumerate(runs):
        if mode.startswith("lora"):
            continue
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=STEP_TIMEOUT_S) as http:
            body = {"model_path": arguments.model, "weight_version": f"cross-base-{number}"}
            (await http.post("/update_weights_from_disk", json=body)).raise_for_status()
        generator = Generator(mode, url, trainer.run_id, trainer.source, arguments)
        config = generator.config
        await generator.close()
        delivery, client = make_delivery(config, trainer.run_id), EngineClient(url, config)
        try:
            path = verify_dir(record.uri, record.sha256) if config.reads_artifacts else None
            policy = announced_policy(record, path)
            await delivery.begin(client)
            receipt = await delivery.put(client, policy, None, False)
            found.setdefault(url, {})[label] = receipt.checksum
            await delivery.leave(client)
        finally:
            await client.close()
            await delivery.close()
    values = {checksum for by_label in found.values() for checksum in by_label.values()}
    return {"version": record.version, "checksums": found, "equal": len(values) == 1 and "" not in values}


def gpu_memory(gpu: str) -> int | None:
    """MiB in use on the engine's GPU; None without nvidia-smi."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return int(done.stdout)


async def attempt(name: str, work: Awaitable[Any], results: dict[str, Any], out: Path) -> None:
    """Run one part; what fails is reported, and the others go on. Written down at once."""
    print(f"{name} begins", flush=True)
    try:
        results[name] = await work
    except Exception as error:  # noqa: BLE001 (one mode must not take the others' results along)
        results[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(f"{name} FAILED: {results[name]['error'][:500]}", flush=True)
    (out / "delivery.json").write_text(json.dumps(results, indent=1, default=str))


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    out = Path(arguments.out)
    runs = [parse_run(text) for text in arguments.run]
    results: dict[str, Any] = {}
    for kind in ("lora", "full"):
        mine = [each for each in runs if each[0].startswith("lora") == (kind == "lora")]
        if not mine:
            continue
        trainer = await asyncio.to_thread(TrainerProcess, kind, arguments)
        try:
            for mode, label, url in mine:
                await attempt(label, measure(mode, label, url, trainer, arguments), results, out)
            if kind == "full" and arguments.cross:
                await attempt("cross", cross(mine, trainer, arguments), results, out)
            url = mine[0][2]
            if kind == "lora" and arguments.fifty:
                await attempt("fifty", fifty(url, trainer, arguments), results, out)
            if kind == "lora" and arguments.restart:
                await attempt("restart", restart(url, trainer, arguments), results, out)
        finally:
            await asyncio.to_thread(trainer.stop)
    return results


def parse_run(text: str) -> tuple[str, str, str]:
    """``MODE@URL`` or ``MODE/REMARK@URL``: the mode, a label, the address."""
    name, _, url = text.partition("@")
    mode, _, remark = name.partition("/")
    if mode not in MODES or not url:
        raise SystemExit(f"--run {text}: MODE@URL or MODE/REMARK@URL, where MODE is one of {', '.join(MODES)}")
    return mode, f"{mode} ({remark})" if remark else mode, url


def table(results: dict[str, Any]) -> str:
    """Medians (and the largest) of every mode, then the other parts."""
    lines = [
        "| delivery | MB moved | call to first token | publish | drain | transfer | verify | confirm | gap | idle |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        if name in ("fifty", "restart", "cross"):
            continue
        rows = result.get("rows")
        if not rows:
            lines.append(f"| {name} | {result.get('error', 'no version')[:150]} | | | | | | | | |")
            continue

        def middle(key: str, rows: list[dict[str, Any]] = rows) -> str:
            values = [row[key] for row in rows]
            return f"{statistics.median(values):.3f} ({max(values):.3f})"

        moved = statistics.median(row["bytes"] for row in rows) / 1e6
        keys = ("first_token_s", "publish_s", "drain_s", "transfer_s", "verify_s", "confirm_s", "gap_s", "idle_s")
        lines.append(f"| {name} | {moved:.2f} | " + " | ".join(middle(key) for key in keys) + " |")
    lines.append("Seconds: median (largest).")
    for name in ("cross", "fifty", "restart"):
        if name in results:
            shown = {key: value for key, value in results[name].items() if key != "counts"}
            lines.append(f"{name}: {json.dumps(shown, default=str)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face folder that trainer and servers start from")
    parser.add_argument("--out", required=True, help="folder of results and artifacts")
    parser.add_argument("--run", action="append", default=[], help="MODE@URL or MODE/REMARK@URL; repeatable")
    parser.add_argument("--trainer-device", default="cuda:0", help="cpu, cuda:N")
    parser.add_argument("--trainer-memory", type=float, default=None, help="most of the GPU's memory for the trainer")
    parser.add_argument("--engine-gpu", default="0", help="index of the engine's GPU, whose memory --fifty watches")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters")
    parser.add_argument("--repeats", type=int, default=5, help="versions per mode")
    parser.add_argument("--between", type=float, default=1.0, help="seconds between versions")
    parser.add_argument("--calm", type=float, default=0.0, help="seconds of throughput without updates; 0 for none")
    parser.add_argument("--load", type=int, default=32, help="requests at once")
    parser.add_argument("--streams", type=int, default=8, help="of them streamed")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=192, help="new tokens of every request")
    parser.add_argument("--fifty", type=int, default=0, help="adapters in a row")
    parser.add_argument("--restart", default=None, help="command that starts the killed server again")
    parser.add_argument("--restart-pid", default=None, help="file with the process group to kill")
    parser.add_argument("--cross", action="store_true", help="compare the checksums of all modes")
    arguments = parser.parse_args()
    configure_logging("warning", "json")
    Path(arguments.out).mkdir(parents=True, exist_ok=True)
    results = asyncio.run(run(arguments))
    print(table(results))
    failed = [name for name, result in results.items() if "error" in result]
    if failed or results.get("cross", {}).get("equal") is False:
        raise SystemExit(f"failed: {', '.join(failed) or 'cross'}")


if __name__ == "__main__":
    main()
