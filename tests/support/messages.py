"""Hypothesis strategies for whole messages, made from schema and class together."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from gristmill.messages import MESSAGES, Message
from gristmill.schemas import load_schema

RANGES = {"int": (-(1 << 31), (1 << 31) - 1), "long": (-(1 << 63), (1 << 63) - 1)}
# Every integer length from one byte to ten, and the borders between them.
EDGES = sorted({sign * (1 << bits) + step for bits in range(0, 64) for sign in (1, -1) for step in (-1, 0, 1)})


def messages_of(message: type[Message]) -> st.SearchStrategy[Any]:
    """Any message of a class."""
    return _values(load_schema(message.schema).parsed, inspect.type_info(message))


def any_message() -> st.SearchStrategy[Message]:
    """Any message of any class."""
    return st.one_of([messages_of(message) for message in MESSAGES])


def _values(schema: Any, kind: inspect.Type) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        assert isinstance(kind, inspect.UnionType)
        inner = next(item for item in kind.types if not isinstance(item, inspect.NoneType))
        return st.none() | _values(next(branch for branch in schema if branch != "null"), inner)
    name = schema if isinstance(schema, str) else schema["type"]
    if name == "record":
        assert isinstance(kind, inspect.StructType)
        types = {field.name: field.type for field in kind.fields}
        return st.builds(
            kind.cls, **{field["name"]: _values(field["type"], types[field["name"]]) for field in schema["fields"]}
        )
    if name == "enum":
        return st.sampled_from(schema["symbols"])
    if name == "array":
        assert isinstance(kind, inspect.VarTupleType)
        return st.lists(_values(schema["items"], kind.item_type), max_size=4).map(tuple)
    if name == "map":
        assert isinstance(kind, inspect.DictType)
        return st.dictionaries(st.text(max_size=8), _values(schema["values"], kind.value_type), max_size=3)
    if name in RANGES:
        low, high = RANGES[name]
        edges = [value for value in EDGES if low <= value <= high]
        return st.sampled_from(edges) | st.integers(low, high)
    return {
        "string": st.text(max_size=40) | st.sampled_from(["a" * 63, "b" * 64, "c" * 8191, "d" * 8192, "é" * 9000]),
        "double": st.floats(allow_nan=False),
        "bytes": st.binary(max_size=40) | st.sampled_from([b"\0" * 64, b"\xff" * 20_000]),
    }[name]


def small_message(message: type[Message]) -> Message:
    """One message of a class, the same each time."""
    return msgspec.convert(_sample(load_schema(message.schema).parsed), message, builtin_types=(bytes,))


def _sample(schema: Any) -> Any:
    if isinstance(schema, list):
        return _sample(next(branch for branch in schema if branch != "null"))
    name = schema if isinstance(schema, str) else schema["type"]
    match name:
        case "record":
            return {field["name"]: _sample(field["type"]) for field in schema["fields"]}
        case "enum":
            return schema["symbols"][-1]
        case "array":
            return [_sample(schema["items"])] * 2
        case "map":
            return {"k": _sample(schema["values"])}
    return {"string": "text", "double": 0.5, "bytes": b"\1\2\3\4", "int": 7, "long": 1 << 40}[name]
