"""Generator: throughput through the service against a bare asyncio client on the same engine and prompts.

    python benchmarks/generator.py [--engine fake|stepping|embedded] [--latency-ms 200] [--tokens 256] [--in-flight 64]
    python benchmarks/generator.py --url http://127.0.0.1:30000 --model DIR --tokens 512 --in-flight auto \\
        --prompts problems.jsonl [--adapter DIR] [--samples 4096] [--rounds 3]

The bare client holds the same number of requests in flight over plain asyncio streams, reads the JSON, and does
nothing else. The service does all it does on the line: consumes problems from a broker, waits for credit, renders
prompts, checks responses, and has its completions acknowledged by the broker. Both take turns on one engine, which
runs in a process of its own, with the same prompts in the same order.

The service's clock stops when the last completion is acknowledged. It starts when the credit for problems that wait on
the topic is published; on a real server without ``--adapter``, where the bare model is sampled and there is no
credit, when the first problem is. With ``--in-flight auto`` the service looks for the best concurrency in rounds of
its own, and the bare client gets what it found.

Beside the rate of the whole round stands that of its middle: from when as many requests are in flight as may be until
all have been sent, so without the ramp at the start and the tail at the end.

``--engine stepping`` works as SGLang's scheduler does (``tests/sglang_generator/stepping_engine.py``), and its counts
of steps are printed for both sides: how many sequences a prefill gets says how closely together requests arrive.

``--prompts`` takes the rows of ``gristmill problems export``.
"""

# ruff: noqa: E402 (the path to the tests comes first)
from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "sglang_generator")]  # their rig and fake engine serve here too

from generator_rig import make_policy

from gristmill.broker import EmbeddedBroker, free_port
from gristmill.logs import configure_logging
from gristmill.messages import ChatMessage, PolicyVersion, Problem, Sampling
from gristmill.publisher import Publisher
from gristmill.service import ServiceContext
from gristmill.worker.stats import worker_stats
from sglang_generator.config import GeneratorConfig
from sglang_generator.engine import Engine
from sglang_generator.service import Generator
from support.context import apply_topics, make_context, make_problem

GROUP = 8
PROMPT = "1 + 1 = " * 16
SEARCH_ROUNDS = 8
"""At most, with --in-flight auto."""
SEARCH_SAMPLES = 1536
"""Completions of such a round, at most."""


