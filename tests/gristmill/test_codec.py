"""The wire format: round trips, agreement with other Avro implementations, evolution, and hostile bytes."""

from __future__ import annotations

import io
import json
import re
import struct
from typing import Any

import fastavro
import msgspec
import numpy as np
import pytest
from avro.io import BinaryDecoder, BinaryEncoder, DatumReader, DatumWriter
from avro.schema import parse as avro_parse
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.codec import Codec, FingerprintIds
from gristmill.errors import BadInput, ConfigError, DecodeError
from gristmill.messages import MESSAGES, Completion, Message, PolicyVersion, Problem, Sampling, Verdict, pack_ids
from gristmill.schemas import Schema, load_schema, parse_schema
from support.messages import any_message, messages_of, small_message

CODEC = Codec()
by_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)


class FixedIds(FingerprintIds):
    """Knows one more schema, under the id 77."""

    def __init__(self, extra: Schema) -> None:
        super().__init__()
        self._by_id[77] = extra


def plain(message: Message) -> Any:
    return msgspec.to_builtins(message, builtin_types=(bytes,))


def changed(message: type[Message], change: Any) -> Schema:
    """The schema of ``message`` after ``change(raw)``."""
    raw = json.loads(load_schema(message.schema).text)
    change(raw)
    return parse_schema("changed", json.dumps(raw))


def written_with(schema: Schema, record: dict[str, Any], schema_id: int = 77) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema.parsed, record)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


@by_message
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_round_trip(message: type[Message], data: st.DataObject) -> None:
    value = data.draw(messages_of(message))
    assert CODEC.decode(CODEC.encode(value), message) == value


@given(value=any_message())
@settings(max_examples=60, deadline=None)
def test_fastavro_writes_and_reads_the_same_bytes(value: Message) -> None:
    schema = load_schema(value.schema)
    encoded = CODEC.encode(value)
    assert encoded == written_with(schema, plain(value), schema.fingerprint)
    assert fastavro.schemaless_reader(io.BytesIO(encoded[5:]), schema.parsed, None) == _lists(plain(value))


@pytest.mark.filterwarnings("ignore:Unknown")
@by_message
def test_the_reference_implementation_writes_and_reads_the_same_bytes(message: type[Message]) -> None:
    value = small_message(message)
    schema = avro_parse(load_schema(message.schema).text)
    encoded = CODEC.encode(value)
    assert DatumReader(schema).read(BinaryDecoder(io.BytesIO(encoded[5:]))) == _lists(plain(value))
    out = io.BytesIO()
    DatumWriter(schema).write(_lists(plain(value)), BinaryEncoder(out))
    assert CODEC.decode(encoded[:5] + out.getvalue(), message) == value


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, tuple | list) else value


def test_confluent_header() -> None:
    encoded = CODEC.encode(small_message(Problem))
    assert encoded[0] == 0
    assert struct.unpack(">I", encoded[1:5]) == (load_schema("problem").fingerprint,)


def test_fingerprint_is_the_one_of_the_avro_specification() -> None:
    # CRC-64-AVRO of the canonical form "int", from the specification's test data.
    assert fastavro.schema.fingerprint('"int"', "CRC-64-AVRO") == "8f5c393f1ad57572"
    for message in MESSAGES:
        schema = load_schema(message.schema)
        expected = _crc_64_avro(schema.canonical.encode()) & 0x7FFF_FFFF
        assert schema.fingerprint == expected


def _crc_64_avro(data: bytes) -> int:
    """As the specification writes it."""
    empty = 0xC15D213AA4D7A795
    table = []
    for index in range(256):
        value = index
        for _ in range(8):
            value = (value >> 1) ^ (empty & -(value & 1))
        table.append(value)
    result = empty
    for byte in data:
        result = (result >> 8) ^ table[(result ^ byte) & 0xFF]
    return result


def test_numpy_integers_are_integers() -> None:
    value = small_message(PolicyVersion)
    odd = msgspec.structs.replace(value, version=np.int64(3), admit_until=np.int32(1 << 20))
    assert CODEC.decode(CODEC.encode(odd), PolicyVersion).admit_until == 1 << 20


