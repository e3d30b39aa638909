"""What the generator's tests share: policy artifacts, and generators at work, with a broker and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fake_engine import EMBEDDING
from safetensors.numpy import save_file

from gristmill.artifacts import digest_dir, to_uri
from gristmill.messages import Completion, PolicyVersion, Problem, Verdict, unpack_ids
from gristmill.publisher import Publisher
from gristmill.reader import read_all
from gristmill.topics import Topic
from gristmill.worker import Incoming
from sglang_generator.config import GeneratorConfig
from sglang_generator.policy import static_policy
from sglang_generator.service import Generator
from support.context import apply_topics, make_context

RUN = "run"


def make_artifact(folder: Path, version: int) -> Path:
    """An artifact whose tokens the fake engine can be recognised by."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "version.txt").write_text(str(version))
    return folder


def make_policy(folder: Path, version: int, admit_until: int, run_id: str = RUN, **over: Any) -> PolicyVersion:
    """A published version; its artifact is written below ``folder``."""
    artifact = make_artifact(folder / f"{run_id}-v{version}", version)
    values: dict[str, Any] = {
        "run_id": run_id,
        "version": version,
        "step": version,
        "name": f"{run_id}-v{version}",
        "base_model": "base",
        "kind": "lora",
        "uri": to_uri(artifact),
        "sha256": digest_dir(artifact),
        "admit_until": admit_until,
        "settled_groups": 0,
        "trained": 0,
        "rejected": 0,
        "filtered": 0,
        "failed": 0,
        "max_staleness": 0,
        "groups_per_step": 1,
        "published_at_ms": 1,
    }
    return PolicyVersion(**values | over)


def make_full_policy(folder: Path, version: int, admit_until: int = 1000, **over: Any) -> PolicyVersion:
    """A published version of whole weights: six tensors, all of the version's value, and a tied head."""
    artifact = folder / f"{RUN}-v{version}"
    artifact.mkdir(parents=True, exist_ok=True)
    names = [EMBEDDING, "model.a", "model.b", "model.c", "model.d", "model.norm.weight", "lm_head.weight"]
    save_file({name: np.full(64, version, dtype="<f4") for name in names}, artifact / "model.safetensors")
    (artifact / "config.json").write_text('{"tie_word_embeddings": true}')
    return make_policy(folder, version, admit_until, **{"kind": "full"} | over)


