"""Continuous batching: one thread owns the model, and requests join and leave at every step.

A step admits what fits, prefills it, and then decodes one token for every running request. Invariants:

- running requests occupy cache slots 0..n-1, in the order of ``_running``;
- before decoding, every running request has exactly one token without keys and values: its last;
- admission reserves prompt + max_new_tokens, so a running request never has to give way for want of cache;
- commands (abort, pause, weights) take effect between steps, never within one.
"""

from __future__ import annotations

import heapq
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Literal, TypeVar

import structlog
import torch

from embedded_engine.model.lora import Adapter, AdapterStack, BatchAdapters
from embedded_engine.model.runner import Model
from embedded_engine.model.sampling import BatchSampler, seeded_uniform
from embedded_engine.prefix_cache import PrefixCache
from embedded_engine.request import FinishReason, Generation, abort_reason
from embedded_engine.stats import EngineStats
from embedded_engine.tokenizer import Tokenizer

Hold = Literal["in_place", "retract"]
T = TypeVar("T")


class Scheduler:
    """Runs generations on a model.

    Args:
        model: the model; after :meth:`start` only the scheduler thread touches it.
        tokenizer: for stop strings.
        stats: counters that the server reads.
        max_running: requests decoded together.
        max_prefill_tokens: padded prompt tokens of one forward pass.
        prefix_cache_tokens: see :class:`PrefixCache`.
        seed: of the draws without a seed of their own; None takes one from the system.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        stats: EngineStats,
        *,
        max_running: int,
        max_prefill_tokens: int,
        prefix_cache_tokens: int,
        seed: int | None,
    ) -> None:
        self.stats = stats
        self.max_running = max_running
        self.max_total_tokens = model.cache.max_tokens
        """Reserved cache tokens, slots x longest reservation."""
        self._model = model
        self._tokenizer = tokenizer
        self._max_prefill_tokens = max_prefill_tokens
        self._prefixes = PrefixCache(model.cache, prefix_cache_tokens)
        self._random = random.Random(os.urandom(16) if seed is None else seed)
        self.on_crash: Callable[[BaseException], None] = _unheard
        """Called on the scheduler thread when it dies of an unexpected error."""
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._closed = False
        self._hold: Hold | None = None
        self._waiting: list[Generation] = []
        self._running: list[Generation] = []
        self._changed = True
        self._sampler: BatchSampler | None = None
        self._adapters: BatchAdapters | None = None
        self._stacks: dict[tuple[int, ...], AdapterStack] = {}
        self._log = structlog.get_logger()
        self._thread = threading.Thread(target=self._main, name="scheduler", daemon=True)

    # The server's side: any thread.

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Abort everything and end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout)

    def submit(self, request: Generation) -> None:
        """Queue a request; its ``notify`` tells when it has ended."""
        self._post(lambda: self._enqueue(request))

    def abort(self, rid: str | None, message: str) -> Future[None]:
        """End the request ``rid`` (all when None), keeping what it has so far; unknown ids are ignored."""
        return self.call(lambda: self._abort(rid, message))

    def pause(self, hold: Hold) -> Future[None]:
        """Stop stepping; ``retract`` also takes the running requests out of the cache."""
        return self.call(lambda: self._pause(hold))

    def resume(self) -> Future[None]:
        """Step again."""
        return self.call(self._resume)

    def flush(self) -> Future[bool]:
        """Drop all cached prefixes if nothing runs or waits; say whether that was so."""
        return self.call(self._flush)

    def forget_adapter(self, adapter: Adapter) -> Future[None]:
        """Drop cached prefixes of an adapter that no request uses any more."""
        return self.call(lambda: self._forget(adapter))

    def update_model(self, change: Callable[[Model], T]) -> Future[T]:
        """Run ``change`` on the model between two steps; cached prefixes are dropped."""

        def apply() -> T:
            result = change(self._model)
            self._prefixes.clear()
            return result

        return self.call(apply)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` on the scheduler thread between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 (handed to the caller, whatever it is)
                future.set_exception(error)
            else:
                future.set_result(result)

        self._post(run)
        return future

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            if not self._closed:
                self._commands.append(command)
                self._wake.notify()
                return
        command()  # The thread is gone, so its state may be touched from here: requests end, futures resolve.

    # The scheduler thread.

    def _main(self) -> None:
        torch.set_num_threads(self._model.threads)
        finish = abort_reason("The engine is shutting down.", 503, "ServiceUnavailable")
        try:
            with torch.inference_mode():
                while self._take_commands():
                    self._step()
        except Exception as error:  # noqa: BLE001 (whatever it was, requests must get an answer and the server end)
            self._log.exception("scheduler died", error=str(error))
            finish = abort_reason(f"The engine failed: {error}", 500, "InternalServerError")
            self.on_crash(error)
        self._stopping = True
        with torch.inference_mode():
            self._end_all(finish)
            with self._wake:
                rest = list(self._commands)
                self._closed = True
            for command in rest:
                command()

    def _take_commands(self) -> bool:
        """Run pending commands; with nothing else to do, wait for some. False when it is time to stop."""
        while True:
            with self._wake:
                idle = self._hold is not None or not (self._running or self._waiting)
                if idle and not self._commands and not self._stopping:
                    self._wake.wait()
                commands = list(self._commands)
                self._commands.clear()
                stopping = self._stopping
            for command in commands:
                command()
            if stopping:
                return False
            if self._hold is None and (self._running or self._waiting):
                return True

    def _step(self) -> None:
        started = time.perf_counter()
        if self._waiting:
            self._admit()
        if self._running:
            self._decode()
        if not self._running and not self._waiting:
            self._settle()
        self._count()
        self.stats.stepped(time.perf_counter() - started)

    def _settle(self) -> None:
        """Nothing left to run: give surplus cache memory back."""
        if self._model.cache.slots * self._model.cache.capacity > self.max_total_tokens:
            self._model.cache.shrink()

    def _enqueue(self, request: Generation) -> None:
        if self._stopping:
            self._end(request, abort_reason("The engine is shutting down.", 503, "ServiceUnavailable"))
            return
        heapq.heappush(self._waiting, request)
        self._count()

    def _count(self) -> None:
        self.stats.running = len(self._running)
        self.stats.waiting = len(self._waiting)
        self.stats.running_tokens = sum(request.computed for request in self._running)
        self.stats.stored_tokens = self._prefixes.stored_tokens

    def _admit(self) -> None:
        """Move waiting requests into the cache while slots and reservations allow, and prefill them."""
        joined: list[Generation] = []
        longest = max((request.reserved for request in self._running), default=0)
        while self._waiting and len(self._running) + len(joined) < self.max_running:
            request = self._waiting[0]
            reserved = max(longest, request.reserved)
            slots = len(self._running) + len(joined) + 1
            if slots > 1 and slots * reserved > self.max_total_tokens:
                break
            longest = reserved
            joined.append(heapq.heappop(self._waiting))
        if not joined:
            return
        self._model.cache.reserve(len(self._running) + len(joined), longest)
        now = time.perf_counter()
        for request in joined:
            if request.started is None:
                request.started = now
        # Requests with the same prompt follow its first: they copy what that one computes.
        seen: set[tuple[int, tuple[int, ...]]] = set()
        leaders: list[Generation] = []
        followers: list[Generation] = []
        for request in joined:
            key = (request.adapter_uid, tuple(request.tokens))
            (followers if key in seen else leaders).append(request)
            seen.add(key)
        self._prefill(leaders)
        if followers:
            self._prefill(followers)
        for request in joined:
            if request.plan.max_new_tokens == 0:
                self._leave(request, {"type": "length", "length": 0})

    def _prefill(self, requests: list[Generation]) -> None:
        """Give requests slots, reuse known prefixes, compute the rest but for each one's last token."""
        first = len(self._running)
        cache = self._model.cache
        cache.ensure(first + len(requests), max(len(request.tokens) for request in requests) + 1)
        for slot, request in enumerate(requests, start=first):
            request.slot = slot
            limit = len(request.tokens) - 1
            if request.input_logprobs_from is not None and not request.output_ids:
                limit = min(limit, request.input_logprobs_from)
                request.input_logprobs = []
            request.computed = self._prefixes.fill(request, limit)
            if not request.output_ids:
                request.cached_tokens = request.computed
                self.stats.prompt_tokens += len(request.prompt_ids)
                self.stats.cached_tokens += request.cached_tokens
        self._running.extend(requests)
        self._changed = True
        pending = [request for request in requests if request.computed < len(request.tokens) - 1]
        pending.sort(key=lambda request: request.slot)
        while pending:
            batch = self._next_prefill(pending)
            self._extend(batch)
            pending = [request for request in pending if request.computed < len(request.tokens) - 1]
        for request in requests:
            self._prefixes.add_running(request)

    def _next_prefill(self, pending: list[Generation]) -> list[Generation]:
        """Neighbours in the cache whose padded size fits one forward pass."""
        batch = [pending[0]]
        widest = len(pending[0].tokens) - 1 - pending[0].computed
        for request in pending[1:]:
            width = max(widest, len(request.tokens) - 1 - request.computed)
            if request.slot != batch[-1].slot + 1 or width * (len(batch) + 1) > self._max_prefill_tokens:
                break
            widest = width
            batch.append(request)
        return batch

    def _extend(self, batch: list[Generation]) -> None:
        """Compute keys and values of the next tokens of neighbours, up to but without their last token."""
        limit = max(1, self._max_prefill_tokens // len(batch))
        counts = [min(limit, len(request.tokens) - 1 - request.computed) for request in batch]
        width = max(counts)
        rows = [
            request.tokens[request.computed : request.computed + count] + [0] * (width - count)
            for request, count in zip(batch, counts, strict=True)
        ]
        ids = torch.tensor(rows, device=self._model.device)
        starts = [request.computed for request in batch]
        adapters = self._bind(batch, width)
        hidden = self._model.transformer.forward(ids, starts, batch[0].slot, adapters)
        for row, (request, count) in enumerate(zip(batch, counts, strict=True)):
            if request.input_logprobs_from is not None and not request.output_ids:
                self._score_prompt(request, hidden[row, :count])
            request.computed += count

    def _score_prompt(self, request: Generation, hidden: torch.Tensor) -> None:
        """Log-probabilities of the prompt tokens that follow ``hidden`` [n, hidden], from the wanted one on."""
        assert request.input_logprobs_from is not None
        begin = max(request.input_logprobs_from - request.computed, 0)
        if begin >= hidden.shape[0]:
            return
        first = request.computed + begin
        targets = request.prompt_ids[first + 1 : request.computed + hidden.shape[0] + 1]
        for start in range(0, len(targets), 256):
            part = targets[start : start + 256]
            logits = self._model.transformer.logits(hidden[begin + start : begin + start + len(part)])
            chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(part, device=logits.device)[:, None])
            request.input_logprobs.extend(chosen[:, 0].tolist())

    def _decode(self) -> None:
        """One token for every running request."""
        running = self._running
        if self._changed or self._sampler is None:
            self._sampler = BatchSampler([request.plan.draw for request in running], self._model.device)
            self._adapters = self._bind(running, 1)
            self._changed = False
        ids = torch.tensor([request.tokens[-1:] for request in running], device=self._model.device)
        starts = [request.computed for request in running]
        hidden = self._model.transformer.forward(ids, starts, 0, self._adapters)
        logits = self._model.transformer.logits(hidden[:, 0])
        uniforms = [
            self._random.random()
            if request.plan.seed is None
            else seeded_uniform(request.plan.seed, len(request.tokens))
            for request in running
        ]
        banned = [
            (row, sorted(request.plan.stop_token_ids))
            for row, request in enumerate(running)
            if len(request.output_ids) < request.plan.min_new_tokens and request.plan.stop_token_ids
        ]
        sampled = self._sampler.sample(logits, uniforms, banned)
        now = time.perf_counter()
        ended: list[tuple[Generation, FinishReason, bool]] = []
        for request, token, logprob, finite in zip(
            list(running), sampled.ids, sampled.logprobs, sampled.finite, strict=True
        ):
            request.computed += 1
            if not finite:
                name = "the base model" if request.adapter is None else f"adapter {request.adapter.name}"
                reason = abort_reason(f"{name} gave logits that are not finite", 500, "InternalServerError")
                ended.append((request, reason, True))
                continue
            request.append(token, logprob)
            if request.first_token is None:
                request.first_token = now
            finish = self._finished(request, token)
            if finish is not None:
                ended.append((request, finish, False))
            elif request.stream and len(request.output_ids) % request.plan.stream_interval == 0:
                request.notify(request)
        self.stats.generation_tokens += len(running)
        for request, finish, poisoned in ended:
            self._leave(request, finish, poisoned=poisoned)

    def _finished(self, request: Generation, token: int) -> FinishReason | None:
        plan = request.plan
        length = len(request.output_ids)
        if token in plan.stop_token_ids:
            return {"type": "stop", "matched": token}
        if plan.stop and length >= plan.min_new_tokens:
            found = self._tokenizer.find_stop(
                request.output_ids, plan.stop, skip_special_tokens=plan.skip_special_tokens
            )
            if found is not None:
                return {"type": "stop", "matched": found}
        if length >= plan.max_new_tokens:
            return {"type": "length", "length": plan.max_new_tokens}
        return None

    def _leave(self, request: Generation, finish: FinishReason, *, poisoned: bool = False) -> None:
        """Take a running request out of the cache and end it."""
        if poisoned:
            self._prefixes.remove_running(request, 0)
        else:
            # A completed answer never comes back as a prompt; its prompt does, and so does a cut-off partial.
            whole = finish["type"] != "stop"
            keep = request.computed if whole else min(request.computed, len(request.prompt_ids))
            self._prefixes.remove_running(request, keep)
        self._vacate(request, clear=poisoned)
        self._end(request, finish)

    def _vacate(self, request: Generation, *, clear: bool = False) -> None:
        """Free a slot and move the last running request into it."""
        cache = self._model.cache
        if clear:
            cache.clear(request.slot)
        last = self._running.pop()
        if last is not request:
            cache.copy(last.slot, request.slot, last.computed)
            if clear:
                cache.clear(last.slot)
            self._running[request.slot] = last
            last.slot = request.slot
        request.slot = -1
        self._changed = True

    def _end(self, request: Generation, finish: FinishReason) -> None:
        request.ended = time.perf_counter()
        request.weight_version = self._model.weight_version
        request.finish = finish
        self.stats.ended(request)
        request.notify(request)

    def _end_all(self, finish: FinishReason) -> None:
        for request in [*self._running, *self._waiting]:
            self._end(request, finish)
        self._running.clear()
        self._waiting.clear()
        self._prefixes.clear()
        self._count()

    def _abort(self, rid: str | None, message: str) -> None:
        for request in [request for request in self._running if rid in (None, request.rid)]:
            self._leave(request, abort_reason(message))
        dropped = [request for request in self._waiting if rid in (None, request.rid)]
        if dropped:
            self._waiting = [request for request in self._waiting if request not in dropped]
            heapq.heapify(self._waiting)
            for request in dropped:
                self._end(request, abort_reason(message))
        self._count()

    def _pause(self, hold: Hold) -> None:
        self._hold = hold
        if hold == "retract":
            for request in list(self._running):
                self._prefixes.remove_running(request, 0)
                self._vacate(request)
                request.computed = 0
                request.retractions += 1
                self.stats.retractions += 1
                heapq.heappush(self._waiting, request)
        self._count()

    def _resume(self) -> None:
        self._hold = None

    def _flush(self) -> bool:
        if self._running or self._waiting:
            return False
        self._prefixes.clear()
        self._model.cache.shrink()
        return True

    def _forget(self, adapter: Adapter) -> None:
        self._prefixes.forget_adapter(adapter.uid)
        self._stacks = {uids: stack for uids, stack in self._stacks.items() if adapter.uid not in uids}
        self._count()

    def _bind(self, requests: Iterable[Generation], width: int) -> BatchAdapters | None:
        """LoRA deltas of a batch, ``width`` tokens to a request."""
        listed = list(requests)
        by_uid = {request.adapter_uid: request.adapter for request in listed if request.adapter is not None}
        if not by_uid:
            return None
        uids = tuple(sorted(by_uid))
        stack = self._stacks.get(uids)
        if stack is None:
            found = [adapter for uid in uids if (adapter := by_uid[uid]) is not None]
            stack = AdapterStack(found, self._model.spec.layers)
            if len(self._stacks) >= 8:
                self._stacks.pop(next(iter(self._stacks)))
            self._stacks[uids] = stack
        if len(uids) == 1 and all(request.adapter is not None for request in listed):
            return BatchAdapters(stack, None, self._model.device)
        place = {uid: index for index, uid in enumerate(uids)}
        owners = [place.get(request.adapter_uid, -1) for request in listed for _ in range(width)]
        return BatchAdapters(stack, owners, self._model.device)


def _unheard(_: BaseException) -> None:
    """Nobody listens yet; the thread's own traceback tells."""