WRONG = [
    ("run_id", 5),
    ("run_id", b"bytes"),
    ("run_id", None),
    ("run_id", "\ud800"),
    ("index", "1"),
    ("index", 1.0),
    ("index", True),
    ("index", 1 << 31),
    ("ordinal", 1 << 63),
    ("ordinal", None),
    ("kind", "prose"),
    ("kind", None),
    ("kind", ["math"]),
    ("difficulty", "hard"),
    ("reference", 42),
    ("tests", {"kind": "assert"}),
    ("logprobs", "text"),
    ("logprobs", [0.5]),
    ("logprobs", np.zeros(3, "<f4")),
    ("logprobs", memoryview(b"1234")),
    ("policy_spans", "spans"),
    ("policy_spans", ({"version": 1},)),
    ("policy_spans", None),
    ("sampling", None),
    ("sampling", {"temperature": 1.0}),
    ("sampling", Sampling(temperature="hot", max_new_tokens=1)),  # type: ignore[arg-type]
    ("sampling", Sampling(temperature=1.0, max_new_tokens=1, stop="abc")),  # type: ignore[arg-type]
    ("sampling", Sampling(temperature=1.0, max_new_tokens=1, stop=(1,))),  # type: ignore[arg-type]
    ("generation_s", "1"),
    ("generation_s", None),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda item: re.sub(r" at 0x\w+", "", repr(item))[:30])
def test_a_value_that_the_schema_does_not_admit_is_bad_input(field: str, value: object) -> None:
    broken = msgspec.structs.replace(small_message(Completion), **{field: value})
    with pytest.raises(BadInput, match="Completion"):
        CODEC.encode(broken)


def test_bad_input_says_where_and_what() -> None:
    sampling = Sampling(temperature=1.0, max_new_tokens="many")  # type: ignore[arg-type]
    broken = msgspec.structs.replace(small_message(Completion), group_id="run:00000007", sampling=sampling)
    with pytest.raises(BadInput) as caught:
        CODEC.encode(broken)
    assert "Completion 'run:00000007'" in str(caught.value)
    assert "$.sampling.max_new_tokens" in str(caught.value)


def test_a_map_must_hold_its_type() -> None:
    with pytest.raises(BadInput):
        CODEC.encode(msgspec.structs.replace(small_message(Problem), metadata={"k": 1}))
    with pytest.raises(BadInput):
        CODEC.encode(msgspec.structs.replace(small_message(Problem), metadata=[("k", "v")]))


# Evolution


def test_a_record_of_an_older_schema_gets_the_default() -> None:
    older = changed(Verdict, lambda raw: raw["fields"].remove(next(f for f in raw["fields"] if f["name"] == "stage")))
    value = small_message(Verdict)
    record = plain(value)
    del record["stage"]
    decoded = Codec(FixedIds(older)).decode(written_with(older, record), Verdict)
    assert decoded == msgspec.structs.replace(value, stage="")


def test_a_record_of_a_newer_schema_loses_only_what_is_new() -> None:
    new = {"name": "novel", "type": ["null", "string"], "default": None, "doc": "New."}
    newer = changed(Verdict, lambda raw: raw["fields"].insert(3, new))
    value = small_message(Verdict)
    decoded = Codec(FixedIds(newer)).decode(written_with(newer, {**plain(value), "novel": "x"}), Verdict)
    assert decoded == value


def test_an_incompatible_writer_is_a_decode_error() -> None:
    def change(raw: Any) -> None:
        raw["fields"][0]["type"] = "double"

    other = changed(Verdict, change)
    data = written_with(other, {**plain(small_message(Verdict)), "run_id": 0.5})
    with pytest.raises(DecodeError):
        Codec(FixedIds(other)).decode(data, Verdict)


def test_docs_and_defaults_do_not_change_the_id() -> None:
    def change(raw: Any) -> None:
        raw["doc"] = "Another text."

    assert changed(Verdict, change).fingerprint == load_schema("verdict").fingerprint


def test_two_schemas_with_one_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schema, "fingerprint", 5)
    with pytest.raises(ConfigError, match="share the id 5"):
        FingerprintIds()


# Hostile bytes


