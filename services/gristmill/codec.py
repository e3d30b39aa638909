"""Messages to bytes and back: Avro in the Confluent wire format (magic 0, 4-byte schema id, Avro body).

Two ways to number schemas, behind one interface:

* fingerprint (default): the id is 31 bits of the schema's CRC-64-AVRO fingerprint, known to every process
  without asking anyone; released schemas are known too, so old records stay readable.
* registry: ids come from a schema registry (:mod:`gristmill.registry`).

Records of the current schema are read and written by functions compiled from it (:mod:`gristmill.avro_compile`);
records of an older or newer one are resolved by fastavro.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

import fastavro
import msgspec

from gristmill.avro_compile import READ_ERRORS, WRITE_ERRORS, compile_reader, compile_writer
from gristmill.errors import BadInput, ConfigError, DecodeError
from gristmill.messages import MESSAGES, Message
from gristmill.schemas import Schema, load_schema, released_schemas

M = TypeVar("M", bound=Message)

_Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
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

    def writer_schema(self, schema_id: int) -> Schema:
        """Schema behind an id.

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
        for schema in [*current, *released]:
            known = self._by_id.setdefault(schema.fingerprint, schema)
            if known.canonical != schema.canonical:
                raise ConfigError(f"schemas {known.name} and {schema.name} share the id {schema.fingerprint}")

    def id_of(self, schema: Schema) -> int:
        return schema.fingerprint

    def writer_schema(self, schema_id: int) -> Schema:
        try:
            return self._by_id[schema_id]
        except KeyError:
            raise DecodeError(
                f"schema id {schema_id} is neither current nor released: the record was written by a newer "
                "release, or through a registry (set GRISTMILL_REGISTRY_URL)"
            ) from None


class Codec:
    """Encodes and decodes messages. Threads may share one."""

    def __init__(self, ids: SchemaIds | None = None) -> None:
        self._ids = ids or FingerprintIds()
        self._writers: dict[type[Message], tuple[bytes, Callable[[Any], bytes]]] = {}
        self._readers: dict[tuple[int, type[Message]], _Reader] = {}

    def encode(self, message: Message) -> bytes:
        """Encode a message in the Confluent wire format.

        Raises:
            BadInput: a field has a value that its schema does not admit.
            InfrastructureError: the registry does not answer.
            ConfigError: the registry refuses the schema.
        """
        header, write = self._writers.get(type(message)) or self._prepare_writer(type(message))
        try:
            return header + write(message)
        except WRITE_ERRORS as error:
            raise BadInput(f"{type(message).__name__} {message.key!r}: {_explain(message, error)}") from error

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
        read = self._readers.get((schema_id, expected)) or self._prepare_reader(schema_id, expected)
        try:
            message, end = read(data, _HEADER.size)
        except _DECODE_ERRORS as error:
            raise DecodeError(f"{expected.__name__}: schema id {schema_id}: {type(error).__name__}: {error}") from error
        if end != len(data):
            fault = f"{len(data) - end} bytes after the record" if end < len(data) else "the record is cut off"
            raise DecodeError(f"{expected.__name__}: schema id {schema_id}: {fault}")
        return message  # type: ignore[no-any-return]

    def _prepare_writer(self, message: type[Message]) -> tuple[bytes, Callable[[Any], bytes]]:
        schema = load_schema(message.schema)
        prepared = (_HEADER.pack(0, self._ids.id_of(schema)), compile_writer(schema.parsed, message))
        self._writers[message] = prepared
        return prepared

    def _prepare_reader(self, schema_id: int, expected: type[Message]) -> _Reader:
        writer, own = self._ids.writer_schema(schema_id), load_schema(expected.schema)
        if writer.record != own.record:
            raise DecodeError(f"schema id {schema_id} is a {writer.record}, not the expected {own.record}")
        if writer.canonical == own.canonical:
            read: _Reader = compile_reader(own.parsed, expected)
        else:
            read = _resolving_reader(writer, own, expected)
        self._readers[schema_id, expected] = read
        return read


def _resolving_reader(writer: Schema, own: Schema, expected: type[Message]) -> _Reader:
    """Reads records of another version of the schema by Avro's resolution rules."""
    write = compile_writer(own.parsed, expected)

    def read(data: bytes, position: int) -> tuple[Message, int]:
        body = io.BytesIO(data)
        body.seek(position)
        record = fastavro.schemaless_reader(body, writer.parsed, own.parsed)
        message = msgspec.convert(record, expected, builtin_types=_BYTES)
        write(message)  # fastavro lets integers through that are out of range
        return message, body.tell()

    return read


def _explain(message: Message, error: Exception) -> str:
    """Where a message breaks its types; the writer's own error when it is a matter of range, not of type."""
    try:
        msgspec.convert(msgspec.to_builtins(message, builtin_types=_BYTES), type(message), builtin_types=_BYTES)
    except (msgspec.ValidationError, TypeError, ValueError) as precise:
        return str(precise)
    return str(error)


# fastavro has no error class of its own for bytes that are not the schema's.
_DECODE_ERRORS: tuple[type[Exception], ...] = (
    *READ_ERRORS,
    EOFError,
    TypeError,
    OverflowError,
    MemoryError,
    msgspec.ValidationError,
    fastavro.read.SchemaResolutionError,
)
