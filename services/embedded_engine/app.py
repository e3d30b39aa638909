"""HTTP routes: SGLang's paths, bodies, answers and error shapes over an :class:`Engine`."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.types import ASGIApp, Receive, Scope, Send

from embedded_engine import status
from embedded_engine.engine import Engine, Ticket
from embedded_engine.errors import Overloaded, RefusedRequest, UnsupportedModel
from embedded_engine.protocol import (
    AbortRequest,
    ContinueRequest,
    GenerateRequest,
    PauseRequest,
)
from embedded_engine.weight_routes import add_adapters, add_weights

OPEN_PATHS = ("/health", "/metrics")
_encode = msgspec.json.Encoder().encode


def build_app(engine: Engine, registry: CollectorRegistry) -> FastAPI:
    """All routes over one engine."""
    app = FastAPI(title="Gristmill embedded engine", docs_url=None, redoc_url=None)
    _add_errors(app)
    _add_generation(app, engine)
    add_adapters(app, engine)
    add_weights(app, engine)
    _add_status(app, engine, registry)
    if engine.config.api_key is not None:
        app.add_middleware(BearerAuth, key=engine.config.api_key.get_secret_value())
    return app


class BearerAuth:
    """Refuses requests without the key. Plain ASGI, so that disconnects still reach the routes."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 401."""
        if scope["type"] == "http" and not scope["path"].startswith(OPEN_PATHS):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                response = JSONResponse({"error": "Unauthorized"}, status_code=401)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        problems = "; ".join(_explain(item) for item in error.errors())
        body = {"object": "error", "message": problems, "type": "Bad Request", "param": None, "code": 400}
        return JSONResponse(body, status_code=400)

    @app.exception_handler(RefusedRequest)
    async def refused(_: Request, error: RefusedRequest) -> Response:
        return JSONResponse({"error": {"message": str(error)}}, status_code=400)

    @app.exception_handler(Overloaded)
    async def overloaded(_: Request, error: Overloaded) -> Response:
        return JSONResponse({"detail": str(error)}, status_code=503)

    @app.exception_handler(UnsupportedModel)
    async def failed(_: Request, error: UnsupportedModel) -> Response:
        return JSONResponse({"detail": str(error)}, status_code=500)


def _explain(item: Any) -> str:
    """One validation problem: where, what, and the offending name."""
    path = ".".join(str(part) for part in item["loc"] if part != "body")
    if item["type"] == "extra_forbidden":
        return f"{path}: unknown parameter (the embedded engine refuses what it would have to ignore)"
    return f"{path}: {item['msg']}"


def _add_generation(app: FastAPI, engine: Engine) -> None:
    def watching(request: Request) -> Callable[[Ticket], asyncio.Task[None]]:
        async def watch(ticket: Ticket) -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            engine.abort(ticket.rid, "Client disconnected")

        return lambda ticket: asyncio.create_task(watch(ticket))

    @app.post("/generate")
    async def generate(body: GenerateRequest, request: Request) -> Response:
        if not body.stream:
            answer = await engine.generate(body, watching(request))
            return Response(_encode(answer), media_type="application/json")
        return StreamingResponse(events(body), media_type="text/event-stream")

    async def events(body: GenerateRequest) -> AsyncIterator[bytes]:
        def unwatched(_: Ticket) -> asyncio.Task[None]:
            return asyncio.create_task(asyncio.sleep(0))

        try:
            async with aclosing(engine.stream(body, unwatched)) as answers:
                async for answer in answers:
                    yield b"data: " + _encode(answer) + b"\n\n"
        except (RefusedRequest, Overloaded, UnsupportedModel) as error:
            code = 400 if isinstance(error, RefusedRequest) else 503 if isinstance(error, Overloaded) else 500
            yield b"data: " + _encode({"error": {"message": str(error), "code": code}}) + b"\n\n"
        yield b"data: [DONE]\n\n"

    @app.post("/abort_request")
    async def abort(body: AbortRequest) -> Response:
        if not body.abort_all and not body.rid:
            raise RefusedRequest("either rid or abort_all=true is needed.")
        engine.abort(None if body.abort_all else body.rid, body.abort_message)
        return Response(status_code=200)

    @app.post("/pause_generation")
    async def pause(body: PauseRequest) -> dict[str, str]:
        await engine.pause(body.mode)
        return {"message": "Generation paused successfully.", "status": "ok"}

    @app.post("/continue_generation")
    async def resume(_: ContinueRequest) -> dict[str, str]:
        await engine.resume()
        return {"message": "Generation continued successfully.", "status": "ok"}


def _add_status(app: FastAPI, engine: Engine, registry: CollectorRegistry) -> None:
    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if engine.healthy else 503)

    @app.get("/health_generate")
    async def health_generate() -> Response:
        return Response(status_code=200 if engine.healthy and await engine.check() else 503)

    @app.get("/model_info")
    @app.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        return status.model_info(engine)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return status.models(engine)

    @app.get("/server_info")
    @app.get("/get_server_info")
    async def server_info() -> dict[str, Any]:
        return status.server_info(engine)

    @app.get("/v1/loads")
    async def loads(include: str | None = None) -> dict[str, Any]:
        try:
            return status.loads(engine, include)
        except RefusedRequest as error:
            raise HTTPException(400, str(error)) from error

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
