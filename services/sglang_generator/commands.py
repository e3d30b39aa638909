"""``gristmill sample``: completions for a file of problems, from one engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def sample(
    source: Annotated[Path, typer.Option("--in", help="JSONL rows of 'gristmill problems export'.")],
    out: Annotated[Path, typer.Option("--out", help="JSONL file to write; 'gristmill verify math' reads it.")],
    engine: Annotated[str, typer.Option("--engine", help="URL of the engine.")] = "http://127.0.0.1:30000",
    adapter: Annotated[
        Path | None, typer.Option("--adapter", help="Folder of a LoRA adapter; the bare model when absent.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Completions per problem.")] = 1,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0.0, help="Over the rows' own.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", min=1, help="Over the rows' own.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file of settings (section generator).")] = None,
) -> None:
    """Sample completions for a file of problems, without the line."""
    import asyncio

    from rich.console import Console
    from rich.progress import Progress

    from gristmill.config import load_settings
    from sglang_generator.config import GeneratorConfig
    from sglang_generator.sample import SampleJob, sample_file

    section = load_settings(config).section("generator", GeneratorConfig)
    chosen: dict[str, Any] = {"temperature": temperature, "max_new_tokens": max_new_tokens}
    overrides = {name: value for name, value in chosen.items() if value is not None}
    job = SampleJob(engine, source, out, samples, adapter, overrides)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("sampling", total=None)
        count = asyncio.run(
            sample_file(job, section, lambda done, total: bar.update(task, completed=done, total=total))
        )
    console.print(f"{count} completions written to {out}")
