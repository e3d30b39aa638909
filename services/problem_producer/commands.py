"""``gristmill problems``: export, check and show what a source holds, without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from problem_producer.config import ProblemsConfig

problems = typer.Typer(help="Look into problem sources: export, check, show.", no_args_is_help=True)

SourceOption = Annotated[str, typer.Option("--source", help="Source spec, for example arithmetic:levels=1-3.")]
ConfiguredSourceOption = Annotated[
    str | None, typer.Option("--source", help="Source spec, in place of the configured sources.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="YAML file; its section problems gives sources, seed and prompts.")
]
PromptOption = Annotated[str | None, typer.Option("--prompt", help="Prompt template: boxed, plain, code, or a text.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the shuffling and of the arithmetic source.")]
SplitOption = Annotated[
    Literal["all", "train", "heldout"] | None,
    typer.Option("--split", help="Gristmill's own split, one problem in eight held out; over the spec's."),
]


@problems.command()
def export(
    out: Annotated[Path, typer.Option("--out", help="JSONL file to write.")],
    source: ConfiguredSourceOption = None,
    config: ConfigOption = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Distinct problems to write; all of a smaller source.")] = 1000,
    split: SplitOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed, in place of the configured one.")] = None,
    prompt: PromptOption = None,
) -> None:
    """Write problems with their prompts, golds and solutions as JSON lines, as the line would send them.

    A row holds problem_id, source, kind (math or code), topic, level, messages (or prompt), answer, tests, solution
    and sampling.
    """
    from rich.console import Console

    from problem_producer.export import export_problems

    section = _section(config, source=source, split=split, seed=seed, prompt=prompt)
    written = export_problems(section, n, out)
    Console(stderr=True).print(f"{written} problems written to {out}")


@problems.command()
def check(
    source: SourceOption,
    split: SplitOption = None,
    prompt: PromptOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Malformed rows to list.")] = 20,
) -> None:
    """Read a source from end to end and list its malformed rows; the exit status is 1 when there are any."""
    from rich.console import Console
    from rich.markup import escape

    from problem_producer.sources import open_sources

    console = Console()
    (opened,) = open_sources(_config(source, split=split, prompt=prompt))
    for fault in opened.faults[:limit]:
        console.print(f"{escape(opened.origin)}: {opened.unit} {fault.line}: {escape(fault.error)}", soft_wrap=True)
    if len(opened.faults) > limit:
        console.print(f"... and {len(opened.faults) - limit} more")
    size = "without end" if opened.size is None else f"{opened.size} usable"
    console.print(f"{opened.name}: {size}, {len(opened.faults)} malformed")
    if opened.faults:
        raise typer.Exit(1)


@problems.command()
def show(
    source: SourceOption,
    n: Annotated[int, typer.Option("--n", min=1, help="Problems to show.")] = 3,
    split: SplitOption = None,
    seed: SeedOption = 0,
    prompt: PromptOption = None,
) -> None:
    """Show the first problems of a source as the line would send them."""
    from itertools import islice

    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    from problem_producer.export import describe
    from problem_producer.sequence import ProblemSequence

    console = Console()
    sequence = ProblemSequence(_config(source, split=split, seed=seed, prompt=prompt), "show")
    for problem in islice(sequence.starting_at(1), n):
        console.print(Panel(Text(describe(problem)), title=problem.problem_id, title_align="left"))


def _config(source: str, *, split: str | None = None, seed: int = 0, prompt: str | None = None) -> ProblemsConfig:
    """A section with this one source.

    Raises:
        ConfigError: the spec or an option is wrong.
    """
    entry = {"spec": source, "split": split}
    return _checked({"sources": [entry], "seed": seed, "prompt": prompt})


def _section(
    file: Path | None, *, source: str | None, split: str | None, seed: int | None, prompt: str | None
) -> ProblemsConfig:
    """The configured section with what the flags say; ``split`` overrules the sources' own. A source without a
    file needs no configuration at all.

    Raises:
        ConfigError: the file, the spec or an option is wrong.
    """
    from gristmill.config import load_settings
    from problem_producer.config import ProblemsConfig

    values: dict[str, Any] = {"sources": [{"spec": source}]}
    if file is not None or source is None:
        section = load_settings(file).section("problems", ProblemsConfig)
        values = section.model_dump(exclude_none=True) | ({} if source is None else values)
    if split is not None:
        values["sources"] = [{**entry, "split": split} for entry in values["sources"]]
    flags = {"seed": seed, "prompt": prompt}
    return _checked(values | {key: value for key, value in flags.items() if value is not None})


def _checked(values: dict[str, Any]) -> ProblemsConfig:
    from pydantic import ValidationError

    from gristmill.errors import ConfigError
    from problem_producer.config import ProblemsConfig

    try:
        return ProblemsConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())) from error
