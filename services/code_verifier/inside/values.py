"""Plain data: what may cross between the candidate and the judge, as JSON.

Never pickle, marshal or eval. A value is a JSON scalar, or an array whose first element is a tag; :mod:`.encoding`
writes and :mod:`.decoding` reads it. Here is what both need: bounds, and the contents of containers, always taken and
set by the base class' own methods, never by a subclass'.
"""

from __future__ import annotations

import array
import builtins
import contextlib
import json
import operator
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, TypeAlias

Json: TypeAlias = Any

DEPTH = 300
NODES = 4_000_000
SCALARS = frozenset((NoneType, bool, int, float, str))
FACTORIES: dict[str, Callable[[], object]] = {
    t.__name__: t for t in (list, dict, set, int, float, str, bool, tuple, complex, bytes, Counter, deque)
}
"""Factories of a ``defaultdict`` that keep their meaning on the other side."""
TYPES: dict[str, type] = {
    name: t
    for name, t in vars(builtins).items()
    if type(t) is type and t is not object and not issubclass(t, BaseException)
}
TYPES |= {t.__name__: t for t in (NoneType, type(...), type(NotImplemented))}
"""Builtin types that are themselves on the other side. Not ``object``: the tests' own errors are instances of it too,
and a program could call it by the name of its exception."""
ARRAY_CODES = frozenset("bBhHiIlLqQfd")
_MUTABLE = (list, dict, set, deque, bytearray, array.array)


class Uncarried(Exception):
    """A value that cannot cross (too deep, too large)."""


class Malformed(Exception):
    """JSON that is no value."""


_set_limit = sys.setrecursionlimit  # the tests' calls of it are noted, see .surroundings


@contextlib.contextmanager
def deep() -> Iterator[None]:
    """Room for what is nested as deep as is allowed, wherever the program's own recursion stands."""
    limit = sys.getrecursionlimit()
    _set_limit(limit + 8 * DEPTH)
    try:
        yield
    finally:
        _set_limit(limit)


def flat(value: Any) -> list[Any]:
    """The contents of a mutable container in a row (keys and values in turn), by the base class' own methods."""
    kind = type(value)
    if issubclass(kind, OrderedDict):
        return [part for key in OrderedDict.__iter__(value) for part in (key, dict.__getitem__(value, key))]
    if issubclass(kind, dict):
        return [part for pair in dict.items(value) for part in pair]
    if issubclass(kind, list):
        return list(list.__iter__(value))
    if issubclass(kind, set):
        return list(set.__iter__(value))
    if issubclass(kind, array.array):
        return array.array.tolist(value)
    return list(deque.__iter__(value))


def is_mutable(value: object) -> bool:
    """Whether it is a container whose changes are carried back."""
    return issubclass(type(value), _MUTABLE)


def same_contents(before: list[Any] | bytes, now: Any) -> bool:
    """Whether a container holds what it held, by identity."""
    if isinstance(now, bytearray):
        return bytes(now) == before
    row = flat(now)
    if isinstance(now, array.array):
        return row == before
    return len(row) == len(before) and all(map(operator.is_, row, before))


def holding(value: Any) -> list[Any] | bytes:
    """What :func:`same_contents` compares with later."""
    return bytes(value) if isinstance(value, bytearray) else flat(value)


def pairs(row: list[Any]) -> list[tuple[Any, Any]]:
    if len(row) % 2:
        raise Malformed("a key without a value")
    return list(zip(row[::2], row[1::2], strict=True))


def replace(target: Any, row: list[Any]) -> None:
    """Replace the contents of a mutable container by what :func:`flat` gave, by the base class' own methods."""
    kind = type(target)
    if issubclass(kind, dict):
        clear = OrderedDict.clear if issubclass(kind, OrderedDict) else dict.clear
        put = OrderedDict.__setitem__ if issubclass(kind, OrderedDict) else dict.__setitem__
        clear(target)
        for key, value in pairs(row):
            put(target, key, value)
    elif issubclass(kind, list):
        list.__setitem__(target, slice(None), row)
    elif issubclass(kind, set):
        set.clear(target)
        set.update(target, row)
    elif issubclass(kind, array.array):
        target[:] = array.array(target.typecode, row)
    else:
        deque.clear(target)
        deque.extend(target, row)


def _no_constant(name: str) -> object:
    raise ValueError(name)


_write = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_read = json.JSONDecoder(parse_constant=_no_constant).decode


def dumps(value: Json) -> bytes:
    """JSON as bytes."""
    return _write(value).encode()


def loads(data: bytes) -> Json:
    """JSON of bytes that may be hostile; raises :class:`Malformed`."""
    try:
        return _read(data.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON: {error}") from None


def plain_json(text: str) -> Json:
    """The value of JSON that a person wrote (``NaN`` and ``Infinity`` included); raises :class:`Malformed`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{error}: {text[:100]!r}") from None
