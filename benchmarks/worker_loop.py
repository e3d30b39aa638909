"""Worker loop: the kernel against a bare confluent-kafka loop, and against the ideal concurrency bound.

    python benchmarks/worker_loop.py [--messages 40000] [--rounds 3] [--bootstrap HOST:PORT]

Throughput: both sides consume, decode, encode, produce and commit the same completions on the same broker, in
turns. The bare loop is the fast one, not the safe one: it commits whatever it has read once a second, whether or
not the outputs were delivered. The kernel settles every record by its outputs' acknowledgements.

Concurrency: handlers sleep 1 to 100 ms at random; the bound is the total sleep divided by the handlers at work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Iterable

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from gristmill.broker import EmbeddedBroker
from gristmill.codec import Codec
from gristmill.config import CommonConfig, Section
from gristmill.kafka import admin_config, consumer_config, producer_config
from gristmill.logs import configure_logging
from gristmill.messages import Completion, Sampling, make_group_id, make_sample_id, pack_ids, pack_logprobs
from gristmill.publisher import Publisher
from gristmill.service import ServiceContext
from gristmill.topics import Topics, apply
from gristmill.worker import Incoming, Outgoing, Worker

PARTITIONS = 4
WARM_UP = 500
"""Calls before the clock starts: by then every partition has work."""


def completion(number: int, tokens: int) -> Completion:
    group = make_group_id("bench", number + 1)
    return Completion(
        run_id="bench",
        sample_id=make_sample_id(group, 0),
        group_id=group,
        index=0,
        ordinal=number + 1,
        group_size=1,
        problem_id=str(number),
        kind="math",
        source="bench",
        prompt_token_ids=pack_ids(range(100)),
        completion_token_ids=pack_ids(range(tokens)),
        logprobs=pack_logprobs(-1.0 / (1 + i) for i in range(tokens)),
        text="so " * tokens,
        finish_reason="stop",
        policy_run_id="bench",
        policy_version_oldest=1,
        policy_version_newest=1,
        policy_spans=(),
        sampling=Sampling(temperature=1.0, max_new_tokens=tokens),
        engine="bench",
        engine_weight_version="bench-v1",
        admission_wait_s=0.0,
        generation_s=1.0,
        problem_created_at_ms=0,
        completed_at_ms=0,
    )


def bare(common: CommonConfig, topics: Topics, count: int, group: str) -> float:
    """Messages per second of a plain loop."""
    codec = Codec()
    failed: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    consumer = Consumer(consumer_config(common, group, enable_auto_offset_store=True))
    producer = Producer(producer_config(common))
    consumer.subscribe([topics.completions_math.name])
    seen = 0
    started = committed = 0.0
    while seen < count:
        messages = consumer.consume(500, 0.02)
        if messages and not seen:
            started = committed = time.perf_counter()
        for message in messages:
            decoded = codec.decode(message.value(), Completion)
            while True:
                try:
                    producer.produce(
                        topics.completions_code.name, codec.encode(decoded), decoded.key, on_delivery=delivered
                    )
                    break
                except BufferError:
                    producer.poll(0.01)
        seen += len(messages)
        producer.poll(0)
        if time.perf_counter() - committed > 0.5 and seen:
            committed = time.perf_counter()
            consumer.commit(asynchronous=True)
    producer.flush()
    consumer.commit(offsets=consumer.position(consumer.assignment()), asynchronous=False)
    elapsed = time.perf_counter() - started
    consumer.close()
    assert not failed, failed[0]
    return count / elapsed


def kernel(common: CommonConfig, topics: Topics, count: int, group: str, asynchronous: bool) -> float:
    """Messages per second through the worker, from the first handler call to the last commit."""
    ctx = context(common, topics)
    seen = 0
    started = 0.0

    def handle(incoming: Incoming[Completion]) -> Iterable[Outgoing]:
        nonlocal seen, started
        if not seen:
            started = time.perf_counter()
        seen += 1
        if seen == count:
            ctx.stop.set()  # drain: all outputs acknowledged, all offsets committed
        return (Outgoing(topics.completions_code, incoming.message),)

    async def handle_async(incoming: Incoming[Completion]) -> Iterable[Outgoing]:
        return handle(incoming)

    ended = run(ctx, topics, group, handle_async if asynchronous else handle, 16)
    assert seen == count
    return count / (ended - started)


def sleeping(common: CommonConfig, topics: Topics, count: int, group: str, concurrency: int) -> float:
    """Share of the ideal rate that handlers sleeping 1 to 100 ms reach, measured while work is plentiful."""
    ctx = context(common, topics)
    source = random.Random(7)
    slept = 0.0
    started = 0.0
    calls = 0

    async def handle(incoming: Incoming[Completion]) -> Iterable[Outgoing]:
        nonlocal slept, started, calls, ended
        calls += 1
        if calls == WARM_UP:
            started = time.perf_counter()
        delay = source.uniform(0.001, 0.1)
        await asyncio.sleep(delay)
        if started and not ctx.stop.is_set():
            slept += delay
            ended = time.perf_counter()
            if calls >= count:
                ctx.stop.set()
        return (Outgoing(topics.completions_code, incoming.message),)

    ended = 0.0
    run(ctx, topics, group, handle, concurrency)
    return slept / (PARTITIONS * concurrency) / (ended - started)


def context(common: CommonConfig, topics: Topics) -> ServiceContext[Section]:
    return ServiceContext("bench", Section(), common, Codec(), topics)


def run(ctx: ServiceContext[Section], topics: Topics, group: str, handler: object, concurrency: int) -> float:
    """Run a worker to its end; gives the time when it had committed, before it left the group."""
    worker: Worker[Completion] = Worker(
        ctx,
        group=group,
        inputs=[topics.completions_math],
        handler=handler,  # type: ignore[arg-type]
        concurrency=concurrency,
    )
    asyncio.run(worker.run())
    return worker.drained_at


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bootstrap")
    arguments = parser.parse_args()
    configure_logging("error", "json")
    broker = None if arguments.bootstrap else EmbeddedBroker()
    if broker:
        broker.start()
    try:
        measure(arguments.bootstrap or broker.bootstrap, arguments)  # type: ignore[union-attr]
    finally:
        if broker:
            broker.stop()


def measure(bootstrap: str, arguments: argparse.Namespace) -> None:
    prefix = f"bench{os.getpid()}."
    common = CommonConfig(bootstrap=bootstrap, topic_prefix=prefix, log_level="error")
    topics = Topics(prefix, PARTITIONS)
    apply(AdminClient(admin_config(common)), topics)
    with Publisher(common, Codec()) as publisher:
        for number in range(arguments.messages):
            publisher.publish(topics.completions_math, completion(number, arguments.tokens))
    rates: dict[str, list[float]] = {"bare": [], "kernel_sync": [], "kernel_async": []}
    for number in range(arguments.rounds):
        rates["bare"].append(bare(common, topics, arguments.messages, f"bare{number}"))
        rates["kernel_sync"].append(kernel(common, topics, arguments.messages, f"sync{number}", False))
        rates["kernel_async"].append(kernel(common, topics, arguments.messages, f"async{number}", True))
    share = sleeping(common, topics, min(arguments.messages, 6000), "sleep", 16)
    median = {name: round(statistics.median(values)) for name, values in rates.items()}
    best = {name: round(max(values)) for name, values in rates.items()}
    result = {
        "tokens": arguments.tokens,
        "median_per_s": median,
        "best_per_s": best,
        "all": {name: [round(value) for value in values] for name, values in rates.items()},
        "sync_to_bare": {"median": ratio(median, "kernel_sync"), "best": ratio(best, "kernel_sync")},
        "async_to_bare": {"median": ratio(median, "kernel_async"), "best": ratio(best, "kernel_async")},
        "sleeping_share_of_bound": round(share, 3),
    }
    print(json.dumps(result, indent=2))


def ratio(rates: dict[str, int], name: str) -> float:
    return round(rates[name] / rates["bare"], 3)


if __name__ == "__main__":
    main()
