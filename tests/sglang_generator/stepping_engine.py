"""A fake engine that steps as SGLang's scheduler does, in a process of its own, for benchmarks.

While requests wait, a step prefills all of them that fit; else it decodes one token of every running request. A step
takes its time whatever its size, so throughput depends on how many sequences a prefill gets, that is on how closely
together a client's requests arrive. Answers go out when their last step is over, while the next
one runs: the steps are a thread's, as SGLang's scheduler is a process of its own. Before the scheduler stands a
frontend, which passes requests and answers on one after the other and takes its time with each.

How many tokens a request gets follows from its number alone: of every 64, most get all that they asked for.
``GET /steps`` tells what was counted since the last time it was asked.

``python stepping_engine.py PORT TOKENIZER PREFILL_S DECODE_S FRONTEND_S MAX_RUNNING``
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from fake_engine import FakeEngine

BLOCK = 64
FULL = 45
"""Of a block's requests, those that get every token that they asked for."""
SHORTEST = 0.25
"""Share of its tokens that the shortest gets."""


class _Params(msgspec.Struct):
    max_new_tokens: int


class _Body(msgspec.Struct):
    rid: str
    input_ids: list[int]
    sampling_params: _Params
    lora_path: str | None = None


class _Running:
    __slots__ = ("answer", "lane", "tokens")

    def __init__(self, lane: _Lane, tokens: int, answer: tuple[bytes, ...]) -> None:
        self.lane = lane
        self.tokens = tokens
        self.answer = answer


@cache
def lengths(block: int) -> list[float]:
    """Shares of the tokens asked for that the requests of a block get."""
    step = (1 - SHORTEST) / (BLOCK - FULL)
    shares = [1.0] * FULL + [SHORTEST + step * index for index in range(BLOCK - FULL)]
    random.Random(block).shuffle(shares)
    return shares


@cache
def logprobs(token: int, count: int) -> bytes:
    """In SGLang's format, with as many digits as a float32 has as JSON."""
    draw = random.Random(count)
    return json.dumps([[-draw.expovariate(3.0), token, None] for _ in range(count)]).encode()


@cache
def answer_parts(token: int, count: int, full: bool, version: str) -> tuple[bytes, bytes]:
    """Around a request's id and number of prompt tokens."""
    ids = [token] * count
    finish = {"type": "length", "length": count} if full else {"type": "stop", "matched": 2}
    before = {"text": " ".join(map(str, ids)), "output_ids": ids}
    meta = {
        "finish_reason": finish,
        "completion_tokens": count,
        "cached_tokens": 0,
        "weight_version": version,
    }
    head = json.dumps(before)[:-1] + ', "meta_info": {"id": "'
    tail = b'", "output_token_logprobs": ' + logprobs(token, count) + f", {json.dumps(meta)[1:-1]}".encode()
    return head.encode(), tail


