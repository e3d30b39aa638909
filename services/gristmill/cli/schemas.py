"""``gristmill schemas``: check the contract, and bring it to a registry."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from gristmill.cli.options import FLAG_CONTEXT, ConfigFile, settings_from
from gristmill.errors import GristmillError
from gristmill.registry import COMPATIBILITY, registry_ids
from gristmill.schemas import load_schema, schema_names

schemas = typer.Typer(no_args_is_help=True, help="The Avro contract.")


@schemas.command("list")
def list_schemas() -> None:
    """Show the schemas with the ids they have without a registry."""
    table = Table("schema", "record", "id (fingerprint)", "fields")
    for name in schema_names():
        schema = load_schema(name)
        table.add_row(name, schema.parsed["name"], str(schema.fingerprint), str(len(schema.parsed["fields"])))
    Console().print(table)


@schemas.command("check")
def check() -> None:
    """Check the schemas: they parse, every field is documented, and each reads and is read by every released one."""
    from gristmill.schema_check import check_all

    problems = check_all()
    if problems:
        raise GristmillError("the schemas break the contract:\n" + "\n".join(f"  {line}" for line in problems))
    Console().print(f"{len(schema_names())} schemas: documented, and compatible both ways with every release")


@schemas.command("register", context_settings=FLAG_CONTEXT)
def register(context: typer.Context, config: ConfigFile = None) -> None:
    """Register the schemas in the configured registry, and have it refuse incompatible ones from then on."""
    common = settings_from(config, context.args).common
    ids = registry_ids(common)
    table = Table("subject", "id", "compatibility", title=f"schemas in {common.registry_url}", title_justify="left")
    for name in schema_names():
        schema = load_schema(name)
        number = ids.id_of(schema)
        ids.protect(schema)
        table.add_row(schema.record, str(number), COMPATIBILITY)
    Console().print(table)