@pytest.mark.parametrize("data", [None, b"", b"\0", b"\0\0\0\0", b"\1\0\0\0\1abc", b"{}", b"\0\0\0\0\7abc"])
def test_what_is_no_record_is_a_decode_error(data: bytes | None) -> None:
    with pytest.raises(DecodeError):
        CODEC.decode(data, Problem)


@by_message
def test_another_message_is_a_decode_error(message: type[Message]) -> None:
    encoded = CODEC.encode(small_message(message))
    for other in MESSAGES:
        if other is not message:
            with pytest.raises(DecodeError, match="not the expected"):
                CODEC.decode(encoded, other)


@by_message
def test_every_truncation_is_a_decode_error(message: type[Message]) -> None:
    encoded = CODEC.encode(small_message(message))
    for size in range(len(encoded)):
        with pytest.raises(DecodeError):
            CODEC.decode(encoded[:size], message)
    with pytest.raises(DecodeError, match="1 bytes after"):
        CODEC.decode(encoded + b"\0", message)


def _older_codec(message: type[Message]) -> tuple[Codec, Schema]:
    new = {"name": "novel", "type": "string", "default": "", "doc": "New."}
    older = changed(message, lambda raw: raw["fields"].append(new))
    return Codec(FixedIds(older)), older


def _decode_only_fails_properly(codec: Codec, data: bytes, message: type[Message]) -> None:
    """Decoding gives a valid message or a DecodeError: nothing else."""
    try:
        decoded = codec.decode(data, message)
    except DecodeError:
        return
    assert isinstance(decoded, message)
    try:
        CODEC.encode(decoded)
    except BadInput as error:  # pragma: no cover
        raise AssertionError(f"decoded a value of a wrong type: {error}") from error


@by_message
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_damaged_bytes_give_a_message_or_a_decode_error(message: type[Message], data: st.DataObject) -> None:
    intact = small_message(message)
    older_codec, older = _older_codec(message)
    for codec, encoded in (
        (CODEC, CODEC.encode(intact)),
        (older_codec, written_with(older, {**plain(intact), "novel": "x"})),
    ):
        damaged = bytearray(encoded)
        for _ in range(data.draw(st.integers(1, 4))):
            position = data.draw(st.integers(5, len(damaged) - 1))
            damaged[position] = data.draw(st.integers(0, 255))
        _decode_only_fails_properly(codec, bytes(damaged), message)


@by_message
@given(body=st.binary(max_size=300))
@settings(max_examples=50, deadline=None)
def test_random_bytes_give_a_message_or_a_decode_error(message: type[Message], body: bytes) -> None:
    older_codec, _ = _older_codec(message)
    header = struct.pack(">bI", 0, load_schema(message.schema).fingerprint)
    _decode_only_fails_properly(CODEC, header + body, message)
    _decode_only_fails_properly(older_codec, struct.pack(">bI", 0, 77) + body, message)


def test_forged_sizes_end_quickly() -> None:
    """A size of 2^62 neither allocates nor loops for ever."""
    header = struct.pack(">bI", 0, load_schema("rejection").fingerprint)
    huge = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    prefix = b"\2r" + b"\2g" + b"\2"  # run_id, group_id, ordinal; then the array sample_ids
    for forged in (huge, b"\2r" + huge, prefix + huge + b"\2a\2b", prefix + b"\xff" * 9 + b"\1" + b"\2a"):
        with pytest.raises(DecodeError):
            CODEC.decode(header + forged, type(small_message(MESSAGES[4])))


def test_blocks_with_a_byte_size_are_read() -> None:
    """Other writers may put the size of an array block before it (negative count)."""
    value = msgspec.structs.replace(small_message(Problem), messages=(), metadata={"k": "v"})
    encoded = CODEC.encode(value)
    block = b"\2" + b"\2k\2v" + b"\0"
    assert encoded.endswith(block)
    sized = b"\1" + b"\x08" + b"\2k\2v" + b"\0"
    assert CODEC.decode(encoded.removesuffix(block) + sized, Problem) == value


def test_token_ids_keep_their_bytes() -> None:
    ids = pack_ids([0, 1, 151_936, 2**31 - 1])
    value = msgspec.structs.replace(small_message(Completion), completion_token_ids=ids)
    assert CODEC.decode(CODEC.encode(value), Completion).completion_token_ids == ids
