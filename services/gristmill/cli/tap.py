"""``gristmill tap``: look into a topic."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from gristmill.cli.options import Bootstrap, ConfigFile, settings_from
from gristmill.messages import Message
from gristmill.reader import Record, Start, TopicReader
from gristmill.registry import open_codec
from gristmill.service import StopSignal
from gristmill.tap import as_row, check_fields, matching, parse_filter
from gristmill.topics import Topics

QUIET = ("prompt_token_ids", "completion_token_ids", "logprobs", "policy_spans", "sampling", "tests", "metadata")
"""Fields that a person rarely wants; ``--json`` and ``--full`` show them."""


def tap(
    topic: Annotated[str, typer.Argument(help="problems, completions.math, verdicts, policies, ... or a full name.")],
    where: Annotated[
        list[str] | None, typer.Option("--where", help="Condition such as status=wrong or reward>0; may be repeated.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new messages as they come.")] = False,
    last: Annotated[bool, typer.Option("--new", help="Only what comes from now on (with --follow).")] = False,
    limit: Annotated[int | None, typer.Option("-n", min=1, help="Stop after this many messages.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, every field.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show token ids and logprobs in full.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    topic_prefix: Annotated[str | None, typer.Option("--topic-prefix", help="Prefix of the topics.")] = None,
) -> None:
    """Print the decoded messages of a topic."""
    common = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix).common
    chosen = Topics(common.topic_prefix).find(topic)
    filters = [parse_filter(text) for text in where or []]
    check_fields(filters, chosen.message)
    console = Console(highlight=False)
    start: Start = "end" if last else "beginning"
    reader: TopicReader[Message] = TopicReader(common, open_codec(common), chosen, chosen.message, start=start)
    with reader:
        records: Iterator[Record[Message]] = reader.follow(StopSignal()) if follow else reader.read_to_end()
        try:
            for record in islice(matching(records, filters), limit):
                if as_json:
                    sys.stdout.write(json.dumps(as_row(record, full=full), ensure_ascii=False) + "\n")
                    sys.stdout.flush()
                else:
                    _show(console, record, full)
        except KeyboardInterrupt:
            console.print("")
        except BrokenPipeError:
            sys.stderr.close()


def _show(console: Console, record: Record[Message], full: bool) -> None:
    row: dict[str, Any] = as_row(record, full=full)
    console.print(f"[bold]{record.topic}[/]\\[{record.partition}]@{record.offset} [cyan]{escape(str(record.key))}[/]")
    for name, value in row.items():
        if name in QUIET and not full:
            continue
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        console.print(f"  [dim]{name}[/] {escape(shown)}", soft_wrap=True)
