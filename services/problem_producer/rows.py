"""Rows of local files by number: JSON lines (plain or gzip), a JSON array (plain or gzip), Parquet.

A store is opened once, which reads the file from end to end: it finds where the rows are and computes the digest of
the content. Rows are then read in any order. What is kept in memory: 20 bytes per JSON line (a gzip file is unpacked
into an unnamed temporary file), the parsed rows of a JSON array, the Arrow table of a Parquet file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import tempfile
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from gristmill.errors import ConfigError, MissingExtra
from problem_producer.items import MalformedRow, Row

_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 20
_BETWEEN_ROWS = re.compile(r"[\s,]*")
_NEXT_ROW = re.compile(r"\}\s*,\s*(?=\{)")


class RowStore(Protocol):
    """Rows ``0 .. len - 1`` of one file or dataset. Readers from several threads need a store each."""

    label: str
    """Path or hub name, for messages."""
    digest: str
    """SHA-256 of the content."""
    unit: str
    """What :meth:`line` counts: ``line`` or ``row``."""

    def __len__(self) -> int: ...

    def line(self, index: int) -> int:
        """Line (or row) number in the file, from 1."""

    def raw(self, index: int) -> bytes:
        """The row as it stands in the file."""

    def row(self, index: int) -> Row:
        """The parsed row.

        Raises:
            MalformedRow: not a JSON object, or not UTF-8.
        """


def open_file(path: Path, form: str | None = None) -> RowStore:
    """Open a file of rows. ``form`` is jsonl, json or parquet; by default the suffix says which.

    Raises:
        ConfigError: missing, unreadable, truncated or of an unknown form.
        MissingExtra: a Parquet file, and no pyarrow.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = bool(suffixes) and suffixes[-1] == ".gz"
    suffix = (suffixes[:-1] if packed else suffixes)[-1:] or [""]
    form = form or {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}.get(suffix[0])
    if form is None:
        raise ConfigError(f"{path}: unknown form; use .jsonl, .jsonl.gz, .json, .json.gz or .parquet")
    try:
        if form == "parquet":
            return ParquetRows(path)
        with _open_plain(path, packed=packed) as stream:
            # Many files named .json hold JSON lines: an array begins with a bracket, a row with a brace.
            if form == "json" and _first_character(stream) != b"{":
                return JsonArray(str(path), stream.read())
            return JsonLines(str(path), stream)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the problems: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: the gzip stream is broken or cut off ({error}); fetch the file again") from error


def parse_object(data: bytes) -> Row:
    """Parse one JSON object.

    Raises:
        MalformedRow: anything else.
    """
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError as error:
        raise MalformedRow(f"not UTF-8: byte 0x{data[error.start]:02x} at {error.start}") from error
    except json.JSONDecodeError as error:
        raise MalformedRow(f"not JSON: {error.msg} at character {error.pos}") from error
    except (ValueError, RecursionError) as error:
        raise MalformedRow(f"not JSON: {error}") from error
    return _as_object(value)


class JsonLines:
    """JSON lines, read with ``pread`` from where the index says."""

    unit = "line"

    def __init__(self, label: str, stream: IO[bytes]) -> None:
        """Index ``stream`` (a real file); it may be closed afterwards."""
        self.label = label
        self._file = os.dup(stream.fileno())
        self._starts, self._lengths, self._lines = array("Q"), array("Q"), array("I")
        sha = hashlib.sha256()
        position = 0
        stream.seek(0)
        for number, line in enumerate(stream, start=1):
            sha.update(line)
            body = line.removeprefix(_BOM) if number == 1 else line
            if body.strip():
                self._starts.append(position + len(line) - len(body))
                self._lengths.append(len(body))
                self._lines.append(number)
            position += len(line)
        self.digest = sha.hexdigest()

    def __del__(self) -> None:
        if (file := getattr(self, "_file", None)) is not None:
            os.close(file)

    def __len__(self) -> int:
        return len(self._starts)

    def line(self, index: int) -> int:
        return self._lines[index]

    def raw(self, index: int) -> bytes:
        return os.pread(self._file, self._lengths[index], self._starts[index]).rstrip(b"\r\n")

    def row(self, index: int) -> Row:
        return parse_object(self.raw(index))


