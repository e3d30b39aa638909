"""Checks of the contract: schemas parse, are documented, and are compatible both ways with every release.

Compatibility is judged by the reference implementation (the ``avro`` package), not by the code that reads and
writes our records. Both ways means: today's readers read every released record, and readers of every release read
today's records, so services can be upgraded in any order.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gristmill.avro_compile import compile_reader, compile_writer
from gristmill.errors import ConfigError, MissingExtra
from gristmill.messages import MESSAGES
from gristmill.schemas import Schema, read_schema, schema_dir


def check_all(folder: Path | None = None) -> list[str]:
    """What is wrong with the schemas in ``folder`` (the contract's own by default); empty when all is well.

    Raises:
        MissingExtra: the ``avro`` package is not installed.
    """
    folder = folder or schema_dir()
    problems: list[str] = []
    current = _read_all(folder, problems)
    for schema in current.values():
        problems += (f"{schema.name}: {path} has no doc" for path in undocumented(json.loads(schema.text)))
    for message in MESSAGES:
        if not _exists(folder, message.schema):
            problems.append(f"{message.schema}: {message.__name__} has no schema")
        if message.schema not in current:
            continue
        try:
            compile_writer(current[message.schema].parsed, message)
            compile_reader(current[message.schema].parsed, message)
        except ConfigError as error:
            problems.append(f"{message.schema}: class and schema differ: {error}")
    for release in _releases(folder):
        released = _read_all(release, problems)
        for name, old in released.items():
            if not _exists(folder, name):
                problems.append(f"{name}: released in {release.name}, but gone")
            if name in current:
                problems += (f"{name}: {fault}" for fault in incompatibilities(current[name], old, release.name))
    return problems


def undocumented(schema: Any, path: str = "") -> Iterator[str]:
    """Paths of the records, enums and fields of a schema that have no ``doc``."""
    if isinstance(schema, list):
        for branch in schema:
            yield from undocumented(branch, path)
    elif isinstance(schema, dict):
        if schema["type"] in ("record", "enum"):
            path = f"{path}<{schema['name']}>" if path else schema["name"]
            if not schema.get("doc"):
                yield path
        for field in schema.get("fields", ()):
            where = f"{path}.{field['name']}"
            if not field.get("doc"):
                yield where
            yield from undocumented(field["type"], where)
        for inner in ("items", "values"):
            if inner in schema:
                yield from undocumented(schema[inner], path)


def incompatibilities(current: Schema, released: Schema, version: str) -> Iterator[str]:
    """Why readers of one schema cannot read what the other wrote, in either direction.

    Raises:
        MissingExtra: the ``avro`` package is not installed.
    """
    try:
        from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
        from avro.schema import parse
    except ModuleNotFoundError as error:
        raise MissingExtra("the compatibility check", "contract", error.name or str(error)) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # our logical types are unknown to the package, as they may be
        new, old = parse(current.text), parse(released.text)
    for reader, writer, fault in (
        (new, old, f"cannot read records of {version}"),
        (old, new, f"cannot be read by {version}"),
    ):
        # A checker of its own for each direction: it remembers what it has compared.
        result = ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
        if result.compatibility is not SchemaCompatibilityType.compatible:
            places = ", ".join(sorted(str(place) for place in result.locations))
            yield f"{fault}: {'; '.join(sorted(result.messages))} (at {places})"


def _exists(folder: Path, name: str) -> bool:
    return (folder / f"{name}.avsc").is_file()


def _releases(folder: Path) -> list[Path]:
    root = folder / "released"
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _read_all(folder: Path, problems: list[str]) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for path in sorted(folder.glob("*.avsc")):
        try:
            found[path.stem] = read_schema(path)
        except ConfigError as error:
            problems.append(str(error))
    return found
