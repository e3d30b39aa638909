"""Avro's binary encoding of message classes, as Python functions generated from the schema.

:func:`compile_writer` and :func:`compile_reader` walk a schema and the matching msgspec class together and write
the straight-line code that a person would write by hand for that one record, as ``dataclasses`` does for
``__init__``. fastavro, which looks up every schema node anew for every record, takes two to three times as long
(``benchmarks/codec.py``). Bytes written with another schema than the class's own go through fastavro's schema
resolution instead (:mod:`gristmill.codec`).

Invariants: a writer never emits a value of another type than the schema's; a reader gives a value of the class or
raises, whatever the bytes. Only what the contract uses is supported: records, enums, arrays, maps, unions of null
and one type, int, long, double, string and bytes. Schema and class must agree in names, order, types, symbols.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import inspect

from gristmill.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Reads the value at a position; gives it and the position after it, which may lie past the end of the data."""

WRITE_ERRORS = (TypeError, ValueError, AttributeError, KeyError, OverflowError, struct.error)
"""What a writer raises on a value that the schema does not admit."""
READ_ERRORS = (ValueError, LookupError, struct.error)
"""What a reader raises on bytes that are not the schema's."""


def compile_writer(schema: Any, message: type[T]) -> Callable[[T], bytes]:
    """Function that encodes a ``message``; it raises one of ``WRITE_ERRORS``.

    Raises:
        ConfigError: class and schema differ.
    """
    writers = _Writers(schema)
    entry = writers.expression(schema, inspect.type_info(message), "value", message.__name__)
    return cast(Callable[[T], bytes], writers.build(f"lambda value: {entry}"))


def compile_reader(schema: Any, message: type[T]) -> Callable[[bytes, int], tuple[T, int]]:
    """Function that reads a ``message``; it raises one of ``READ_ERRORS``.

    The caller must check that the position after the value is the end of the data: past it means truncated.

    Raises:
        ConfigError: class and schema differ.
    """
    readers = _Readers(schema)
    entry = readers.function(schema, inspect.type_info(message), message.__name__)
    return cast(Callable[[bytes, int], tuple[T, int]], readers.build(entry))


class _Code:
    """Generated functions and what they refer to."""

    def __init__(self, schema: Any, helpers: Mapping[str, Any]) -> None:
        self._named = dict(_named_types(schema))
        self._names: dict[str, Any] = dict(helpers)
        self._lines: list[str] = []
        self._functions: dict[str, str] = {}

    def constant(self, value: Any) -> str:
        """Name under which generated code finds ``value``."""
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name

    def define(self, arguments: str, body: list[str]) -> str:
        """Add a function; gives its name."""
        name = f"f{len(self._names)}"
        self._names[name] = None
        self._lines += [f"def {name}({arguments}):", *(f"    {line}" for line in body)]
        return name

    def build(self, entry: str) -> Any:
        """Compile everything and give the object that the expression ``entry`` stands for."""
        namespace = dict(self._names)
        exec(compile("\n".join([*self._lines, f"entry = {entry}"]), "<gristmill avro>", "exec"), namespace)  # noqa: S102
        return namespace["entry"]

    def resolve(self, schema: Any) -> tuple[str, Any]:
        """Avro type and definition of a schema node, through references by name and logical types."""
        while True:
            if isinstance(schema, list):
                return "union", schema
            if isinstance(schema, str):
                if schema not in self._named:
                    return schema, None
                schema = self._named[schema]
            if schema["type"] in ("record", "enum", "array", "map"):
                return schema["type"], schema
            schema = schema["type"]


