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
    """File name without ``.avsc``."""
    text: str
    """The schema as JSON, without white space."""
    parsed: Any
    """The schema as fastavro parsed it."""
    fingerprint: int
    """31 low bits of the CRC-64-AVRO fingerprint of the parsing canonical form."""


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
        ConfigError: no such file, or it is not an Avro schema.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        parsed = fastavro.parse_schema(raw)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such schema") from error
    except (json.JSONDecodeError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError(f"{path}: not an Avro schema: {error}") from error
    canonical = fastavro.schema.to_parsing_canonical_form(raw)
    # fastavro prints the fingerprint's bytes in little-endian order, as the Avro specification stores them.
    crc = int.from_bytes(bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")), "little")
    return Schema(path.stem, json.dumps(raw, separators=(",", ":")), parsed, crc & 0x7FFF_FFFF)


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
