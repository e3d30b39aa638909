"""``gristmill policy``: prepare base policies. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from base_policy.config import PolicyConfig
from gristmill.cli.options import FLAG_CONTEXT, ConfigFile, settings_from

policy = typer.Typer(help="Prepare base policies: the models that training starts from.", no_args_is_help=True)


@policy.callback()
def _group() -> None:
    """Prepare base policies: the models that training starts from."""


@policy.command(context_settings=FLAG_CONTEXT)
def prepare(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="tiny, smollm2, a local folder, or a hub id; policy.name by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also copy it to this folder, and print that.")] = None,
    warmup_data: Annotated[
        Path | None,
        typer.Option("--warmup-data", help="JSONL of worked problems (gristmill problems export), for tiny."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print path, sha256, built and chat as JSON.")] = False,
    config: ConfigFile = None,
) -> None:
    """Prepare a base policy and print the folder it lies in.

    Prepared policies are kept in `policy.cache_dir` by content, so a second call returns at once. Settings come
    from section `policy`, also as flags: --policy.tiny.steps=500.
    """
    import json

    from rich.console import Console

    from base_policy.prepare import prepare as prepare_policy

    settings = settings_from(config, context.args)
    section = settings.section("policy", PolicyConfig)
    if name is not None:
        section = section.model_copy(update={"name": name})
    notes = Console(stderr=True)
    with _library_environment(), _progress(notes, section.name) as progress:
        ready = prepare_policy(
            section,
            cache_dir=section.cache_dir or settings.common.data_dir / "models",
            warmup_data=warmup_data,
            out=out,
            progress=progress,
        )
    if not ready.chat:
        notes.print(f"policy {section.name}: its tokenizer has no chat template; use plain prompts", highlight=False)
    if as_json:
        fields = {"path": str(ready.path), "sha256": ready.sha256, "built": ready.built, "chat": ready.chat}
        typer.echo(json.dumps(fields))
    else:
        typer.echo(str(ready.path))


@contextmanager
def _progress(console: Any, name: str) -> Iterator[Callable[[int, int, float], None]]:
    """A progress line on a terminal; nothing elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(f"policy {name}: warm-up"), BarColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("warm-up", total=None, loss="", visible=False)

        def report(done: int, steps: int, loss: float) -> None:
            bar.update(task, completed=done, total=steps, loss=f"{done}/{steps} loss {loss:.3f}", visible=True)

        yield report


@contextmanager
def _library_environment() -> Iterator[None]:
    """Keep the loaders' own progress bars and notices off the terminal, and torch's threads from spinning."""
    import os

    wanted = {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",
        # Threads that wait by spinning take the core from each other where cores are shared: seen to double the time.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
