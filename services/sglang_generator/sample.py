"""Sampling a file of problems from one engine, without the line: evaluation and offline data.

The rows are those of ``gristmill problems export``; what comes out is what ``gristmill verify`` takes in. Prompts
are rendered as on the line, requests are sent through the same desk, and responses are checked but for the version of
the weights.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gristmill.errors import BadInput, GristmillError
from gristmill.messages import ChatMessage, Problem, Sampling, make_group_id, now_ms
from sglang_generator.config import GeneratorConfig, StaticPolicy
from sglang_generator.desk import Ask, Desk
from sglang_generator.engine_client import EngineClient
from sglang_generator.errors import EngineError
from sglang_generator.policy import static_policy
from sglang_generator.prompts import Prompts
from sglang_generator.refill import Refill
from sglang_generator.wire import Expected, Generated, Prompt, Request, sampling_params

RUN = "sample"


@dataclass(frozen=True, slots=True)
class SampleJob:
    """What to sample, from which policy."""

    engine: str
    source: Path
    out: Path
    samples: int
    adapter: Path | None
    overrides: dict[str, Any]
    """Sampling parameters that win over a row's own."""


class _Row(msgspec.Struct):
    problem_id: str
    answer: str | None = None
    messages: tuple[ChatMessage, ...] = ()
    prompt: str | None = None
    tests: dict[str, Any] | None = None
    """Of a code problem; copied to its completions."""
    sampling: dict[str, Any] = {}


async def sample_file(job: SampleJob, config: GeneratorConfig, progress: Callable[[int, int], None]) -> int:
    """Sample every row ``job.samples`` times, in order of the rows; gives the number of completions written.

    Raises:
        GristmillError: a row is unusable (with its line number), or the engine fails a request for good.
    """
    rows = list(_read(job.source))
    client = EngineClient(job.engine.rstrip("/"), config)
    try:
        info = await client.model_info()
        prompts = Prompts()
        await prompts.load(config.tokenizer or info.tokenizer_path or info.model_path)
        problems = [_problem(number, row, job) for number, row in rows]
        async with _adapter(client, job.adapter) as name:
            sampler = _Sampler(client, config)
            in_hand = asyncio.Semaphore(2 * config.first_concurrency)  # as many again are ready when slots are free
            expected = Expected(adapter=name, weight_version=None)
            rendered: dict[int, Prompt] = {}
            done = 0

            async def one(number: int, problem: Problem, row: _Row, index: int) -> dict[str, Any]:
                nonlocal done
                async with in_hand:
                    if number not in rendered:
                        rendered[number] = Prompt(prompts.render(problem))
                    found = await sampler.sample(rendered[number], sampling_params(problem.sampling, index), expected)
                done += 1
                progress(done, len(rows) * job.samples)
                scored_by = {"gold": row.answer} if row.tests is None else {"tests": row.tests}
                return {
                    "id": f"{row.problem_id}/{index}",
                    "line": number,
                    **scored_by,
                    "completion": found.text,
                    "finish_reason": found.finish_reason,
                    "completion_tokens": len(found.ids) // 4,
                }

            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(one(number, problem, row, index))
                    for (number, row), problem in zip(rows, problems, strict=True)
                    for index in range(job.samples)
                ]
    except* GristmillError as errors:
        raise _first(errors) from None
    finally:
        await client.close()
    partial = job.out.with_name(job.out.name + ".partial")
    partial.write_text("".join(json.dumps(t.result(), ensure_ascii=False) + "\n" for t in tasks), encoding="utf-8")
    partial.replace(job.out)
    return len(tasks)


class _Sampler:
    """One engine, asked for one sample at a time by each of many tasks."""

    def __init__(self, client: EngineClient, config: GeneratorConfig) -> None:
        self._client = client
        self._config = config
        self._policy = static_policy(StaticPolicy(), RUN)
        self._desk = Desk(
            client,
            config.first_concurrency,
            usable_for=lambda _: True,
            epoch=lambda: 0,
            on_room=lambda: None,
            refill=Refill(config.prefill_cost_s),
        )

    async def sample(self, prompt: Prompt, params: dict[str, Any], expected: Expected) -> Generated:
        """One completion, in as many attempts as the settings allow."""
        for attempt in range(1, self._config.attempts + 1):
            try:
                return await self._ask(Request(uuid.uuid4().hex, prompt, params, expected))
            except EngineError:
                if attempt == self._config.attempts:
                    raise
                await asyncio.sleep(self._config.retry_backoff_s * 2 ** (attempt - 1))
        raise AssertionError("unreachable: attempts is at least 1")

    async def _ask(self, request: Request) -> Generated:
        ready = asyncio.Event()
        ask = Ask(self._policy, request, ready.set)
        self._desk.submit(ask)
        try:
            await ready.wait()
            outcome = ask.outcome
        finally:
            self._desk.close_ask(ask)
        assert outcome is not None  # the policy is always usable
        return self._client.read(request, outcome)


@asynccontextmanager
async def _adapter(client: EngineClient, folder: Path | None) -> AsyncIterator[str | None]:
    """Name of the adapter, loaded for the time being under a name of its own; None for the bare model."""
    if folder is None:
        yield None
        return
    name = f"sample-{uuid.uuid4().hex}"
    reply = await client.load_lora_adapter(name, str(folder.absolute()))
    if not reply.success:
        raise GristmillError(f"the engine {client.url} does not load {folder}: {reply.error_message}")
    try:
        yield name
    finally:
        await client.unload_lora_adapter(name)


def _problem(number: int, row: _Row, job: SampleJob) -> Problem:
    try:
        sampling = msgspec.convert({**row.sampling, **job.overrides}, Sampling)
    except msgspec.ValidationError as error:
        raise BadInput(f"{job.source}, line {number}: sampling: {error}; --max-new-tokens and others set it") from error
    return Problem(
        run_id=RUN,
        ordinal=number,
        group_id=make_group_id(RUN, number),
        problem_id=row.problem_id,
        kind="math",
        messages=row.messages,
        prompt=row.prompt,
        source=str(job.source),
        group_size=job.samples,
        sampling=sampling,
        created_at_ms=now_ms(),
    )


def _read(path: Path) -> Iterator[tuple[int, _Row]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise GristmillError(f"{path}: cannot read: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, msgspec.json.decode(line, type=_Row)
        except msgspec.DecodeError as error:
            raise BadInput(f"{path}, line {number}: {error}") from error


def _first(errors: BaseExceptionGroup[GristmillError]) -> GristmillError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, GristmillError)
    return error