def make_lora_policy(folder: Path, version: int, admit_until: int = 1000) -> PolicyVersion:
    """A published adapter in PEFT's format; version 0 adds nothing."""
    artifact = folder / f"{RUN}-v{version}"
    artifact.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"q_proj.lora_{part}.weight": np.full((2, 4), value, dtype="<f4")
        for part, value in (("A", 1.0), ("B", version))
    }
    save_file(tensors, artifact / "adapter_model.safetensors")
    (artifact / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
    return make_policy(folder, version, admit_until)


class Line:
    """A broker with topics of its own, and generators on it."""

    def __init__(self, bootstrap: str, prefix: str, partitions: int = 4) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.partitions = partitions
        self.topics = apply_topics(bootstrap, prefix, partitions)
        self._ctx = make_context(bootstrap, prefix, partitions=partitions, run_id=RUN)
        self._publisher = Publisher(self._ctx.common, self._ctx.codec)

    async def publish(self, topic: Topic, *messages: Any) -> None:
        """Write messages and wait for the broker."""
        for message in messages:
            self._publisher.publish(topic, message)
        await asyncio.to_thread(self._publisher.flush_acked)

    async def publish_raw(self, topic: Topic, key: str, value: bytes) -> None:
        self._publisher.publish_raw(topic, key, value)
        await asyncio.to_thread(self._publisher.flush_acked)

    async def problems(self, *problems: Problem) -> None:
        await self.publish(self.topics.problems, *problems)

    async def policy(self, *records: PolicyVersion) -> None:
        await self.publish(self.topics.policies, *records)

    async def read(self, topic: Topic) -> list[Any]:
        """Everything on a topic: messages, or raw records of the dead letters."""
        records = await asyncio.to_thread(lambda: list(read_all(self._ctx.common, self._ctx.codec, topic)))
        return [record.message if record.message is not None else record for record in records]

    async def completions(self) -> list[Completion]:
        return await self.read(self.topics.completions_math)

    async def verdicts(self) -> list[Verdict]:
        return await self.read(self.topics.verdicts)

    @asynccontextmanager
    async def generator(self, engines: list[str], **settings: Any) -> AsyncIterator[Generator]:
        """A generator at work; stopped, and its outcome checked, at the end."""
        common = {"run_id": settings.pop("run_id", RUN), "drain_timeout_s": settings.pop("drain_timeout_s", 5.0)}
        config = GeneratorConfig(**fast(engines) | settings)
        ctx = make_context(
            self.bootstrap, self.prefix, config, name="sglang_generator", partitions=self.partitions, **common
        )
        generator = Generator(ctx)
        task = asyncio.create_task(generator.run())
        generator.stop = ctx.stop  # type: ignore[attr-defined]
        generator.health = ctx.health  # type: ignore[attr-defined]
        generator.metrics = ctx.metrics  # type: ignore[attr-defined]
        generator.task = task  # type: ignore[attr-defined]
        try:
            yield generator
        finally:
            ctx.stop.set()
            await task


class Rig:
    """A generator without a broker: policies and problems are handed to it, outputs come back."""

    def __init__(self, generator: Generator, stop: Any) -> None:
        self.generator = generator
        self.fleet = generator.fleet
        self.stop = stop

    def policy(self, *records: PolicyVersion) -> None:
        assert self.generator.follower is not None
        for record in records:
            self.generator.follower.take(record)

    async def current(self, version: int, timeout: float = 20.0) -> None:
        """Wait until new groups are sampled by ``version``."""

        def reached() -> bool:
            return self.fleet.current is not None and self.fleet.current.version == version

        await eventually(reached, timeout, what=f"version {version}")

    async def sample(self, problem: Problem) -> list[Any]:
        incoming = Incoming(problem, "problems", 0, problem.ordinal, problem.key, {}, 1)
        return [outgoing.message for outgoing in await self.generator.handle(incoming)]

    async def samples(self, problems: Iterable[Problem]) -> list[Any]:
        """Of all problems, sampled at the same time."""
        groups = await asyncio.gather(*(self.sample(problem) for problem in problems))
        return [sample for group in groups for sample in group]

    def metric(self, name: str, **labels: str) -> float:
        return self.generator.registry.get_sample_value(f"gristmill_generator_{name}", labels) or 0.0  # type: ignore[attr-defined]


@asynccontextmanager
async def running(engines: list[str], **settings: Any) -> AsyncIterator[Rig]:
    """A rig at work."""
    config = GeneratorConfig(**fast(engines) | settings)
    ctx = make_context("127.0.0.1:1", "", config, name="sglang_generator", run_id=RUN)
    generator = Generator(ctx)
    generator.registry = ctx.metrics.registry  # type: ignore[attr-defined]
    generator.health = ctx.health  # type: ignore[attr-defined]
    tasks = [asyncio.create_task(generator.fleet.run())]
    if generator.follower is None:
        generator.fleet.set_target(static_policy(config.static_policy, RUN))
    else:
        generator.follower.caught_up.set()
        tasks.append(asyncio.create_task(generator.follower.verify()))
    try:
        yield Rig(generator, ctx.stop)
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await generator.fleet.close()


def fast(engines: list[str]) -> dict[str, Any]:
    """Settings with short waits."""
    return {
        "engines": tuple(engines),
        "breaker_reset_s": 0.1,
        "breaker_max_s": 0.3,
        "retry_backoff_s": 0.02,
        "connect_timeout_s": 1.0,
    }


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], timeout: float = 20.0, what: str = "the condition"
) -> None:
    """Poll until true; fail loudly otherwise."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        found = condition()
        if not isinstance(found, bool):
            found = await found
        if found:
            return
        assert loop.time() < deadline, f"{what} did not come true in {timeout} s"
        await asyncio.sleep(0.02)


def tokens(completion: Completion) -> set[int]:
    """Distinct token ids of a completion: with the fake engine, which weights made it."""
    return set(unpack_ids(completion.completion_token_ids).tolist())
