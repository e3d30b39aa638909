"""Generator: completions per second through the service against a bare asyncio client on the same engine.

    python benchmarks/generator.py [--rounds 3] [--engine fake|embedded|URL] [--latency-ms 200] [--tokens 256]

The bare client holds the same number of requests in flight over plain asyncio streams, reads the JSON, and does
nothing else. The service does all it does on the line: consumes problems from a broker, waits for credit, renders
prompts, checks responses, and has its completions acknowledged by the broker. Both take turns on one engine, which
runs in a process of its own. Problems wait on the topic; the clock starts when the credit for them is published, and
stops when the last completion is acknowledged.
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
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "sglang_generator")]  # their rig and fake engine serve here too

from generator_rig import make_policy

from gristmill.broker import EmbeddedBroker, free_port
from gristmill.logs import configure_logging
from gristmill.messages import PolicyVersion, Sampling
from gristmill.publisher import Publisher
from gristmill.service import ServiceContext
from gristmill.worker.stats import worker_stats
from sglang_generator.config import GeneratorConfig
from sglang_generator.service import Generator
from support.context import apply_topics, make_context, make_problem

GROUP = 8
PROMPT = "1 + 1 = " * 16


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def engine_process(kind: str, folder: Path, latency_s: float, tokens: int) -> Iterator[str]:
    """An engine in a process of its own; a URL is used as it is."""
    if kind.startswith("http"):
        yield kind
        return
    from support.engine import make_model

    model = make_model(folder / "model")
    port = free_port()
    if kind == "fake":
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


async def bare(url: str, adapter: str, ids: list[int], samples: int, concurrency: int, tokens: int) -> float:
    """Completions per second of a client that does nothing but ask: asyncio streams, one connection per request in
    flight, the least of HTTP/1.1 that does, ``json`` for bodies.
    """
    parts = urlsplit(url)
    left = samples

    async def ask() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
        while left:
            left -= 1
            body = json.dumps(
                {
                    "rid": uuid.uuid4().hex,
                    "input_ids": ids,
                    "sampling_params": {"max_new_tokens": tokens, "temperature": 1.0},
                    "return_logprob": True,
                    "lora_path": adapter,
                }
            ).encode()
            head = f"POST /generate HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert answer.startswith(b"http/1.1 200"), answer
            length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
            json.loads(await reader.readexactly(length))
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(concurrency)))
    return samples / (time.perf_counter() - started)


class ServiceRun:
    """A generator at work, fed by credit."""

    def __init__(self, bootstrap: str, url: str, folder: Path, concurrency: int, tokens: int, adapter: Path) -> None:
        self.prefix = f"bench{uuid.uuid4().hex[:8]}."
        self.topics = apply_topics(bootstrap, self.prefix)
        config = GeneratorConfig(
            engines=(url,),
            engine_concurrency=concurrency,
            problems_per_partition=concurrency,
            adopt_adapters=True,
        )
        self.ctx: ServiceContext[GeneratorConfig] = make_context(
            bootstrap, self.prefix, config, name="sglang_generator", run_id="run"
        )
        self.publisher = Publisher(self.ctx.common, self.ctx.codec)
        self.policy: PolicyVersion = make_policy(folder, 0, 0)
        self.adapter = adapter
        self.tokens = tokens
        self.ordinal = 0

    def published(self) -> int:
        """Completions acknowledged by the broker; read past the metrics, whose collection costs milliseconds."""
        return worker_stats(self.ctx.metrics).topic(self.topics.completions_math.name).sent

    def offer(self, admit_until: int) -> None:
        from gristmill.artifacts import digest_dir, to_uri

        fields = {name: getattr(self.policy, name) for name in self.policy.__struct_fields__}
        over = {"uri": to_uri(self.adapter), "sha256": digest_dir(self.adapter), "admit_until": admit_until}
        self.publisher.publish(self.topics.policies, PolicyVersion(**fields | over))
        self.publisher.flush_acked()

    async def round(self, samples: int) -> float:
        """Completions per second of one round."""
        groups = samples // GROUP
        sampling = Sampling(temperature=1.0, max_new_tokens=self.tokens)
        for _ in range(groups):
            self.ordinal += 1
            problem = make_problem(self.ordinal, prompt=PROMPT, group_size=GROUP, sampling=sampling)
            self.publisher.publish(self.topics.problems, problem)
        await asyncio.to_thread(self.publisher.flush_acked)
        await asyncio.sleep(1.0)
        before = self.published()
        started = time.perf_counter()
        self.offer(self.ordinal)
        while self.published() < before + samples:  # noqa: ASYNC110 (a counter, not an event)
            await asyncio.sleep(0.005)
        return samples / (time.perf_counter() - started)


async def measure(arguments: argparse.Namespace, url: str, folder: Path, bootstrap: str) -> None:
    samples = arguments.samples - arguments.samples % GROUP
    if arguments.engine == "embedded":
        from support.engine import make_adapter

        adapter = make_adapter(folder / "model", folder / "adapter")
    else:
        adapter = folder / "run-v0"
    run = ServiceRun(bootstrap, url, folder, arguments.concurrency, arguments.tokens, adapter)
    run.offer(0)
    generator = Generator(run.ctx)
    task = asyncio.create_task(generator.run())
    while generator.fleet.current is None or generator.worker.ready_reason is not None:
        await asyncio.sleep(0.05)
        assert not task.done()
    await run.round(GROUP * 8)  # warm up: the tokenizer, connections
    ids = generator.prompts.render(make_problem(1, prompt=PROMPT))
    rates: dict[str, list[float]] = {"bare": [], "service": []}
    cpu: dict[str, list[float]] = {"bare": [], "service": []}
    for _ in range(arguments.rounds):
        for side in ("bare", "service"):
            used = cpu_seconds()
            if side == "bare":
                rate = await bare(url, "run-v0", ids, samples, arguments.concurrency, arguments.tokens)
            else:
                rate = await run.round(samples)
            rates[side].append(rate)
            cpu[side].append((cpu_seconds() - used) / samples * 1000)
    run.ctx.stop.set()
    await task
    print(
        f"engine {arguments.engine}, latency {arguments.latency_ms} ms, {arguments.tokens} tokens, "
        f"{arguments.concurrency} requests in flight, {samples} completions a round, {arguments.rounds} rounds"
    )
    for side in ("bare", "service"):
        print(
            f"  {side:8} {statistics.median(rates[side]):8.1f} completions/s, "
            f"{statistics.median(cpu[side]):6.2f} ms CPU per completion"
        )
    ratios = [service / alone for service, alone in zip(rates["service"], rates["bare"], strict=True)]
    print(f"  ratio    {statistics.median(ratios):8.3f}   ({', '.join(f'{ratio:.3f}' for ratio in ratios)})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="fake", help="fake, embedded, or the URL of an engine with LoRA")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1600)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--bootstrap", default=None)
    arguments = parser.parse_args()
    configure_logging("warning", "console")
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as temporary:
        folder = Path(temporary)
        with engine_process(arguments.engine, folder, arguments.latency_ms / 1000, arguments.tokens) as url:
            if arguments.bootstrap:
                asyncio.run(measure(arguments, url, folder, arguments.bootstrap))
            else:
                with EmbeddedBroker() as broker:
                    asyncio.run(measure(arguments, url, folder, broker.bootstrap))


if __name__ == "__main__":
    main()
