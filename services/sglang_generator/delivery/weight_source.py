"""Client of the trainer's weight source: it lends its weights (``ipc``) or broadcasts them (``nccl``).

Every failure is an :class:`EngineError` of kind ``source``: the engine cannot get the version, and is not to blame.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import httpx
import msgspec

from sglang_generator.errors import EngineError
from sglang_generator.policy import Policy

R = TypeVar("R")

_FORGET_S = 10.0


class Bucket(msgspec.Struct):
    """Tensors that travel as one; names are Hugging Face's."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    bytes: int


class Manifest(msgspec.Struct):
    """A version that the source holds."""

    version: int
    name: str
    bytes: int
    buckets: list[Bucket]


class Lease(msgspec.Struct):
    """Handles of the trainer's memory, pickled in base64, one per bucket."""

    lease: str
    payloads: list[str]


class Address(msgspec.Struct):
    """Where the ranks of a process group meet."""

    master_address: str
    master_port: int


class GroupState(msgspec.Struct):
    state: str
    error: str | None = None


class Sent(msgspec.Struct):
    seconds: float = 0.0


class _Failure(msgspec.Struct):
    error: str = ""
    held: list[Any] | None = None


class WeightSource:
    """The source at ``url``. Close it with :meth:`close`."""

    def __init__(
        self, url: str, key: str | None, *, connect_timeout_s: float, brief_s: float, timeout_s: float
    ) -> None:
        self.url = url
        self._brief_s = brief_s
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(None, connect=connect_timeout_s),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def manifest(self, policy: Policy) -> Manifest:
        """What makes up a version.

        Raises:
            EngineError: the source does not hold it, or holds another run's.
        """
        found = await self._call("GET", f"/weights/{policy.version}", Manifest, brief=True)
        if found.name != policy.name:
            raise EngineError("source", f"{self.url} holds {found.name} as version {policy.version}, not {policy.name}")
        if not found.buckets:
            raise EngineError("source", f"{self.url} says that {found.name} has no tensors")
        return found

    async def lend(self, policy: Policy) -> Lease:
        """Handles of a version; until they are given back, the trainer keeps it as it is."""
        return await self._call("POST", f"/weights/{policy.version}/ipc", Lease)

    async def give_back(self, lease: Lease) -> None:
        """End a lease. That the source does not answer is no reason to fail: it may be gone, and the lease with it."""
        await self._forget(f"/leases/{lease.lease}")

    async def open_group(self, group: str, world_size: int, backend: str) -> Address:
        """Let the trainer join a group as rank 0; answers before it has."""
        body = {"group": group, "world_size": world_size, "backend": backend}
        return await self._call("POST", "/groups", Address, body, brief=True)

    async def group(self, group: str) -> GroupState:
        """Whether the trainer has joined."""
        return await self._call("GET", f"/groups/{group}", GroupState, brief=True)

    async def send(self, group: str, policy: Policy, bucket: int) -> None:
        """Broadcast one bucket; answers when it is done."""
        body = {"version": policy.version, "bucket": bucket}
        await self._call("POST", f"/groups/{group}/send", Sent, body)

    async def close_group(self, group: str) -> None:
        """Let the trainer leave a group, whether it still knows it or not."""
        await self._forget(f"/groups/{group}")

    async def _forget(self, path: str) -> None:
        try:
            async with asyncio.timeout(min(_FORGET_S, self._brief_s)):
                await self._http.delete(path)
        except (TimeoutError, httpx.TransportError):
            pass

    async def _call(
        self, method: str, path: str, reply: type[R], body: dict[str, Any] | None = None, *, brief: bool = False
    ) -> R:
        try:
            async with asyncio.timeout(self._brief_s if brief else self._timeout_s):
                response = await self._http.request(method, path, json=body)
        except TimeoutError:
            raise EngineError("source", f"weight source {self.url}{path}: no answer in time") from None
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise EngineError("source", f"weight source {self.url}{path}: {reason}") from error
        if response.status_code != 200:
            raise EngineError("source", f"weight source {self.url}{path}: {_reason(response)}")
        try:
            return msgspec.json.decode(response.content, type=reply)
        except msgspec.DecodeError as error:
            raise EngineError("source", f"weight source {self.url}{path}: not its format: {error}") from error


def _reason(response: httpx.Response) -> str:
    try:
        failure = msgspec.json.decode(response.content, type=_Failure)
    except msgspec.DecodeError:
        return f"HTTP {response.status_code}"
    held = "" if failure.held is None else f" (it holds {failure.held})"
    return f"HTTP {response.status_code}: {failure.error}{held}"
