"""``gristmill engine``: serve a model with SGLang's HTTP API on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from embedded_engine.config import EngineConfig
from gristmill.cli.options import ConfigFile
from gristmill.config import load_settings
from gristmill.errors import MissingExtra
from gristmill.logs import configure_logging
from gristmill.startup import heavy_imports


def engine(
    config: ConfigFile = None,
    model: Annotated[str | None, typer.Option("--model", help="Folder or hub id of the model.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Its tokenizer, when that lies elsewhere.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 picks a free one.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads of the model.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of sampling.")] = None,
    context_length: Annotated[
        int | None, typer.Option("--context-length", help="Longest prompt plus completion, in tokens.")
    ] = None,
    max_running_requests: Annotated[
        int | None, typer.Option("--max-running-requests", help="Requests decoded together.")
    ] = None,
    max_loaded_loras: Annotated[int | None, typer.Option("--max-loaded-loras", help="Adapters held at once.")] = None,
) -> None:
    """Serve a model with SGLang's native HTTP API (CPU or GPU), for laptops and tests.

    Every other setting of the engine comes from the configuration (section `engine`, `GRISTMILL_ENGINE__*`).
    """
    flags: dict[str, Any] = {
        "model_path": model,
        "tokenizer_path": tokenizer,
        "host": host,
        "port": port,
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "seed": seed,
        "context_length": context_length,
        "max_running_requests": max_running_requests,
        "max_loaded_loras": max_loaded_loras,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    settings = load_settings(config, {"engine": given} if given else None)
    configure_logging(settings.common.log_level, settings.common.log_format, service="engine")
    try:
        with heavy_imports():
            from embedded_engine.server import serve
    except ModuleNotFoundError as error:
        raise MissingExtra("gristmill engine", "engine", error.name or str(error)) from error
    serve(settings.section("engine", EngineConfig))
