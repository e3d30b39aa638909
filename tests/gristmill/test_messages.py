"""Schemas and classes do not drift: names, order, types, defaults, nullability and symbols, in both directions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from gristmill import messages
from gristmill.avro_compile import compile_reader, compile_writer
from gristmill.errors import BadInput, ConfigError
from gristmill.messages import (
    MESSAGES,
    Message,
    Part,
    make_group_id,
    make_sample_id,
    pack_ids,
    pack_logprobs,
    parse_group_id,
    parse_sample_id,
    unpack_ids,
    unpack_logprobs,
)
from gristmill.schemas import load_schema, parse_schema, schema_names
from gristmill.topics import Topics
from support.messages import small_message

by_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)


def signature(schema: Any) -> Any:
    """What a schema says of a type, in the words that ``class_signature`` uses of a class."""
    if isinstance(schema, list):
        assert schema[0] == "null", "null first, so that null is the default"
        assert len(schema) == 2
        return ("optional", signature(schema[1]))
    name = schema if isinstance(schema, str) else schema["type"]
    match name:
        case "record":
            return (
                "record",
                schema["name"],
                [
                    (field["name"], signature(field["type"]), *([field["default"]] if "default" in field else []))
                    for field in schema["fields"]
                ],
            )
        case "enum":
            return ("enum", frozenset(schema["symbols"]))
        case "array":
            return ("array", signature(schema["items"]))
        case "map":
            return ("map", signature(schema["values"]))
        case "int" | "long":
            return "integer"
    return name


def class_signature(kind: inspect.Type) -> Any:
    match kind:
        case inspect.UnionType():
            inner = [item for item in kind.types if not isinstance(item, inspect.NoneType)]
            assert kind.includes_none
            assert len(inner) == 1
            return ("optional", class_signature(inner[0]))
        case inspect.StructType():
            fields = [(field.name, class_signature(field.type), *default(field)) for field in kind.fields]
            return ("record", kind.cls.__name__, fields)
        case inspect.LiteralType():
            return ("enum", frozenset(kind.values))
        case inspect.VarTupleType():
            return ("array", class_signature(kind.item_type))
        case inspect.DictType():
            assert isinstance(kind.key_type, inspect.StrType)
            return ("map", class_signature(kind.value_type))
        case inspect.IntType():
            return "integer"
    return {inspect.FloatType: "double", inspect.StrType: "string", inspect.BytesType: "bytes"}[type(kind)]


def default(field: inspect.Field) -> list[Any]:
    if field.default_factory is not msgspec.NODEFAULT:
        return [field.default_factory()]
    if field.default is msgspec.NODEFAULT:
        return []
    return [list(field.default) if isinstance(field.default, tuple) else field.default]


@by_message
def test_class_and_schema_say_the_same(message: type[Message]) -> None:
    raw = json.loads(load_schema(message.schema).text)
    assert class_signature(inspect.type_info(message)) == signature(raw)


def test_every_schema_has_a_message_and_every_message_a_schema() -> None:
    assert schema_names() == sorted(message.schema for message in MESSAGES)
    declared = {
        value
        for value in vars(messages).values()
        if isinstance(value, type) and issubclass(value, Message) and value is not Message
    }
    assert declared == set(MESSAGES)


def test_parts_are_used() -> None:
    used = "".join(load_schema(name).text for name in schema_names())
    parts = {value for value in vars(messages).values() if isinstance(value, type) and issubclass(value, Part)} - {Part}
    assert parts
    for part in parts:
        assert f'"{part.__name__}"' in used


def test_a_type_that_several_schemas_share_is_the_same_in_each() -> None:
    seen: dict[str, Any] = {}

    def visit(schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                visit(branch)
        elif isinstance(schema, dict):
            if "name" in schema and schema["type"] in ("record", "enum"):
                assert seen.setdefault(schema["name"], schema) == schema, schema["name"]
            for child in [field["type"] for field in schema.get("fields", ())]:
                visit(child)
            for inner in ("items", "values"):
                visit(schema.get(inner))

    for name in schema_names():
        visit(json.loads(load_schema(name).text))
    assert "Sampling" in seen


@by_message
def test_every_topic_of_a_message_is_named_in_its_schema(message: type[Message]) -> None:
    doc = json.loads(load_schema(message.schema).text)["doc"]
    topics = [topic.name for topic in Topics() if topic.message is message]
    assert topics
    for topic in topics:
        assert topic in doc


@by_message
def test_the_key_is_the_one_the_schema_names(message: type[Message]) -> None:
    value = small_message(message)
    doc = json.loads(load_schema(message.schema).text)["doc"]
    field = "group_id" if "key: group_id" in doc else "run_id"
    assert f"key: {field}" in doc
    assert msgspec.structs.replace(value, **{field: "the key"}).key == "the key"


def _drifts(change: Any) -> None:
    raw = json.loads(load_schema("completion").text)
    change(raw["fields"])
    schema = parse_schema("changed", json.dumps(raw))
    with pytest.raises(ConfigError, match="Completion"):
        compile_writer(schema.parsed, messages.Completion)
    with pytest.raises(ConfigError, match="Completion"):
        compile_reader(schema.parsed, messages.Completion)


def test_the_codec_refuses_a_class_that_drifted() -> None:
    """The codec does not depend on these tests having run."""
    _drifts(lambda fields: fields.pop())
    _drifts(lambda fields: fields.reverse())
    _drifts(lambda fields: fields[0].update(type="bytes"))
    _drifts(lambda fields: fields[0].update(type=["null", "string"]))
    _drifts(lambda fields: fields[0].update(type="float"))
    _drifts(lambda fields: fields[7]["type"]["symbols"].append("prose"))
    _drifts(lambda fields: fields[9].update(type=["null", "double", "string"]))
    _drifts(lambda fields: fields[0].update(type={"type": "array", "items": "string"}))
    _drifts(lambda fields: fields[0].update(type={"type": "map", "values": "string"}))


@given(run=st.from_regex(r"\A[A-Za-z0-9._-]{1,64}\Z"), ordinal=st.integers(1, 10**12), index=st.integers(0, 10_000))
def test_identities_round_trip(run: str, ordinal: int, index: int) -> None:
    group = make_group_id(run, ordinal)
    assert parse_group_id(group) == (run, ordinal)
    assert parse_sample_id(make_sample_id(group, index)) == (group, index)


def test_groups_sort_by_ordinal() -> None:
    ids = [make_group_id("run", ordinal) for ordinal in (1, 9, 10, 99, 100, 12_345_678)]
    assert ids == sorted(ids)


@pytest.mark.parametrize("text", ["", "run", "run:", ":1", "run:x", "run:-1", "run:²", "run:1:", "run: 1"])
def test_what_is_no_group_id(text: str) -> None:
    with pytest.raises(BadInput, match="group id"):
        parse_group_id(text)


@pytest.mark.parametrize("text", ["", "run:1", "run:1/", "run:1/x", "run:1/-1", "/0", "run/0"])
def test_what_is_no_sample_id(text: str) -> None:
    with pytest.raises(BadInput, match="id"):
        parse_sample_id(text)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_token_ids_round_trip(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)).tolist() == ids
    assert unpack_ids(pack_ids(np.array(ids, dtype=np.int64))).tolist() == ids
    assert pack_ids(iter(ids)) == pack_ids(ids)


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_logprobs_round_trip(values: list[float]) -> None:
    assert unpack_logprobs(pack_logprobs(values)).tolist() == values
    assert unpack_logprobs(pack_logprobs(np.array(values))).tolist() == values


def test_packed_values_are_little_endian() -> None:
    assert pack_ids([1, 256]) == b"\1\0\0\0\0\1\0\0"
    assert pack_logprobs([-0.5]) == b"\0\0\0\xbf"
    assert not unpack_ids(pack_ids([1])).flags.writeable


@pytest.mark.parametrize("ids", [[2**31], [-(2**31) - 1], np.array([2**31]), np.array([2**40])])
def test_a_token_id_of_more_than_32_bits_is_never_cut(ids: Any) -> None:
    with pytest.raises(BadInput, match="32"):
        pack_ids(ids)


@pytest.mark.parametrize("ids", [[1.5], ["a"], [None], np.array([0.5])])
def test_what_is_no_token_id(ids: Any) -> None:
    with pytest.raises(BadInput):
        pack_ids(ids)


@pytest.mark.parametrize("values", [[None], ["-0.5"], [1e39], [[0.5]]])
def test_what_is_no_logprob(values: Any) -> None:
    with pytest.raises(BadInput, match="logprobs"):
        pack_logprobs(values)


def test_packed_bytes_of_an_odd_length() -> None:
    with pytest.raises(BadInput, match="token ids: 5 bytes"):
        unpack_ids(b"12345")
    with pytest.raises(BadInput, match="logprobs: 3 bytes"):
        unpack_logprobs(b"123")