class JsonArray:
    """One JSON array, parsed row by row so that each row has its line and a broken one does not end the file."""

    unit = "line"

    def __init__(self, label: str, data: bytes) -> None:
        self.label = label
        self.digest = hashlib.sha256(data).hexdigest()
        self._rows: list[Row | MalformedRow] = []
        self._raw: list[str] = []
        self._lines = array("I")
        # Bytes that are not UTF-8 become lone surrogates, which the row's texts are then refused for.
        text = data.removeprefix(_BOM).decode(errors="surrogateescape")
        opening = len(text) - len(text.lstrip())
        if not text.startswith("[", opening):
            raise ConfigError(f"{label}: a .json file must hold an array of objects, or one object per line")
        line, counted = 1, 0
        for start, end, row in _array_rows(text, opening + 1):
            line, counted = line + text.count("\n", counted, start), start
            self._rows.append(row)
            self._raw.append(text[start:end])
            self._lines.append(line)

    def __len__(self) -> int:
        return len(self._rows)

    def line(self, index: int) -> int:
        return self._lines[index]

    def raw(self, index: int) -> bytes:
        return self._raw[index].encode(errors="surrogateescape")

    def row(self, index: int) -> Row:
        row = self._rows[index]
        if isinstance(row, MalformedRow):
            raise row
        return row


class ParquetRows:
    """A Parquet file as an Arrow table; rows are counted from 1."""

    unit = "row"

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ModuleNotFoundError as error:
            raise MissingExtra("reading Parquet", "producer", error.name or "pyarrow") from error
        self.label = str(path)
        with path.open("rb") as stream:
            self.digest = hashlib.file_digest(stream, "sha256").hexdigest()
        try:
            self._table = pq.read_table(path)
        except pa.ArrowException as error:
            raise ConfigError(f"{path}: not a readable Parquet file: {error}") from error

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def line(self, index: int) -> int:
        return index + 1

    def raw(self, index: int) -> bytes:
        try:
            return canonical_json(self.row(index))
        except MalformedRow:
            return str(self._table.slice(index, 1).to_string()).encode(errors="replace")

    def row(self, index: int) -> Row:
        try:
            return _as_object(self._table.slice(index, 1).to_pylist()[0])
        except UnicodeDecodeError as error:
            raise MalformedRow(f"not UTF-8: byte at {error.start} of a text column") from error


def canonical_json(row: Row) -> bytes:
    """A row as JSON with sorted keys; values that JSON lacks as text."""
    return json.dumps(row, sort_keys=True, default=str).encode()


def _open_plain(path: Path, *, packed: bool) -> IO[bytes]:
    if not packed:
        return path.open("rb")
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 the caller closes it
    with gzip.open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            unpacked.write(chunk)
    unpacked.flush()
    unpacked.seek(0)
    return unpacked


def _first_character(stream: IO[bytes]) -> bytes:
    head = stream.read(4096).removeprefix(_BOM).lstrip()[:1]
    stream.seek(0)
    return head


def _as_object(value: Any) -> Row:
    if not isinstance(value, dict):
        raise MalformedRow(f"a row must be a JSON object, not {json.dumps(value, default=str)[:60]}")
    return value


def _array_rows(text: str, position: int) -> Iterator[tuple[int, int, Row | MalformedRow]]:
    """Start, end and value of each element; after broken JSON, go on at the next ``}, {``."""
    decoder = json.JSONDecoder()
    while True:
        start = _BETWEEN_ROWS.match(text, position).end()  # type: ignore[union-attr]  # matches the empty text too
        if start >= len(text):
            yield start, start, MalformedRow("the file ends before the array does")
            return
        if text[start] == "]":
            return
        try:
            value, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            broken = error.pos if isinstance(error, json.JSONDecodeError) else start
            following = _NEXT_ROW.search(text, max(start, broken - 1))
            position = following.end() if following else len(text)
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            yield start, position, MalformedRow(f"not JSON: {reason} at character {broken - start} of the row")
            if not following:
                return
            continue
        try:
            yield start, position, _as_object(value)
        except MalformedRow as error:
            yield start, position, error
