"""HTTP routes of the weight source; see ``docs/training.md``."""

from __future__ import annotations

import hmac
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from grpo_trainer.weight_source.groups import GroupBackend, GroupError, Groups
from grpo_trainer.weight_source.ipc import Ipc, IpcUnavailable
from grpo_trainer.weight_source.snapshot import NotHeld, Shelf, Snapshot


class NewGroup(BaseModel):
    """Body of ``POST /groups``."""

    group: str = Field(min_length=1, max_length=256, pattern=r"^[^/\s]+$")
    world_size: int = Field(ge=2)
    backend: GroupBackend


class Send(BaseModel):
    """Body of ``POST /groups/{group}/send``."""

    version: int
    bucket: int


class Unauthorized(Exception):
    """The request lacks the key."""


def build_app(run_id: str, shelf: Shelf, groups: Groups, ipc: Ipc, key: str | None) -> FastAPI:
    """The application; requests need ``Authorization: Bearer <key>`` where there is a key."""

    def authorize(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if key is not None and not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            raise Unauthorized

    app = FastAPI(openapi_url=None, dependencies=[Depends(authorize)])

    def held() -> list[dict[str, Any]]:
        return [{"version": snapshot.version, "name": snapshot.name} for snapshot in shelf.held()]

    # Routes are plain functions: they run on threads, so a broadcast that blocks holds nobody else up.

    @app.get("/weights")
    def list_weights() -> dict[str, Any]:
        return {"run_id": run_id, "held": held()}

    @app.get("/weights/{version}")
    def show_weights(version: int) -> dict[str, Any]:
        return manifest(shelf.get(version))

    @app.post("/weights/{version}/ipc")
    def open_ipc(version: int) -> dict[str, Any]:
        lease, payloads = ipc.open(shelf, version)
        return {"lease": lease, "payloads": payloads}

    @app.delete("/leases/{lease}")
    def end_lease(lease: str) -> dict[str, Any]:
        shelf.release(lease)
        return {}

    @app.post("/groups")
    def create_group(body: NewGroup) -> dict[str, Any]:
        address, port = groups.create(body.group, body.world_size, body.backend)
        return {"master_address": address, "master_port": port}

    @app.get("/groups/{group}")
    def show_group(group: str) -> dict[str, Any]:
        state, error = groups.state(group)
        return {"state": state, "error": error}

    @app.post("/groups/{group}/send")
    def send(group: str, body: Send) -> dict[str, Any]:
        return {"seconds": groups.send(group, body.version, body.bucket)}

    @app.delete("/groups/{group}")
    def destroy_group(group: str) -> dict[str, Any]:
        groups.destroy(group)
        return {}

    @app.exception_handler(NotHeld)
    def not_held(_: Request, error: NotHeld) -> JSONResponse:
        return JSONResponse({"error": str(error), "held": held()}, 404)

    @app.exception_handler(GroupError)
    def group_failed(_: Request, error: GroupError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 409)

    @app.exception_handler(IpcUnavailable)
    def no_ipc(_: Request, error: IpcUnavailable) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(Unauthorized)
    def unauthorized(_: Request, __: Unauthorized) -> JSONResponse:
        hint = "the weight source needs its key: set generator.weight_source_key to trainer.weight_source.key"
        return JSONResponse({"error": hint}, 401, {"WWW-Authenticate": "Bearer"})

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return JSONResponse({"error": problems}, 422)

    return app


def manifest(snapshot: Snapshot) -> dict[str, Any]:
    """What a version consists of."""
    return {
        "version": snapshot.version,
        "name": snapshot.name,
        "bytes": snapshot.size,
        "buckets": [
            {
                "names": [entry.name for entry in bucket.entries],
                "dtypes": [str(entry.dtype).removeprefix("torch.") for entry in bucket.entries],
                "shapes": [list(entry.shape) for entry in bucket.entries],
                "bytes": bucket.flat.numel(),
            }
            for bucket in snapshot.buckets
        ],
    }