class _Writers(_Code):
    def __init__(self, schema: Any) -> None:
        super().__init__(schema, _WRITE_HELPERS)

    def expression(self, schema: Any, kind: inspect.Type, value: str, where: str) -> str:
        """Python expression for the encoding of the value that the expression ``value`` stands for."""
        name, definition = self.resolve(schema)
        if name == "record":
            return f"{self._record(definition, kind, where)}({value})"
        if name == "enum":
            codes = {symbol: _varint(index) for index, symbol in enumerate(_symbols(definition, kind, where))}
            return f"{self.constant(codes)}[{value}]"
        if name == "array":
            return f"array({self._function(*_items(definition, kind, where), where)}, {value})"
        if name == "map":
            return f"mapping({self._function(*_values(definition, kind, where), where)}, {value})"
        if name == "union":
            null, other, inner, inner_type = _optional(definition, kind, where)
            written = self.expression(inner, inner_type, value, where)
            return f"({bytes([null])!r} if {value} is None else {bytes([other])!r} + {written})"
        _check_primitive(name, kind, where)
        if name in ("int", "long"):
            return f"(type({value}) is int and small({value}) or {name}_({value}))"
        return f"{name}_({value})"

    def _function(self, schema: Any, kind: inspect.Type, where: str) -> str:
        return self.define("item", [f"return {self.expression(schema, kind, 'item', where + '[]')}"])

    def _record(self, definition: Any, kind: inspect.Type, where: str) -> str:
        cls, fields = _fields(definition, kind, where)
        if definition["name"] not in self._functions:
            known = self.constant(cls)
            parts = [self.expression(inner, item, f"m.{name}", f"{where}.{name}") for name, inner, item in fields]
            self._functions[definition["name"]] = self.define(
                "m", [f"if type(m) is not {known}: wrong_type(m, {known})", f"return join(({', '.join(parts)},))"]
            )
        return self._functions[definition["name"]]


class _Readers(_Code):
    def __init__(self, schema: Any) -> None:
        super().__init__(schema, _READ_HELPERS)

    def function(self, schema: Any, kind: inspect.Type, where: str) -> str:
        """Name of a function that reads one value of a schema node."""
        name, definition = self.resolve(schema)
        if name == "record":
            return self._record(definition, kind, where)
        return self.define("d, p", [*self._statements(schema, kind, "v", where), "return v, p"])

    def _record(self, definition: Any, kind: inspect.Type, where: str) -> str:
        cls, fields = _fields(definition, kind, where)
        if definition["name"] not in self._functions:
            body: list[str] = []
            for index, (name, inner, item) in enumerate(fields):
                body += self._statements(inner, item, f"v{index}", f"{where}.{name}")
            arguments = ", ".join(f"{name}=v{index}" for index, (name, _, _) in enumerate(fields))
            body.append(f"return {self.constant(cls)}({arguments}), p")
            self._functions[definition["name"]] = self.define("d, p", body)
        return self._functions[definition["name"]]

    def _statements(self, schema: Any, kind: inspect.Type, target: str, where: str) -> list[str]:
        """Python statements that read the value at ``d[p]`` into ``target`` and move ``p`` past it."""
        name, definition = self.resolve(schema)
        if name == "record":
            return [f"{target}, p = {self._record(definition, kind, where)}(d, p)"]
        if name == "enum":
            symbols = dict(enumerate(_symbols(definition, kind, where)))
            return [*_READ_INTEGER.format(read="long_").splitlines(), f"{target} = {self.constant(symbols)}[n]"]
        if name == "array":
            item = self.function(*_items(definition, kind, where), where + "[]")
            return [f"{target}, p = array({item}, d, p)"]
        if name == "map":
            item = self.function(*_values(definition, kind, where), where + "{}")
            return [f"{target}, p = mapping({item}, d, p)"]
        if name == "union":
            null, other, inner, inner_type = _optional(definition, kind, where)
            nested = self._statements(inner, inner_type, target, where)
            return [
                "n = d[p]; p += 1",
                f"if n == {null}: {target} = None",
                f"elif n != {other}: bad_branch(n)",
                "else:",
                *(f"    {line}" for line in nested),
            ]
        _check_primitive(name, kind, where)
        if name == "double":
            return [f"{target}, = double_(d, p); p += 8"]
        read = _READ_INTEGER.format(read="int_" if name == "int" else "long_").splitlines()
        if name in ("int", "long"):
            return [*read, f"{target} = n"]
        value = "d[p:q].decode()" if name == "string" else "d[p:q]"
        return [*read, "if n < 0: bad_size(n)", f"q = p + n; {target} = {value}; p = q"]


