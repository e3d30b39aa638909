"""Typed asyncio client of one engine: SGLang's native HTTP API and nothing else.

Every failure is an :class:`EngineError` of a kind that says what it means for the engine, or a
:class:`RequestRefused` when the engine blames the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, TypeVar, overload

import httpx
import msgspec

from sglang_generator.config import GeneratorConfig
from sglang_generator.errors import EngineError, Kind, RequestRefused
from sglang_generator.lanes import KEEPALIVE_S, Done, Flight, Lanes, Outcome
from sglang_generator.wire import (
    Expected,
    Generated,
    Loads,
    LoraReply,
    ModelInfo,
    ModelList,
    Prompt,
    Request,
    ServerInfo,
)

R = TypeVar("R")

_JSON = {"Content-Type": "application/json"}
_CONTROL_CONNECTIONS = 8
_SLICE_BYTES = 1 << 20
_encode = msgspec.json.Encoder().encode


class EngineClient:
    """One engine at ``url``. Close it with :meth:`close`."""

    def __init__(self, url: str, config: GeneratorConfig) -> None:
        self.url = url
        self._control_timeout_s = config.control_timeout_s
        self._health_timeout_s = config.health_timeout_s
        self._request_timeout_s = config.request_timeout_s
        key = config.api_key.get_secret_value() if config.api_key else None
        admin = config.admin_api_key.get_secret_value() if config.admin_api_key else key
        self._headers = _JSON | _bearer(key)
        self._admin_headers = _JSON | _bearer(admin)
        self._http = httpx.AsyncClient(
            base_url=url,
            # Deadlines are set around each call: a read timeout would only bound the silence between bytes.
            timeout=httpx.Timeout(None, connect=config.connect_timeout_s),
            limits=httpx.Limits(max_connections=_CONTROL_CONNECTIONS, keepalive_expiry=KEEPALIVE_S),
            trust_env=False,  # engines are internal; a proxy from the environment would take loopback away
        )
        self._lanes = Lanes(url, config.connect_timeout_s)
        self._head = self._lanes.head("/generate", list(self._headers.items()))

    async def close(self) -> None:
        self._lanes.close()
        await self._http.aclose()

    @property
    def in_flight(self) -> int:
        """Generate requests that wait for their response."""
        return len(self._lanes.flights)

    def send(self, request: Request, done: Done, timeout_s: float | None = None) -> Flight:
        """Ask for a sample; ``done`` gets the answer, for :meth:`read`, or an :class:`EngineError`."""
        return self._lanes.send(self._head, request.content, timeout_s or self._request_timeout_s, done)

    def read(self, request: Request, outcome: Outcome) -> Generated:
        """Check an answer.

        Raises:
            EngineError: the engine failed, or the response is not what was asked for.
            RequestRefused: the engine says that the request is wrong.
        """
        if isinstance(outcome, EngineError):
            raise outcome
        if outcome.status != 200:
            raise self._failure(outcome.status, outcome.body, "/generate")
        try:
            return request.read(outcome.body)
        except EngineError as error:
            raise EngineError(error.kind, f"{self.url}/generate: {error}") from error

    async def generate(
        self,
        *,
        rid: str,
        input_ids: Sequence[int],
        params: dict[str, Any],
        expected: Expected,
        timeout_s: float | None = None,
    ) -> Generated:
        """Sample one completion and check it.

        Raises:
            EngineError: the engine failed, or the response is not what was asked for.
            RequestRefused: the engine says that the request is wrong.
        """
        request = Request(rid, Prompt(input_ids), params, expected)
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(found: Outcome) -> None:
            if not outcome.done():
                outcome.set_result(found)

        flight = self.send(request, done, timeout_s)
        try:
            found = await outcome
        finally:
            flight.give_up()
        return self.read(request, found)

    def give_up_in_flight(self) -> None:
        """End every generate request that is in flight with a timeout, for an engine that answers no more."""
        self._lanes.time_out()

    async def abort(self, rid: str) -> None:
        """Ask the engine to drop a request."""
        await self.call("POST", "/abort_request", None, {"rid": rid}, timeout_s=self._health_timeout_s)

    async def health(self) -> None:
        """Raises EngineError unless the engine answers ``/health`` with 200 in time."""
        await self.call("GET", "/health", None, timeout_s=self._health_timeout_s, admin=False)

    async def model_info(self) -> ModelInfo:
        """What the engine serves."""
        return await self.call("GET", "/model_info", ModelInfo, timeout_s=self._health_timeout_s, admin=False)

    async def models(self) -> ModelList | None:
        """The base model (with its context length) and the loaded adapters; None if the engine does not list them."""
        try:
            return await self.call("GET", "/v1/models", ModelList, timeout_s=self._health_timeout_s, admin=False)
        except EngineError as error:
            if error.kind == "protocol":
                return None
            raise

    async def load_lora_adapter(self, name: str, path: str) -> LoraReply:
        """Load an adapter under a name; success false says why not (for example: already loaded)."""
        body = {"lora_name": name, "lora_path": path}
        return await self.call("POST", "/load_lora_adapter", LoraReply, body, refusal=True)

    async def unload_lora_adapter(self, name: str) -> LoraReply:
        """Unload an adapter; the engine waits for the requests that use it."""
        return await self.call("POST", "/unload_lora_adapter", LoraReply, {"lora_name": name}, refusal=True)

    async def loads(self) -> Loads | None:
        """Running and waiting requests and cache use now; None if the engine does not tell."""
        path = "/v1/loads?include=core,queues"
        return await self.call("GET", path, Loads, timeout_s=self._health_timeout_s, admin=False, absent=True)

    async def server_info(self) -> ServerInfo | None:
        """The engine's settings in force; None if it does not tell."""
        path = "/server_info"
        return await self.call("GET", path, ServerInfo, timeout_s=self._health_timeout_s, admin=False, absent=True)

    @overload
    async def call(
        self,
        method: str,
        path: str,
        reply: type[R],
        body: dict[str, Any] | Sequence[bytes] | None = None,
        *,
        timeout_s: float | None = None,
        refusal: bool = False,
        admin: bool = True,
        absent: Literal[False] = False,
    ) -> R: ...

    @overload
    async def call(
        self,
        method: str,
        path: str,
        reply: type[R],
        body: dict[str, Any] | Sequence[bytes] | None = None,
        *,
        timeout_s: float | None = None,
        refusal: bool = False,
        admin: bool = True,
        absent: Literal[True],
    ) -> R | None: ...

    @overload
    async def call(
        self,
        method: str,
        path: str,
        reply: None,
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        admin: bool = True,
    ) -> None: ...

    async def call(
        self,
        method: str,
        path: str,
        reply: type[R] | None,
        body: dict[str, Any] | Sequence[bytes] | None = None,
        *,
        timeout_s: float | None = None,
        refusal: bool = False,
        admin: bool = True,
        absent: bool = False,
    ) -> R | None:
        """One control call. ``refusal``: a 400 carries the reply as well, and tells the reason in it; ``absent``: 404
        gives None. A body may be JSON in parts, which are never joined: weights are large.

        Raises:
            EngineError: the engine failed, does not answer in time, or not in this format.
        """
        if isinstance(body, dict):
            body = (_encode(body),)
        try:
            async with asyncio.timeout(timeout_s or self._control_timeout_s):
                response = await self._send(method, path, self._admin_headers if admin else self._headers, body)
        except TimeoutError:
            raise EngineError("timeout", f"{self.url}{path}: no answer in time") from None
        if absent and response.status_code == 404:
            return None
        if response.status_code != 200 and not (response.status_code == 400 and refusal):
            failure = self._failure(response.status_code, response.content, path)
            raise failure if isinstance(failure, EngineError) else EngineError("protocol", str(failure))
        if reply is None:
            return None
        try:
            return msgspec.json.decode(response.content, type=reply)
        except msgspec.DecodeError as error:
            raise EngineError("protocol", f"{self.url}{path}: not SGLang's response: {error}") from error

    async def _send(
        self, method: str, path: str, headers: dict[str, str], body: Sequence[bytes] | None
    ) -> httpx.Response:
        content: bytes | AsyncIterator[bytes] | None = None
        if body is not None and len(body) == 1:
            content = body[0]
        elif body is not None:
            content = _in_slices(body)
            headers = headers | {"Content-Length": str(sum(map(len, body)))}
        try:
            return await self._http.request(method, path, content=content, headers=headers)
        except httpx.ConnectTimeout as error:
            raise EngineError("connection", f"{self.url}: no connection in time") from error
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise EngineError("connection", f"{self.url}: connection failed: {reason}") from error

    def _failure(self, status: int, content: bytes, path: str) -> EngineError | RequestRefused:
        """The error behind a status that is not 200."""
        text = _message(content)
        where = f"{self.url}{path}: HTTP {status}: {text}"
        lowered = text.lower()
        if status in (400, 422) and "lora" in lowered and ("load" in lowered or "not enabled" in lowered):
            # Also "Failed to implicitly load LoRA adapter": SGLang tries that with every name that it once knew.
            return EngineError("adapter", where)
        if status in (400, 413, 422):
            return RequestRefused(where)
        kinds: dict[int, Kind] = {401: "auth", 403: "auth", 408: "timeout", 429: "unavailable", 504: "timeout"}
        return EngineError(kinds.get(status, "unavailable" if status >= 500 else "protocol"), where)


async def _in_slices(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _SLICE_BYTES):
            yield bytes(view[start : start + _SLICE_BYTES])


def _bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _message(content: bytes) -> str:
    """SGLang's error text, whichever of its shapes it has, cut to a line."""
    try:
        body = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content[:300].decode("utf-8", "replace")
    for key in ("error", "error_message", "message", "detail"):
        if isinstance(body, dict) and key in body:
            value = body[key]
            if isinstance(value, dict):
                value = value.get("message", value)
            return str(value)[:300]
    return str(body)[:300]
