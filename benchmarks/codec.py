"""Codec speed: completions encoded and decoded per second and core, against the usual ways in the same run.

    python benchmarks/codec.py [--rounds 20] [--tokens 2000]

The contenders take turns within every round and each counts its best round, so that a busy or throttled machine
slows all of them alike. Time is CPU time of this process. Contenders:

* gristmill: ``Codec``, message class to bytes and back, token ids and logprobs as bytes fields.
* fastavro bytes: the same schema and bytes through fastavro, from and to dictionaries (no message class).
* confluent arrays: confluent-kafka's AvroSerializer and AvroDeserializer, the same message with token ids and
  logprobs as Avro arrays (lists of numbers): what one would write without thinking of speed.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import time
from collections.abc import Callable
from typing import Any

import fastavro
import msgspec
import numpy as np
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from gristmill.codec import Codec
from gristmill.messages import (
    Completion,
    PolicySpan,
    Sampling,
    make_group_id,
    make_sample_id,
    now_ms,
    pack_ids,
    pack_logprobs,
    unpack_ids,
    unpack_logprobs,
)
from gristmill.schemas import load_schema

Contender = tuple[str, Callable[[], Any], Callable[[], Any], int]


def completion(tokens: int) -> Completion:
    """A completion of ``tokens`` tokens with three bytes of text each."""
    numbers = np.random.default_rng(0)
    words = random.Random(0)
    group = make_group_id("run-1", 1)
    return Completion(
        run_id="run-1",
        sample_id=make_sample_id(group, 3),
        group_id=group,
        index=3,
        ordinal=1,
        group_size=8,
        problem_id="gsm8k/train/12",
        kind="math",
        source="gsm8k",
        difficulty=0.5,
        reference="42",
        prompt_token_ids=pack_ids(numbers.integers(0, 150_000, 100)),
        completion_token_ids=pack_ids(numbers.integers(0, 150_000, tokens)),
        logprobs=pack_logprobs(-numbers.random(tokens)),
        text="".join(words.choice("abcdefghijklmnop   ") for _ in range(3 * tokens)),
        finish_reason="stop",
        policy_run_id="run-1",
        policy_version_oldest=3,
        policy_version_newest=3,
        policy_spans=(PolicySpan(version=3, start=0, length=tokens),),
        sampling=Sampling(temperature=1.0, max_new_tokens=4096, seed=7),
        engine="http://127.0.0.1:30000",
        engine_weight_version="run-1-v3",
        admission_wait_s=0.5,
        generation_s=12.5,
        problem_created_at_ms=now_ms(),
        completed_at_ms=now_ms(),
    )


def with_arrays(schema: Any) -> Any:
    """The schema with token ids and logprobs as arrays."""
    if isinstance(schema, list):
        return [with_arrays(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    match schema.get("logicalType"):
        case "token-ids-int32-le":
            return {"type": "array", "items": "int"}
        case "logprobs-float32-le":
            return {"type": "array", "items": "float"}
    return {key: with_arrays(value) for key, value in schema.items()}


def contenders(message: Completion) -> list[Contender]:
    codec = Codec()
    encoded = codec.encode(message)

    schema = load_schema("completion").parsed
    record = msgspec.to_builtins(message, builtin_types=(bytes,))

    def fastavro_encode() -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, record)
        return out.getvalue()

    body = fastavro_encode()

    arrays = dict(record)
    for name in ("prompt_token_ids", "completion_token_ids"):
        arrays[name] = unpack_ids(record[name]).tolist()
    arrays["logprobs"] = unpack_logprobs(record["logprobs"]).tolist()
    text = json.dumps(with_arrays(json.loads(load_schema("completion").text)))
    registry = SchemaRegistryClient.new_client({"url": "mock://benchmark"})
    serialize, deserialize = AvroSerializer(registry, text), AvroDeserializer(registry, text)
    context = SerializationContext("completions.math", MessageField.VALUE)
    serialized = serialize(arrays, context)
    return [
        ("gristmill", lambda: codec.encode(message), lambda: codec.decode(encoded, Completion), len(encoded)),
        (
            "fastavro bytes",
            fastavro_encode,
            lambda: fastavro.schemaless_reader(io.BytesIO(body), schema, None),
            len(body),
        ),
        (
            "confluent arrays",
            lambda: serialize(arrays, context),
            lambda: deserialize(serialized, context),
            len(serialized),
        ),
    ]


def per_second(action: Callable[[], Any], seconds: float) -> float:
    """Calls per second of CPU time, over about ``seconds``."""
    count, started = 0, time.process_time()
    while (spent := time.process_time() - started) < seconds:
        for _ in range(10):
            action()
        count += 10
    return count / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=2000)
    arguments = parser.parse_args()
    rows = contenders(completion(arguments.tokens))
    best = {name: [0.0, 0.0] for name, _, _, _ in rows}
    for _ in range(arguments.rounds):
        for name, encode, decode, _ in rows:
            for index, action in enumerate((encode, decode)):
                best[name][index] = max(best[name][index], per_second(action, 0.1))
    print(f"{'codec':<18}{'bytes':>8}{'encode/s':>12}{'decode/s':>12}")
    for name, _, _, size in rows:
        print(f"{name:<18}{size:>8}{best[name][0]:>12,.0f}{best[name][1]:>12,.0f}")
    ratios = [ours / theirs for ours, theirs in zip(best["gristmill"], best["confluent arrays"], strict=True)]
    print(f"gristmill / confluent arrays: encode {ratios[0]:.1f}x, decode {ratios[1]:.1f}x")


if __name__ == "__main__":
    main()