class SteppingEngine(FakeEngine):
    """Steps; everything but ``/generate`` is the fake engine's."""

    def __init__(
        self, tokenizer: str, *, port: int, prefill_s: float, decode_s: float, frontend_s: float, most: int
    ) -> None:
        super().__init__(tokenizer, port=port)
        self.info = {"max_running_requests": most, "internal_states": []}
        self._prefill_s, self._decode_s, self._most = prefill_s, decode_s, most
        self._frontend_s = frontend_s
        self._passed_at = 0.0
        self._waiting: deque[_Running] = deque()
        self._ends: dict[int, list[_Running]] = {}
        self._clock = 0
        self._running = 0
        self._arrived = threading.Condition()
        self._number = 0
        self._counts = {"prefills": 0, "decodes": 0, "sequences": 0, "decoded": 0, "late_s": 0.0}
        self._cpu_s = 0.0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Lane(self), "127.0.0.1", self.port, backlog=2048)
        self.port = self._server.sockets[0].getsockname()[1]
        threading.Thread(target=self._step_on, args=(loop,), daemon=True).start()

    def take(self, body: _Body, lane: _Lane) -> None:
        """Put a request into the queue."""
        share = lengths(self._number // BLOCK % 24)[self._number % BLOCK]
        self._number += 1
        tokens = max(1, int(share * body.sampling_params.max_new_tokens))
        before, tail = answer_parts(self._token(body.lora_path), tokens, share == 1.0, self.weight_version)
        end = f', "prompt_tokens": {len(body.input_ids)}}}}}'.encode()
        self._pass(self._queue, _Running(lane, tokens, (before, body.rid.encode(), tail, end)))

    def _pass(self, on: Callable[[_Running], None], what: _Running) -> None:
        """Through the frontend, which has one thing in hand at a time."""
        if not self._frontend_s:
            on(what)
            return
        loop = asyncio.get_running_loop()
        self._passed_at = max(loop.time(), self._passed_at) + self._frontend_s
        loop.call_at(self._passed_at, on, what)

    def _queue(self, one: _Running) -> None:
        with self._arrived:
            self._waiting.append(one)
            self._arrived.notify()

    def _answer(self, done: list[_Running]) -> None:
        for one in done:
            self._pass(_send, one)

    def _step_on(self, loop: asyncio.AbstractEventLoop) -> None:
        ends = 0.0
        while True:
            with self._arrived:
                idle = not self._waiting and not self._running
                while not self._waiting and not self._running:
                    self._arrived.wait()
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most - self._running))]
            now = time.perf_counter()
            # Steps follow each other without a gap: a thread that woke a little late does not make them longer.
            cost = self._prefill_s if batch else self._decode_s
            started = now if idle else max(ends, now - cost)
            ends = started + cost
            self._counts["late_s"] += now - started
            done = self._prefill(batch) if batch else self._decode()
            time.sleep(max(0.0, ends - time.perf_counter()))
            if done:
                loop.call_soon_threadsafe(self._answer, done)

    def _prefill(self, batch: list[_Running]) -> list[_Running]:
        """The prefill gives the first token."""
        self._counts["prefills"] += 1
        self._counts["sequences"] += len(batch)
        self._running += len(batch)
        done = []
        for one in batch:
            if one.tokens == 1:
                done.append(one)
            else:
                self._ends.setdefault(self._clock + one.tokens - 1, []).append(one)
        self._running -= len(done)
        return done

    def _decode(self) -> list[_Running]:
        self._counts["decodes"] += 1
        self._counts["decoded"] += self._running
        self._clock += 1
        done = self._ends.pop(self._clock, [])
        self._running -= len(done)
        return done

    async def _steps(self, _body: dict[str, Any], _fault: str | None) -> tuple[int, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = used.ru_utime + used.ru_stime
        told = dict(self._counts) | {"cpu_s": cpu_s - self._cpu_s}
        self._cpu_s = cpu_s
        self._counts = dict.fromkeys(self._counts, 0)
        self._number = 0  # both sides of a round get the same lengths
        return 200, told


def _send(one: _Running) -> None:
    one.lane.answer(one.answer)


_decode_body = msgspec.json.Decoder(_Body).decode


class _Lane(asyncio.Protocol):
    """One connection."""

    def __init__(self, engine: SteppingEngine) -> None:
        self._engine = engine
        self._data = b""
        self._task: asyncio.Task[None] | None = None
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        lowered = head.lower()
        mark = lowered.find(b"content-length:")
        length = int(lowered[mark + 15 :].split(b"\r\n", 1)[0]) if mark >= 0 else 0
        if len(body) < length:
            return
        self._data = b""
        if head.startswith(b"POST /generate "):
            request = _decode_body(body)
            if request.sampling_params.max_new_tokens:
                self._engine.take(request, self)
                return
        self._task = asyncio.get_running_loop().create_task(self._control(head.decode(), body))

    async def _control(self, head: str, body: bytes) -> None:
        method, path, _ = head.split("\r\n", 1)[0].split(" ")
        _, answer = await self._engine.answer(method, path.split("?")[0], json.loads(body) if body else {}, {})
        self.answer((answer if isinstance(answer, bytes) else json.dumps(answer).encode(),))

    def answer(self, parts: tuple[bytes, ...]) -> None:
        length = sum(map(len, parts))
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {length}\r\ncontent-type: application/json\r\n\r\n".encode()
        self._transport.write(b"".join((head, *parts)))


async def _main() -> None:
    port, tokenizer, *costs, most = sys.argv[1:]
    prefill_s, decode_s, frontend_s = map(float, costs)
    engine = SteppingEngine(
        tokenizer, port=int(port), prefill_s=prefill_s, decode_s=decode_s, frontend_s=frontend_s, most=int(most)
    )
    async with engine:
        await asyncio.sleep(3600)


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # the steps are not to wait for the answers
    asyncio.run(_main())
