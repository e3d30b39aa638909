"""Routes of weights, adapters and the cache: SGLang's paths, bodies and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError

from embedded_engine.engine import Engine
from embedded_engine.errors import RefusedRequest, UnsupportedModel
from embedded_engine.weight_protocol import (
    CheckWeightsRequest,
    DestroyGroupRequest,
    InitGroupRequest,
    LoadLoraRequest,
    LoadLoraTensorsRequest,
    UnloadLoraRequest,
    UpdateBody,
    UpdateDistributedRequest,
    UpdateTensorsRequest,
    UpdateVersionRequest,
    UpdateWeightsRequest,
)

B = TypeVar("B", bound=BaseModel)


def add_adapters(app: FastAPI, engine: Engine) -> None:
    """Loading and unloading adapters."""

    async def answer(change: Awaitable[None]) -> Response:
        error = None
        try:
            await change
        except (RefusedRequest, UnsupportedModel) as problem:
            error = problem
        body = {
            "success": error is None,
            "error_message": "" if error is None else str(error),
            "loaded_adapters": engine.adapters.names(),
        }
        return JSONResponse(body, status_code=200 if error is None else 400)

    @app.post("/load_lora_adapter")
    async def load(body: LoadLoraRequest) -> Response:
        return await answer(engine.load_adapter(body))

    @app.post("/load_lora_adapter_from_tensors")
    async def load_tensors(request: Request) -> Response:
        return await answer(engine.load_adapter_from_tensors(await _large(request, LoadLoraTensorsRequest)))

    @app.post("/unload_lora_adapter")
    async def unload(body: UnloadLoraRequest) -> Response:
        return await answer(engine.adapters.unload(body.lora_name))


def add_weights(app: FastAPI, engine: Engine) -> None:
    """Updates, groups, checksums and versions."""
    weights = engine.weights

    async def updated(change: Awaitable[int], body: UpdateBody) -> tuple[int, dict[str, Any], int]:
        """HTTP status, SGLang's answer, number of paused requests."""
        try:
            paused = await change
        except (RefusedRequest, UnsupportedModel) as error:
            return 400, {"success": False, "message": f"Failed to update weights: {error}"}, 0
        message = "Succeeded to update model weights."
        if body.weight_version is not None:
            message += f" Weight version updated to {body.weight_version}."
        return 200, {"success": True, "message": message}, paused

    async def done(change: Awaitable[None], success: str, failure: str) -> Response:
        try:
            await change
        except (RefusedRequest, UnsupportedModel) as error:
            return JSONResponse({"success": False, "message": f"{failure}{error}"}, status_code=400)
        return JSONResponse({"success": True, "message": success})

    @app.post("/update_weights_from_disk")
    async def from_disk(body: UpdateWeightsRequest) -> Response:
        code, answer, paused = await updated(weights.from_disk(body), body)
        return JSONResponse({**answer, "num_paused_requests": paused}, status_code=code)

    @app.post("/update_weights_from_tensor")
    async def from_tensor(request: Request) -> Response:
        body = await _large(request, UpdateTensorsRequest)
        code, answer, _ = await updated(weights.from_tensor(body), body)
        return JSONResponse(answer, status_code=code)

    @app.post("/update_weights_from_distributed")
    async def from_distributed(body: UpdateDistributedRequest) -> Response:
        code, answer, _ = await updated(weights.from_distributed(body), body)
        return JSONResponse(answer, status_code=code)

    @app.post("/init_weights_update_group")
    async def join(body: InitGroupRequest) -> Response:
        failure = "Failed to initialize custom process group: "
        return await done(weights.join_group(body), "Succeeded to initialize custom process group.", failure)

    @app.post("/destroy_weights_update_group")
    async def leave(body: DestroyGroupRequest) -> Response:
        change = weights.leave_group(body.group_name)
        return await done(change, "Succeeded to destroy custom process group.", "")

    @app.api_route("/weights_checker", methods=["GET", "POST"])
    async def check(body: CheckWeightsRequest | None = None) -> Response:
        action = "checksum" if body is None else body.action
        if action != "checksum":
            message = f"Unsupported action={action!r}: the embedded engine has only 'checksum'"
            return JSONResponse({"success": False, "message": message}, status_code=400)
        return JSONResponse(await weights.checksum())

    @app.post("/update_weight_version")
    async def rename(body: UpdateVersionRequest) -> dict[str, Any]:
        await weights.rename(body)
        message = f"Weight version updated to {body.new_version}"
        return {"success": True, "message": message, "new_version": body.new_version}

    @app.api_route("/flush_cache", methods=["GET", "POST"])
    async def flush(timeout: Annotated[float, Query(ge=0.0)] = 0.0) -> Response:
        if await engine.flush_cache(timeout):
            return Response("Cache flushed.\n")
        return Response("Flush cache failed: requests are running or waiting.\n", status_code=400)


async def _large(request: Request, kind: type[B]) -> B:
    """A body of many megabytes, parsed in a thread, so that other requests go on.

    Raises:
        RequestValidationError: it does not parse.
    """
    content = await request.body()
    try:
        return await asyncio.to_thread(kind.model_validate_json, content)
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False)
        raise RequestValidationError(problems) from error
