"""The engine as the HTTP layer sees it: requests in, answers out, and everything that must wait its turn.

Runs on the server's event loop; the scheduler thread does the work. Each answer carries the weight version
that was in force at its last token.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from embedded_engine.adapters import AdapterRegistry, Loaded
from embedded_engine.config import EngineConfig
from embedded_engine.errors import Overloaded, RefusedRequest, UnsupportedModel
from embedded_engine.gate import Gate
from embedded_engine.model.lora import IN_BODY, Adapter, Placement, build_adapter, check_tensors, load_adapter
from embedded_engine.model.runner import Model
from embedded_engine.protocol import (
    GenerateRequest,
    SamplingParams,
)
from embedded_engine.request import FinishReason, Generation, SamplingPlan, abort_reason
from embedded_engine.scheduler import Scheduler
from embedded_engine.tensor_payload import read_named_tensors
from embedded_engine.tokenizer import Tokenizer
from embedded_engine.weight_protocol import LoadLoraRequest, LoadLoraTensorsRequest
from embedded_engine.weight_updates import WeightUpdates

ABORTED = "Abort request"
STOPPING = "The engine is shutting down."


@dataclass(eq=False)
class Ticket:
    """A request on the server's side, from arrival to its last token."""

    rid: str
    aborted: FinishReason | None = None
    entered: bool = False
    loaded: Loaded | None = None
    generation: Generation | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    progress: asyncio.Event = field(default_factory=asyncio.Event)


