"""The Avro schemas: loading, fingerprints, compatibility.

``schemas/*.avsc`` in the repository, or the copy inside an installed wheel, is the only source of truth.
Released schemas lie in ``schemas/released/<version>/``; every change must stay readable both ways.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import fastavro.schema

from gristmill.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Schema:
    """One message schema."""

    name: str
    """File name without ``.avsc``, or how else the schema was found."""
    text: str
    """The schema as JSON, without white space."""
    parsed: Any
    """The schema as fastavro parsed it."""
    canonical: str
    """Parsing canonical form: schemas with the same one write the same bytes."""

    @property
    def record(self) -> str:
        """Full name of the record."""
        return str(self.parsed["name"])

    @property
    def fingerprint(self) -> int:
        """31 low bits of the CRC-64-AVRO fingerprint of the parsing canonical form."""
        # fastavro prints the fingerprint's bytes in little-endian order, as the Avro specification stores them.
        digest = bytes.fromhex(fastavro.schema.fingerprint(self.canonical, "CRC-64-AVRO"))
        return int.from_bytes(digest, "little") & 0x7FFF_FFFF


def schema_dir() -> Path:
    """Folder of the schemas: the repository's when run from a checkout, else the wheel's copy."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "_schemas", here.parents[1] / "schemas"):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"no schemas found beside {here}: reinstall gristmill")


@cache
def load_schema(name: str) -> Schema:
    """Load ``schemas/<name>.avsc``.

    Raises:
        ConfigError: no such schema, or it does not parse.
    """
    return read_schema(schema_dir() / f"{name}.avsc")


def read_schema(path: Path) -> Schema:
    """Read one ``.avsc`` file.

    Raises:
        ConfigError: no such file, or it is not the schema of a record.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such schema") from error
    try:
        return parse_schema(path.stem, text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_schema(name: str, text: str) -> Schema:
    """Parse a schema from its JSON text.

    Raises:
        ValueError: the text is not the schema of a record.
    """
    try:
        raw = json.loads(text)
        parsed = fastavro.parse_schema(raw)
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise ValueError("not the schema of a record")
        canonical = fastavro.schema.to_parsing_canonical_form(raw)
    except (fastavro.schema.SchemaParseException, ValueError, TypeError, LookupError) as error:
        raise ValueError(f"not an Avro schema: {type(error).__name__}: {error}") from error
    return Schema(name, json.dumps(raw, separators=(",", ":")), parsed, canonical)


def schema_names() -> list[str]:
    """Names of all current schemas, sorted."""
    return sorted(path.stem for path in schema_dir().glob("*.avsc"))


def released_schemas() -> dict[str, dict[str, Schema]]:
    """Released schemas by version, then by name."""
    root = schema_dir() / "released"
    versions = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return {
        folder.name: {path.stem: read_schema(path) for path in sorted(folder.glob("*.avsc"))} for folder in versions
    }