_READ_INTEGER = """\
n = d[p]
if n < 128: n = short[n]; p += 1
else: n, p = {read}(d, p)"""
"""Reads an integer into ``n``; one byte, the common case, without a call."""


def _named_types(schema: Any) -> Iterator[tuple[str, Any]]:
    """Named types that a schema defines: later uses refer to them by name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _named_types(branch)
    elif isinstance(schema, dict):
        if schema["type"] in ("record", "enum"):
            yield schema["name"], schema
        children = [field["type"] for field in schema.get("fields", ())]
        children += [schema[inner] for inner in ("items", "values") if inner in schema]
        for child in children:
            yield from _named_types(child)


# Agreement of schema and class


def _differ(where: str, avro: object, kind: object) -> ConfigError:
    return ConfigError(f"{where}: the schema says {avro}, the class {kind}")


def _fields(definition: Any, kind: inspect.Type, where: str) -> tuple[type[Any], list[tuple[str, Any, inspect.Type]]]:
    """Class of a record, and name, schema and type of its fields."""
    if not isinstance(kind, inspect.StructType):
        raise _differ(where, "record", kind)
    avro = [field["name"] for field in definition["fields"]]
    typed = [field.name for field in kind.fields]
    if avro != typed:
        raise _differ(where, f"fields {avro}", f"fields {typed}")
    pairs = zip(definition["fields"], kind.fields, strict=True)
    return kind.cls, [(field["name"], field["type"], item.type) for field, item in pairs]


def _symbols(definition: Any, kind: inspect.Type, where: str) -> list[str]:
    symbols: list[str] = definition["symbols"]
    if not isinstance(kind, inspect.LiteralType) or set(kind.values) != set(symbols):
        raise _differ(where, f"enum of {symbols}", kind)
    return symbols


def _items(definition: Any, kind: inspect.Type, where: str) -> tuple[Any, inspect.Type]:
    if not isinstance(kind, inspect.VarTupleType):
        raise _differ(where, "array", kind)
    return definition["items"], kind.item_type


def _values(definition: Any, kind: inspect.Type, where: str) -> tuple[Any, inspect.Type]:
    if not isinstance(kind, inspect.DictType) or not isinstance(kind.key_type, inspect.StrType):
        raise _differ(where, "map", kind)
    return definition["values"], kind.value_type


def _optional(branches: list[Any], kind: inspect.Type, where: str) -> tuple[int, int, Any, inspect.Type]:
    """Bytes that mark null and the value in a union of null and one type; that type in schema and class."""
    others = [branch for branch in branches if branch != "null"]
    types = kind.types if isinstance(kind, inspect.UnionType) and kind.includes_none else ()
    values = [item for item in types if not isinstance(item, inspect.NoneType)]
    if len(branches) != 2 or len(others) != 1 or len(values) != 1:
        raise _differ(where, branches, f"{kind}; only unions of null and one type are supported")
    null = branches.index("null")
    return 2 * null, 2 * (1 - null), others[0], values[0]


_PRIMITIVES: dict[str, type[inspect.Type]] = {
    "int": inspect.IntType,
    "long": inspect.IntType,
    "double": inspect.FloatType,
    "string": inspect.StrType,
    "bytes": inspect.BytesType,
}


def _check_primitive(name: str, kind: inspect.Type, where: str) -> None:
    if name not in _PRIMITIVES or not isinstance(kind, _PRIMITIVES[name]):
        raise _differ(where, name, kind)


# What generated writers call


def _varint(value: int) -> bytes:
    """Zigzag variable-length encoding of a 64-bit integer."""
    rest = (value << 1) ^ (value >> 63)
    out = b""
    while rest >= 0x4000:
        out += _PAIRS[rest & 0x3FFF]
        rest >>= 14
    return out + (bytes((rest & 0x7F | 0x80, rest >> 7)) if rest > 0x7F else bytes((rest,)))


_PAIRS = [bytes((low | 0x80, high | 0x80)) for high in range(128) for low in range(128)]
"""Two groups of seven bits with more to follow."""
_small = {value: _varint(value) for value in range(-64, 1 << 13)}.get
"""Encodings of small integers: sizes, indices, versions."""


def _write_long(value: Any, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> bytes:
    if isinstance(value, bool):
        raise TypeError("bool is not an integer")
    number = operator.index(value)
    if not low <= number <= high:
        raise OverflowError(f"{number} is not within {low} and {high}")
    return _varint(number)


def _write_int(value: Any) -> bytes:
    return _write_long(value, -(1 << 31), (1 << 31) - 1)


def _write_string(value: Any) -> bytes:
    encoded: bytes = value.encode()
    return (_small(len(encoded)) or _varint(len(encoded))) + encoded


def _write_bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        _wrong_type(value, bytes)
    return (_small(len(value)) or _varint(len(value))) + value  # type: ignore[no-any-return]


def _write_array(write_item: Callable[[Any], bytes], value: Any) -> bytes:
    if not isinstance(value, tuple | list):
        _wrong_type(value, tuple)
    return b"".join((_varint(len(value)), *map(write_item, value), b"\0")) if value else b"\0"


def _write_map(write_value: Callable[[Any], bytes], value: Any) -> bytes:
    if not isinstance(value, dict):
        _wrong_type(value, dict)
    if not value:
        return b"\0"
    items = (_write_string(key) + write_value(item) for key, item in value.items())
    return b"".join((_varint(len(value)), *items, b"\0"))


def _wrong_type(value: Any, expected: type[Any]) -> None:
    raise TypeError(f"{type(value).__name__} is not a {expected.__name__}")


_WRITE_HELPERS = {
    "join": b"".join,
    "small": _small,
    "int_": _write_int,
    "long_": _write_long,
    "double_": struct.Struct("<d").pack,
    "string_": _write_string,
    "bytes_": _write_bytes,
    "array": _write_array,
    "mapping": _write_map,
    "wrong_type": _wrong_type,
}


# What generated readers call


def _read_long(data: bytes, position: int) -> tuple[int, int]:
    value = data[position]
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), position + 1
    value &= 0x7F
    for shift in _SHIFTS:
        position += 1
        byte = data[position]
        if byte < 0x80:
            value |= byte << shift
            if value >> 64:
                raise ValueError("an integer of more than 64 bits")
            return (value >> 1) ^ -(value & 1), position + 1
        value |= (byte & 0x7F) << shift
    raise ValueError("an integer of more than ten bytes")


_SHIFTS = tuple(range(7, 70, 7))


def _read_int(data: bytes, position: int) -> tuple[int, int]:
    value, position = _read_long(data, position)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value} is not a 32-bit integer")
    return value, position


def _blocks(data: bytes, position: int) -> tuple[int, int]:
    """Number of items in the next block of an array or map (0 ends it) and the position of the first."""
    count, position = _read_long(data, position)
    if count < 0:
        count = -count
        _, position = _read_long(data, position)  # the block's size in bytes, for readers that skip it
    return count, position


def _read_array(read_item: Read, data: bytes, position: int) -> tuple[tuple[Any, ...], int]:
    items = []
    count, position = _blocks(data, position)
    while count:
        for _ in range(count):  # a forged count ends with IndexError: every item takes at least a byte
            item, position = read_item(data, position)
            items.append(item)
        count, position = _blocks(data, position)
    return tuple(items), position


def _read_map(read_value: Read, data: bytes, position: int) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    count, position = _blocks(data, position)
    while count:
        for _ in range(count):
            size, position = _read_long(data, position)
            if size < 0:
                _bad_size(size)
            key = data[position : position + size].decode()
            items[key], position = read_value(data, position + size)
        count, position = _blocks(data, position)
    return items, position


def _bad_size(size: int) -> None:
    raise ValueError(f"a size of {size}")


def _bad_branch(mark: int) -> None:
    raise ValueError(f"byte {mark} is no branch of a union of two")


_READ_HELPERS = {
    "short": tuple((byte >> 1) ^ -(byte & 1) for byte in range(128)),
    "int_": _read_int,
    "long_": _read_long,
    "double_": struct.Struct("<d").unpack_from,
    "array": _read_array,
    "mapping": _read_map,
    "bad_size": _bad_size,
    "bad_branch": _bad_branch,
}