class Engine:
    """One model, its adapters and its requests."""

    def __init__(self, config: EngineConfig, model: Model, tokenizer: Tokenizer, scheduler: Scheduler) -> None:
        self.config = config
        self.model = model
        self.tokenizer = tokenizer
        self.scheduler = scheduler
        self.gate = Gate()
        self.adapters = AdapterRegistry(config.max_loaded_loras, self.gate, self._forget)
        self.weights = WeightUpdates(config, model, scheduler, self.gate, lambda: self.abort(None))
        self.created = time.time()
        self.stopping = False
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], object] = lambda: None
        self._tickets: dict[str, Ticket] = {}
        eos = set(model.spec.eos_token_ids)
        if tokenizer.eos_token_id is not None:
            eos.add(tokenizer.eos_token_id)
        self.eos = frozenset(eos)

    @property
    def model_path(self) -> str:
        """Where the base weights came from last, as far as they came from a folder."""
        return self.weights.model_path

    @property
    def weight_version(self) -> str:
        """Version of the base weights in force."""
        return self.model.weight_version

    @property
    def healthy(self) -> bool:
        """Requests are served."""
        return not self.stopping and self.failure is None

    async def generate(self, body: GenerateRequest, watch: Callable[[Ticket], asyncio.Task[None]]) -> dict[str, Any]:
        """Answer one request when it has ended.

        Args:
            body: the request.
            watch: starts the task that aborts the ticket when its client leaves.

        Raises:
            RefusedRequest: bad parameters, unknown adapter, too long.
            Overloaded: the queue is full, or the server stops.
        """
        last: dict[str, Any] = {}
        async with aclosing(self.stream(body, watch)) as answers:
            async for answer in answers:
                last = answer
        return last

    async def stream(
        self, body: GenerateRequest, watch: Callable[[Ticket], asyncio.Task[None]]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Cumulative answers as tokens come (with ``stream``), the last one finished. Errors as :meth:`generate`."""
        created = time.perf_counter()
        prompt, plan, first_logprob = self._check(body)
        ticket = self._open_ticket(body.rid or uuid.uuid4().hex)
        watcher = watch(ticket)
        try:
            ticket.entered = await self.gate.enter(lambda: ticket.aborted is not None)
            if not ticket.entered:
                finish = ticket.aborted or abort_reason(ABORTED)
                _raise_for(finish)
                yield self._unstarted(ticket.rid, prompt, plan, finish, created, body)
                return
            if body.lora_path is not None:
                ticket.loaded = self.adapters.acquire(body.lora_path)
            generation = self._submit(ticket, body, prompt, plan, first_logprob, created)
            async for count in self._progress(ticket, generation):
                yield self._answer(generation, count, body)
            assert generation.finish is not None
            _raise_for(generation.finish)
            yield self._answer(generation, len(generation.output_ids), body)
        finally:
            # Runs also when the client is gone and this task is cancelled, so nothing here may wait.
            watcher.cancel()
            if ticket.generation is None:
                self._close(ticket)
            elif not ticket.ended.is_set():
                self.scheduler.abort(ticket.rid, ABORTED)

    def abort(self, rid: str | None, message: str | None = None, status_code: int | None = None) -> None:
        """Abort one request, or all when ``rid`` is None. Unknown ids are ignored."""
        finish = abort_reason(message or ABORTED, status_code)
        for ticket in list(self._tickets.values()) if rid is None else [t for t in (self._tickets.get(rid),) if t]:
            ticket.aborted = finish
        self.gate.changed()
        self.scheduler.abort(rid, finish["message"])

    async def pause(self, mode: str) -> None:
        """Let nothing in; then abort what runs, hold it in place, or put it back to the queue."""
        self.gate.pause()
        if mode == "abort":
            for ticket in self._tickets.values():
                if ticket.generation is not None:
                    ticket.aborted = abort_reason(ABORTED)
            await self._done(self.scheduler.abort(None, ABORTED))
            await self.gate.until(lambda: self.gate.inside == 0)
        else:
            await self._done(self.scheduler.pause("retract" if mode == "retract" else "in_place"))

    async def resume(self) -> None:
        """End a pause."""
        await self._done(self.scheduler.resume())
        self.gate.resume()

    async def load_adapter(self, body: LoadLoraRequest) -> None:
        """Read and register an adapter. Raises RefusedRequest or UnsupportedModel."""
        place = self._placement(body.lora_name, body.pinned)
        await self.adapters.load(body.lora_name, lambda: load_adapter(self.model.spec, place, body.lora_path))

    async def load_adapter_from_tensors(self, body: LoadLoraTensorsRequest) -> None:
        """Register an adapter whose tensors came in the body. Raises RefusedRequest or UnsupportedModel."""
        place = self._placement(body.lora_name, body.pinned)

        def read() -> Adapter:
            tensors = dict(read_named_tensors(body.serialized_tensors, body.load_format))
            if body.expected_checksums is not None:
                check_tensors(tensors, body.expected_checksums)
            return build_adapter(self.model.spec, place, IN_BODY, body.config_dict, tensors)

        await self.adapters.load(body.lora_name, read)

    async def flush_cache(self, timeout: float) -> bool:
        """Drop cached prefixes once nothing runs, waiting at most ``timeout`` seconds for that."""
        deadline = time.monotonic() + timeout
        while True:
            if await asyncio.wrap_future(self.scheduler.flush()):
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.05)

    async def check(self) -> bool:
        """Generate one token; False when that fails or takes longer than 20 seconds."""
        body = GenerateRequest(
            rid=f"HEALTH_CHECK_{uuid.uuid4().hex}",
            input_ids=[0],
            sampling_params=SamplingParams(max_new_tokens=1, temperature=0.0),
        )
        try:
            async with asyncio.timeout(20):
                await self.generate(body, lambda _: asyncio.create_task(asyncio.sleep(0)))
        except (TimeoutError, Overloaded):
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """The scheduler died: nothing can be served any more. Any thread."""
        self.failure = error
        self.on_failure()

    def begin_stop(self) -> None:
        """Refuse new requests and end those under way, with what they have."""
        self.stopping = True
        for ticket in self._tickets.values():
            if ticket.generation is None:
                ticket.aborted = abort_reason(STOPPING, 503, "ServiceUnavailable")
        self.gate.changed()
        self.scheduler.abort(None, STOPPING)

    def _check(self, body: GenerateRequest) -> tuple[list[int], SamplingPlan, int | None]:
        """Prompt ids, sampling plan, and the first prompt position to score."""
        if not self.healthy:
            raise Overloaded(STOPPING if self.failure is None else f"The engine failed: {self.failure}")
        if len(self._tickets) >= self.config.max_running_requests + self.config.max_queued_requests:
            raise Overloaded("The request queue is full.")
        if (body.text is None) == (body.input_ids is None):
            raise RefusedRequest("Either text or input_ids should be provided, and not both.")
        prompt = self.tokenizer.encode(body.text) if body.text is not None else list(body.input_ids or ())
        vocab_size = self.model.spec.vocab_size
        if not prompt:
            raise RefusedRequest("The prompt is empty.")
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            wrong = next(token for token in prompt if not 0 <= token < vocab_size)
            raise RefusedRequest(f"input_ids holds {wrong}, which is outside of the vocabulary [0, {vocab_size - 1}].")
        params = body.sampling_params or SamplingParams()
        plan = params.plan(len(prompt), self.model.spec.context_length, vocab_size, self.eos)
        start = -1 if body.logprob_start_len is None else body.logprob_start_len
        if not -1 <= start < len(prompt):
            raise RefusedRequest(f"logprob_start_len must be in [-1, {len(prompt) - 1}], got {start}.")
        if len(prompt) + plan.max_new_tokens > self.scheduler.max_total_tokens:
            raise RefusedRequest(
                f"prompt and max_new_tokens need {len(prompt) + plan.max_new_tokens} tokens of cache, more than "
                f"max_total_tokens {self.scheduler.max_total_tokens}."
            )
        return prompt, plan, start if body.return_logprob and start >= 0 else None

    def _open_ticket(self, rid: str) -> Ticket:
        if rid in self._tickets:
            raise RefusedRequest(f"Duplicate request ID detected: {rid}")
        ticket = Ticket(rid)
        self._tickets[rid] = ticket
        return ticket

    def _close(self, ticket: Ticket) -> None:
        """The request is over, whether or not its client has read the answer: let go of what it held."""
        del self._tickets[ticket.rid]
        if ticket.loaded is not None:
            self.adapters.release(ticket.loaded)
        if ticket.entered:
            self.gate.leave()

    def _submit(
        self,
        ticket: Ticket,
        body: GenerateRequest,
        prompt: list[int],
        plan: SamplingPlan,
        first_logprob: int | None,
        created: float,
    ) -> Generation:
        loop = asyncio.get_running_loop()

        def moved(generation: Generation) -> None:
            if generation.finish is not None and not ticket.ended.is_set():
                ticket.ended.set()
                self._close(ticket)
            ticket.progress.set()

        def notify(generation: Generation) -> None:
            loop.call_soon_threadsafe(moved, generation)

        generation = Generation(
            rid=ticket.rid,
            prompt_ids=prompt,
            plan=plan,
            adapter=None if ticket.loaded is None else ticket.loaded.adapter,
            notify=notify,
            input_logprobs_from=first_logprob,
            stream=body.stream,
            priority=body.priority or 0,
            created=created,
        )
        ticket.generation = generation
        self.scheduler.submit(generation)
        return generation

    @staticmethod
    async def _progress(ticket: Ticket, generation: Generation) -> AsyncIterator[int]:
        """Number of tokens at each look, until the request has ended."""
        shown = 0
        while not ticket.ended.is_set():
            await ticket.progress.wait()
            ticket.progress.clear()
            count = len(generation.output_ids)
            if not ticket.ended.is_set() and count > shown:
                shown = count
                yield count

    def _answer(self, generation: Generation, count: int, body: GenerateRequest) -> dict[str, Any]:
        """SGLang's answer with the first ``count`` tokens."""
        done = count == len(generation.output_ids) and generation.finish is not None
        ids = generation.output_ids[:count]
        finish = generation.finish if done else None
        plan = generation.plan
        text = self.tokenizer.completion_text(
            ids, finish, skip_special_tokens=plan.skip_special_tokens, no_stop_trim=plan.no_stop_trim
        )
        meta: dict[str, Any] = {
            "id": generation.rid,
            "finish_reason": finish,
            "prompt_tokens": len(generation.prompt_ids),
            "weight_version": generation.weight_version if done else self.weight_version,
            "num_retractions": generation.retractions,
            "reasoning_tokens": 0,
            "completion_tokens": count,
            "cached_tokens": generation.cached_tokens,
            "lora_path": None if generation.adapter is None else generation.adapter.name,
        }
        if body.return_logprob:
            values = generation.output_logprobs[:count]
            meta["output_token_logprobs"] = self._triples(values, ids, body)
            meta["output_token_logprobs_length"] = count
            start = generation.input_logprobs_from
            if start is not None:
                scored = [None, *generation.input_logprobs]
                meta["input_token_logprobs"] = self._triples(scored, generation.prompt_ids[start:], body)
        if done and generation.ended is not None:
            meta["e2e_latency"] = generation.ended - generation.created
            if generation.started is not None:
                meta["queue_time"] = generation.started - generation.created
        answer: dict[str, Any] = {"text": text if done else text.rstrip("\ufffd"), "output_ids": ids, "meta_info": meta}
        if body.return_prompt_token_ids:
            answer["prompt_token_ids"] = generation.prompt_ids
        return answer

    def _triples(self, values: list[Any], ids: list[int], body: GenerateRequest) -> list[list[Any]]:
        texts: list[str | None] = [None] * len(ids)
        if body.return_text_in_logprobs:
            texts = [self.tokenizer.decode([token], skip_special_tokens=False) for token in ids]
        return [[value, token, text] for value, token, text in zip(values, ids, texts, strict=False)]

    def _unstarted(
        self,
        rid: str,
        prompt: list[int],
        plan: SamplingPlan,
        finish: FinishReason,
        created: float,
        body: GenerateRequest,
    ) -> dict[str, Any]:
        """Answer of a request that was aborted before it entered."""
        generation = Generation(rid=rid, prompt_ids=prompt, plan=plan, adapter=None, notify=_ignore, created=created)
        generation.finish, generation.ended = finish, time.perf_counter()
        generation.weight_version = self.weight_version
        return self._answer(generation, 0, body)

    def _placement(self, name: str, pinned: bool) -> Placement:
        return Placement(name, self.model.dtype, self.model.device, self.config.max_lora_rank, pinned)

    async def _forget(self, adapter: Adapter) -> None:
        await self._done(self.scheduler.forget_adapter(adapter))

    @staticmethod
    async def _done(future: Any) -> None:
        await asyncio.wrap_future(future)


def _raise_for(finish: FinishReason) -> None:
    """Aborts with a status become errors of that status, as in SGLang."""
    if finish["type"] != "abort" or finish["status_code"] is None:
        return
    if finish["status_code"] == 400:
        raise RefusedRequest(finish["message"])
    if finish["status_code"] == 503:
        raise Overloaded(finish["message"])
    raise UnsupportedModel(finish["message"])


def _ignore(_: Generation) -> None:
    """A request that nobody waits for."""