Results: TypeAlias = dict[str, list["Result"]]
"""Of each side, round by round."""
RATES = {"rate": "completions", "middle_rate": "the middle", "token_rate": "tokens"}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def engine_process(arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    """An engine in a process of its own."""
    from support.engine import make_model

    model = make_model(folder / "model")
    port = free_port()
    if arguments.engine == "fake":
        latency_s, tokens = arguments.latency_ms / 1000, arguments.tokens
        script = str(TESTS / "sglang_generator" / "fake_engine.py")
        command = [sys.executable, script, str(port), str(model), str(latency_s), str(tokens)]
    elif arguments.engine == "stepping":
        script = str(TESTS / "sglang_generator" / "stepping_engine.py")
        costs = [str(ms / 1000) for ms in (arguments.prefill_ms, arguments.decode_ms, arguments.frontend_ms)]
        command = [sys.executable, script, str(port), str(model), *costs, str(arguments.max_running)]
    else:
        command = [sys.executable, "-m", "gristmill", "engine", "--model", str(model), "--port", str(port)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit((folder / "engine.log").read_text())
        yield url
    finally:
        process.terminate()
        process.wait(20)


@dataclass(frozen=True)
class Result:
    """One side's part of one round."""

    completions: int
    tokens: int
    seconds: float
    cpu_s: float
    middle_rate: float = 0.0
    """Completions per second of the middle; 0 for a round that has none."""
    ramp_s: float = 0.0
    """Seconds until as many requests were in flight as may be."""
    began: float = 0.0
    """Seconds since the epoch."""
    steps: dict[str, float] = field(default_factory=dict)
    """What a stepping engine counted."""

    @property
    def prefill_size(self) -> float:
        return self.steps["sequences"] / max(1, self.steps["prefills"])

    @property
    def rate(self) -> float:
        return self.completions / self.seconds

    @property
    def token_rate(self) -> float:
        return self.tokens / self.seconds


class Meter:
    """Finds the middle of a round by looking at a side every few milliseconds."""

    def __init__(self, samples: int, limit: int, look: Callable[[], tuple[int, int]]) -> None:
        """``look``: requests in flight and answers taken since the start of the round."""
        self._samples = samples
        self._limit = limit
        self._look = look
        self._started = time.perf_counter()
        self._marks: list[tuple[float, int]] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            in_flight, answered = self._look()
            if not self._marks and in_flight >= min(self._limit, self._samples):
                self._marks.append((time.perf_counter(), answered))
            if answered + in_flight >= self._samples:
                self._marks.append((time.perf_counter(), answered))
                return
            await asyncio.sleep(0.005)

    def stop(self) -> dict[str, float]:
        """Fields of a result."""
        self._task.cancel()
        if len(self._marks) < 2:
            return {}
        (begun, before), (ended, after) = self._marks
        return {"middle_rate": (after - before) / (ended - begun), "ramp_s": begun - self._started}


async def counted_steps(url: str, arguments: argparse.Namespace) -> dict[str, float]:
    """What a stepping engine has counted since the last time; nothing for other engines."""
    if arguments.url or arguments.engine != "stepping":
        return {}
    async with httpx.AsyncClient(trust_env=False) as client:
        steps: dict[str, float] = (await client.get(f"{url}/steps")).json()
        return steps


async def bare(url: str, adapter: str | None, prompts: list[list[int]], in_flight: int, tokens: int) -> Result:
    """A client that does nothing but ask: asyncio streams, one connection per request in flight, the least of
    HTTP/1.1 that does, ``json`` for bodies.
    """
    parts = urlsplit(url)
    todo = iter(prompts)
    sampled = asked = answered = 0

    async def ask() -> None:
        nonlocal sampled, asked, answered
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
        for ids in todo:
            request = {
                "rid": uuid.uuid4().hex,
                "input_ids": ids,
                "sampling_params": {"max_new_tokens": tokens, "temperature": 1.0},
                "return_logprob": True,
            }
            body = json.dumps(request if adapter is None else request | {"lora_path": adapter}).encode()
            head = f"POST /generate HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            asked += 1
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert answer.startswith(b"http/1.1 200"), answer
            length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
            reply = json.loads(await reader.readexactly(length))
            sampled += len(reply["output_ids"])
            answered += 1
        writer.close()

    began, used, started = time.time(), cpu_seconds(), time.perf_counter()
    meter = Meter(len(prompts), in_flight, lambda: (asked - answered, answered))
    await asyncio.gather(*(ask() for _ in range(in_flight)))
    seconds, cpu_s = time.perf_counter() - started, cpu_seconds() - used
    return Result(len(prompts), sampled, seconds, cpu_s, began=began, **meter.stop())


class ServiceRun:
    """A generator at work, fed by credit; or, without an adapter, by problems."""

    def __init__(self, bootstrap: str, url: str, folder: Path, arguments: argparse.Namespace, adapter: Path | None):
        self.prefix = f"bench{uuid.uuid4().hex[:8]}."
        self.topics = apply_topics(bootstrap, self.prefix)
        at_most = 1024 if arguments.in_flight == "auto" else arguments.in_flight
        config = GeneratorConfig(
            engines=(url,),
            engine_concurrency=arguments.in_flight,
            # Enough groups at hand for all that may be in flight, and as many that wait for it.
            problems_per_partition=max(16, at_most // GROUP),
            tokenizer=arguments.model,
            **({"admission": "off"} if adapter is None else {"adopt_adapters": True}),
        )
        self.ctx: ServiceContext[GeneratorConfig] = make_context(
            bootstrap, self.prefix, config, name="sglang_generator", run_id="run"
        )
        self.generator = Generator(self.ctx)
        self.publisher = Publisher(self.ctx.common, self.ctx.codec)
        self.policy: PolicyVersion = make_policy(folder, 0, 0)
        self.adapter = adapter
        self.sampling = Sampling(temperature=1.0, max_new_tokens=arguments.tokens)
        self.prompts = read_prompts(arguments.prompts)
        self.ordinal = 0

    @property
    def engine(self) -> Engine:
        return self.generator.fleet.engines[0]

    def published(self) -> int:
        """Completions acknowledged by the broker; read past the metrics, whose collection costs milliseconds."""
        return worker_stats(self.ctx.metrics).topic(self.topics.completions_math.name).sent

    def offer(self, admit_until: int) -> None:
        from gristmill.artifacts import digest_dir, to_uri

        if self.adapter is None:
            return
        fields = {name: getattr(self.policy, name) for name in self.policy.__struct_fields__}
        over = {"uri": to_uri(self.adapter), "sha256": digest_dir(self.adapter), "admit_until": admit_until}
        self.publisher.publish(self.topics.policies, PolicyVersion(**fields | over))
        self.publisher.flush_acked()

    def next_problems(self, samples: int) -> list[Problem]:
        """Problems for one round, each of which asks for a group."""
        problems = []
        for _ in range(samples // GROUP):
            row = self.prompts[self.ordinal % len(self.prompts)]
            self.ordinal += 1
            problems.append(make_problem(self.ordinal, group_size=GROUP, sampling=self.sampling, **row))
        return problems

    async def round(self, problems: list[Problem]) -> Result:
        """One round."""
        before, tokens, answers = self.published(), self.engine.tokens, self.engine.answers
        samples = GROUP * len(problems)
        credit = self.adapter is not None
        began, used, started = time.time(), cpu_seconds(), time.perf_counter()
        for problem in problems:
            self.publisher.publish(self.topics.problems, problem)
        await asyncio.to_thread(self.publisher.flush_acked)
        if credit:
            await asyncio.sleep(1.0)
            began, used, started = time.time(), cpu_seconds(), time.perf_counter()
            self.offer(self.ordinal)
        engine = self.engine
        meter = Meter(samples, engine.limit, lambda: (engine.client.in_flight, engine.answers - answers))
        while self.published() < before + samples:  # noqa: ASYNC110 (a counter, not an event)
            await asyncio.sleep(0.005)
        seconds, cpu_s = time.perf_counter() - started, cpu_seconds() - used
        return Result(samples, engine.tokens - tokens, seconds, cpu_s, began=began, **meter.stop())

    async def find_limit(self, samples: int) -> int:
        """Rounds until the controller leaves the limit as it is."""
        limit = 0
        for _ in range(SEARCH_ROUNDS):
            if self.engine.limit == limit:
                break
            limit = self.engine.limit
            result = await self.round(self.next_problems(samples))
            found = self.engine.limit
            print(f"  search: {limit} to {found} in flight, {result.token_rate:,.0f} tokens/s", flush=True)
        return self.engine.limit


def read_prompts(file: Path | None) -> list[dict[str, Any]]:
    """What makes a problem of each row; one plain prompt without a file."""
    if file is None:
        return [{"prompt": PROMPT}]
    rows = []
    for line in file.read_text().splitlines():
        row = json.loads(line)
        messages = tuple(ChatMessage(role=one["role"], content=one["content"]) for one in row.get("messages", ()))
        rows.append({"prompt": None if messages else row["prompt"], "messages": messages})
    return rows


async def measure(arguments: argparse.Namespace, url: str, folder: Path, bootstrap: str) -> None:
    samples = arguments.samples - arguments.samples % GROUP
    adapter = arguments.adapter
    if adapter is None and arguments.url is None:
        adapter = folder / "run-v0"
        if arguments.engine == "embedded":
            from support.engine import make_adapter

            adapter = make_adapter(folder / "model", folder / "adapter")
    run = ServiceRun(bootstrap, url, folder, arguments, adapter)
    run.offer(0)
    generator = run.generator
    task = asyncio.create_task(generator.run())
    while generator.fleet.current is None or generator.worker.ready_reason is not None:
        await asyncio.sleep(0.05)
        if task.done():
            task.result()
            raise SystemExit("the service ended")
    await run.round(run.next_problems(GROUP * 8))  # warm up: the tokenizer, connections
    in_flight = arguments.in_flight
    if in_flight == "auto":
        in_flight = await run.find_limit(min(samples, SEARCH_SAMPLES))
    results: Results = {"bare": [], "service": []}
    until, longest = time.monotonic() + arguments.at_most_s, 0.0
    name = None if adapter is None else "run-v0"
    await counted_steps(url, arguments)
    for number in range(arguments.rounds):
        started = time.monotonic()
        if number and started + longest > until:
            break
        problems = run.next_problems(samples)
        ids = [ids for problem in problems for ids in [generator.prompts.render(problem)] * GROUP]
        # Each side goes first in turn, for the second finds the prompts in the engine's cache.
        for side in ("bare", "service") if number % 2 == 0 else ("service", "bare"):
            if side == "bare":
                result = await bare(url, name, ids, in_flight, arguments.tokens)
            else:
                result = await run.round(problems)
            results[side].append(replace(result, steps=await counted_steps(url, arguments)))
        longest = max(longest, time.monotonic() - started)
        rates = (f"{side} {of_side[-1].token_rate:,.0f}" for side, of_side in results.items())
        print(f"  round {number + 1}: {', '.join(rates)} tokens/s", flush=True)
        keep(arguments, in_flight, samples, results)
    run.ctx.stop.set()
    await task
    run.publisher.close()
    report(arguments, in_flight, samples, results)


def keep(arguments: argparse.Namespace, in_flight: int, samples: int, results: Results) -> None:
    """Write what was measured so far."""
    if not arguments.json:
        return
    figures = (*RATES, "began", "seconds", "ramp_s", "cpu_s", "steps")
    sides = {
        side: [{name: getattr(result, name) for name in figures} for result in of_side]
        for side, of_side in results.items()
    }
    measured = {
        "in_flight": in_flight,
        "found": arguments.in_flight == "auto",
        "samples": samples,
        "tokens": arguments.tokens,
    } | sides
    arguments.json.write_text(json.dumps(measured, indent=1) + "\n")


def report(arguments: argparse.Namespace, in_flight: int, samples: int, results: Results) -> None:
    engine = arguments.url or arguments.engine
    if engine == "fake":
        engine += f" ({arguments.latency_ms} ms)"
    found = " (found)" if arguments.in_flight == "auto" else ""
    print(
        f"engine {engine}, up to {arguments.tokens} tokens, {in_flight} requests in flight{found}, "
        f"{samples} completions a round, {len(results['bare'])} rounds"
    )
    for side, of_side in results.items():
        rate, middle, tokens, ramp = (
            statistics.median(getattr(result, what) for result in of_side)
            for what in ("rate", "middle_rate", "token_rate", "ramp_s")
        )
        cpu = statistics.median(result.cpu_s / result.completions * 1000 for result in of_side)
        print(
            f"  {side:8} {rate:8.1f} completions/s ({middle:.1f} in the middle)  {tokens:10,.0f} tokens/s  "
            f"{ramp:5.2f} s ramp  {cpu:6.2f} ms CPU per completion"
        )
        if all(result.steps for result in of_side):
            sizes = ", ".join(f"{result.prefill_size:.2f}" for result in of_side)
            prefills, decodes, late, engine_cpu = (
                statistics.median(result.steps[what] for result in of_side)
                for what in ("prefills", "decodes", "late_s", "cpu_s")
            )
            print(
                f"           engine: {prefills:.0f} prefills of {sizes} sequences, {decodes:.0f} decodes, "
                f"{engine_cpu:.2f} s CPU, {late:.2f} s late"
            )
    for what, label in RATES.items():
        pairs = zip(results["service"], results["bare"], strict=True)
        ratios = [getattr(service, what) / (getattr(alone, what) or math.nan) for service, alone in pairs]
        print(f"  ratio    {statistics.median(ratios):8.3f} {label:12} ({', '.join(f'{one:.3f}' for one in ratios)})")


def in_flight(text: str) -> int | str:
    return text if text == "auto" else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("fake", "stepping", "embedded"), default="fake", help="started here")
    parser.add_argument(
        "--url", help="a server that runs, instead; its bare model is sampled unless --adapter is given"
    )
    parser.add_argument("--model", help="folder of the tokenizer, where the server's own path means nothing here")
    parser.add_argument("--adapter", type=Path, help="adapter to sample with, that the server can read")
    parser.add_argument("--prompts", type=Path, help="JSONL rows of 'gristmill problems export'")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--at-most-s",
        type=float,
        default=math.inf,
        help="for the rounds: none begins that would end later if it took as long as the longest so far",
    )
    parser.add_argument("--samples", type=int, default=1600, help="completions a round")
    parser.add_argument("--in-flight", type=in_flight, default=64, help="requests in flight, or auto")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="of the fake engine")
    parser.add_argument("--prefill-ms", type=float, default=22.0, help="of the stepping engine, whatever the batch")
    parser.add_argument("--decode-ms", type=float, default=6.5, help="of the stepping engine, whatever the batch")
    parser.add_argument("--frontend-ms", type=float, default=0.0, help="of the stepping engine, per request and answer")
    parser.add_argument("--max-running", type=int, default=512, help="of the stepping engine")
    parser.add_argument("--tokens", type=int, default=256, help="at most, per completion")
    parser.add_argument("--bootstrap", default=None, help="a broker that runs")
    parser.add_argument("--json", type=Path, help="file for the rounds of both sides")
    arguments = parser.parse_args()
    configure_logging("warning", "console")
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as temporary:
        folder = Path(temporary)
        started = nullcontext(arguments.url) if arguments.url else engine_process(arguments, folder)
        with started as url:
            if arguments.bootstrap:
                asyncio.run(measure(arguments, url, folder, arguments.bootstrap))
            else:
                with EmbeddedBroker() as broker:
                    asyncio.run(measure(arguments, url, folder, broker.bootstrap))


if __name__ == "__main__":
    main()
