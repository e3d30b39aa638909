"""Generator: throughput through the service against a bare asyncio client on the same engine and prompts.

    python benchmarks/generator.py [--engine fake|embedded] [--latency-ms 200] [--tokens 256] [--in-flight 64]
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

``--prompts`` takes the rows of ``gristmill problems export``.
"""

# ruff: noqa: E402 (the path to the tests comes first)
from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
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

    @property
    def rate(self) -> float:
        return self.completions / self.seconds

    @property
    def token_rate(self) -> float:
        return self.tokens / self.seconds


async def bare(url: str, adapter: str | None, prompts: list[list[int]], in_flight: int, tokens: int) -> Result:
    """A client that does nothing but ask: asyncio streams, one connection per request in flight, the least of
    HTTP/1.1 that does, ``json`` for bodies.
    """
    parts = urlsplit(url)
    todo = iter(prompts)
    sampled = 0

    async def ask() -> None:
        nonlocal sampled
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
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert answer.startswith(b"http/1.1 200"), answer
            length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
            reply = json.loads(await reader.readexactly(length))
            sampled += len(reply["output_ids"])
        writer.close()

    used, started = cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(in_flight)))
    return Result(len(prompts), sampled, time.perf_counter() - started, cpu_seconds() - used)


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
        before, tokens = self.published(), self.engine.tokens
        credit = self.adapter is not None
        used, started = cpu_seconds(), time.perf_counter()
        for problem in problems:
            self.publisher.publish(self.topics.problems, problem)
        await asyncio.to_thread(self.publisher.flush_acked)
        if credit:
            await asyncio.sleep(1.0)
            used, started = cpu_seconds(), time.perf_counter()
            self.offer(self.ordinal)
        samples = GROUP * len(problems)
        while self.published() < before + samples:  # noqa: ASYNC110 (a counter, not an event)
            await asyncio.sleep(0.005)
        return Result(samples, self.engine.tokens - tokens, time.perf_counter() - started, cpu_seconds() - used)

    async def find_limit(self, samples: int) -> int:
        """Rounds until the controller leaves the limit as it is."""
        limit = 0
        for _ in range(SEARCH_ROUNDS):
            if self.engine.slots.limit == limit:
                break
            limit = self.engine.slots.limit
            result = await self.round(self.next_problems(samples))
            found = self.engine.slots.limit
            print(f"  search: {limit} to {found} in flight, {result.token_rate:,.0f} tokens/s", flush=True)
        return self.engine.slots.limit


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
        in_flight = await run.find_limit(samples)
    results: dict[str, list[Result]] = {"bare": [], "service": []}
    name = None if adapter is None else "run-v0"
    for number in range(arguments.rounds):
        problems = run.next_problems(samples)
        ids = [ids for problem in problems for ids in [generator.prompts.render(problem)] * GROUP]
        # Each side goes first in turn, for the second finds the prompts in the engine's cache.
        for side in ("bare", "service") if number % 2 == 0 else ("service", "bare"):
            if side == "bare":
                result = await bare(url, name, ids, in_flight, arguments.tokens)
            else:
                result = await run.round(problems)
            results[side].append(result)
    run.ctx.stop.set()
    await task
    report(arguments, in_flight, samples, results)


def report(arguments: argparse.Namespace, in_flight: int, samples: int, results: dict[str, list[Result]]) -> None:
    engine = arguments.url or f"{arguments.engine} ({arguments.latency_ms} ms)"
    found = " (found)" if arguments.in_flight == "auto" else ""
    print(
        f"engine {engine}, up to {arguments.tokens} tokens, {in_flight} requests in flight{found}, "
        f"{samples} completions a round, {arguments.rounds} rounds"
    )
    for side, of_side in results.items():
        rate = statistics.median(result.rate for result in of_side)
        tokens = statistics.median(result.token_rate for result in of_side)
        cpu = statistics.median(result.cpu_s / result.completions * 1000 for result in of_side)
        print(f"  {side:8} {rate:8.1f} completions/s  {tokens:10,.0f} tokens/s  {cpu:6.2f} ms CPU per completion")
    for what in ("rate", "token_rate"):
        pairs = zip(results["service"], results["bare"], strict=True)
        ratios = [getattr(service, what) / getattr(alone, what) for service, alone in pairs]
        label = "completions" if what == "rate" else "tokens"
        print(f"  ratio    {statistics.median(ratios):8.3f} {label:12} ({', '.join(f'{one:.3f}' for one in ratios)})")


def in_flight(text: str) -> int | str:
    return text if text == "auto" else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("fake", "embedded"), default="fake", help="started here")
    parser.add_argument(
        "--url", help="a server that runs, instead; its bare model is sampled unless --adapter is given"
    )
    parser.add_argument("--model", help="folder of the tokenizer, where the server's own path means nothing here")
    parser.add_argument("--adapter", type=Path, help="adapter to sample with, that the server can read")
    parser.add_argument("--prompts", type=Path, help="JSONL rows of 'gristmill problems export'")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1600, help="completions a round")
    parser.add_argument("--in-flight", type=in_flight, default=64, help="requests in flight, or auto")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="of the fake engine")
    parser.add_argument("--tokens", type=int, default=256, help="at most, per completion")
    parser.add_argument("--bootstrap", default=None, help="a broker that runs")
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
