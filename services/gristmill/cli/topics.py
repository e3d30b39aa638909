"""``gristmill topics``: the topics of the line on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from gristmill.cli.options import FLAG_CONTEXT, Bootstrap, ConfigFile, settings_from
from gristmill.kafka import admin_config
from gristmill.topics import Topics, apply

topics = typer.Typer(no_args_is_help=True, help="Declare and apply the topics of the line.")


@topics.command("apply", context_settings=FLAG_CONTEXT)
def apply_topics(
    context: typer.Context,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the topics that scale out.")] = 8,
    replication: Annotated[int, typer.Option(min=1, help="Replication factor of new topics.")] = 1,
) -> None:
    """Create the topics that are missing. Safe to repeat, also by two at once."""
    common = settings_from(config, context.args, bootstrap=bootstrap).common
    done = apply(AdminClient(admin_config(common)), Topics(common.topic_prefix, partitions), replication=replication)
    table = Table("topic", "partitions", "state", title=f"topics on {common.bootstrap}", title_justify="left")
    for item in done:
        table.add_row(item.topic.name, str(item.partitions), "created" if item.created else "existed")
    Console().print(table)


@topics.command("list")
def list_topics(config: ConfigFile = None) -> None:
    """Show the declared topics."""
    common = settings_from(config).common
    table = Table("topic", "message", "partitions", "settings")
    for topic in Topics(common.topic_prefix):
        message = topic.message.__name__ if topic.message else "raw bytes"
        table.add_row(
            topic.name, message, str(topic.partitions), ", ".join(f"{k}={v}" for k, v in topic.config.items())
        )
    Console().print(table)
