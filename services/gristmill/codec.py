"""Messages to bytes and back: Avro in the Confluent wire format (magic 0, 4-byte schema id, Avro body).

Two ways to number schemas, behind one interface:

* fingerprint (default): the id is 31 bits of the schema's CRC-64-AVRO fingerprint, known to every process
  without asking anyone; released schemas are known too, so old records stay readable.
* registry: ids come from a schema registry (:mod:`gristmill.registry`).
"""

from __future__ import annotations

import io
import struct
from typing import Any, Protocol, TypeVar

import fastavro
import msgspec

from gristmill.errors import BadInput, ConfigError, DecodeError
from gristmill.messages import MESSAGES, Message
from gristmill.schemas import Schema, load_schema, released_schemas

M = TypeVar("M", bound=Message)

_HEADER = struct.Struct(">bI")
_BYTES = (bytes,)


class SchemaIds(Protocol):
    """Numbers schemas for writers and finds them for readers."""

    def id_of(self, schema: Schema) -> int:
        """Id to write for ``schema``.

        Raises:
            InfrastructureError: the registry does not answer.
            ConfigError: the registry refuses the schema.
        """

    def writer_schema(self, schema_id: int) -> Any:
        """Parsed schema behind an id.

        Raises:
            DecodeError: nobody knows the id.
            InfrastructureError: the registry does not answer.
        """


class FingerprintIds:
    """Ids computed from the schemas themselves: no registry, and every process agrees."""

    def __init__(self) -> None:
        self._by_id: dict[int, Schema] = {}
        current = [load_schema(message.schema) for message in MESSAGES]
        released = [schema for version in released_schemas().values() for schema in version.values()]
        for schema in [*released, *current]:
            known = self._by_id.setdefault(schema.fingerprint, schema)
            if known.parsed != schema.parsed and known.name != schema.name:
                raise ConfigError(f"schemas {known.name} and {schema.name} share the id {schema.fingerprint}")

    def id_of(self, schema: Schema) -> int:
        return schema.fingerprint

    def writer_schema(self, schema_id: int) -> Any:
        try:
            return self._by_id[schema_id].parsed
        except KeyError:
            raise DecodeError(
                f"schema id {schema_id} is neither current nor released: the record was written by a newer "
                "release, or through a registry (set GRISTMILL_REGISTRY_URL)"
            ) from None


class Codec:
    """Encodes and decodes messages. Threads may share one."""

    def __init__(self, ids: SchemaIds | None = None) -> None:
        self._ids = ids or FingerprintIds()
        self._headers: dict[str, bytes] = {}
        self._resolvers: dict[tuple[int, str], tuple[Any, Any]] = {}

    def encode(self, message: Message) -> bytes:
        """Encode a message in the Confluent wire format.

        Raises:
            BadInput: a field has a value that its schema does not admit.
        """
        schema = load_schema(message.schema)
        header = self._headers.get(message.schema)
        if header is None:
            header = self._headers[message.schema] = _HEADER.pack(0, self._ids.id_of(schema))
        out = io.BytesIO()
        out.write(header)
        record = msgspec.to_builtins(message, builtin_types=_BYTES)
        try:
            fastavro.schemaless_writer(out, schema.parsed, record)
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            raise BadInput(f"{type(message).__name__} {message.key}: {error}") from error
        return out.getvalue()

    def decode(self, data: bytes | None, expected: type[M]) -> M:
        """Decode a record that was written with any version of the schema of ``expected``.

        Raises:
            DecodeError: the bytes are not such a record.
            InfrastructureError: the registry does not answer.
        """
        if data is None:
            raise DecodeError(f"{expected.__name__}: the record has no value")
        if len(data) < _HEADER.size or data[0] != 0:
            raise DecodeError(f"{expected.__name__}: no Confluent header (magic byte 0 and a 4-byte schema id)")
        schema_id: int = _HEADER.unpack_from(data)[1]
        writer, reader = self._resolver(schema_id, expected.schema)
        body = io.BytesIO(data)
        body.seek(_HEADER.size)
        try:
            record = fastavro.schemaless_reader(body, writer, reader)
        except _READ_ERRORS as error:
            raise DecodeError(f"{expected.__name__}: schema id {schema_id}: {type(error).__name__}: {error}") from error
        if body.tell() != len(data):
            raise DecodeError(f"{expected.__name__}: {len(data) - body.tell()} bytes after the record")
        try:
            return msgspec.convert(record, expected, builtin_types=_BYTES)
        except msgspec.ValidationError as error:
            raise DecodeError(f"{expected.__name__}: {error}") from error

    def _resolver(self, schema_id: int, name: str) -> tuple[Any, Any]:
        """Writer and reader schema; the reader is None when it is the writer's own, which is faster to read."""
        known = self._resolvers.get((schema_id, name))
        if known is None:
            writer = self._ids.writer_schema(schema_id)
            reader = load_schema(name).parsed
            known = self._resolvers[schema_id, name] = (writer, None if writer == reader else reader)
        return known


# What fastavro raises on bytes that are not the schema's: it has no error class of its own for it.
_READ_ERRORS: tuple[type[Exception], ...] = (
    EOFError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    OverflowError,
    MemoryError,
    fastavro.read.SchemaResolutionError,
)
