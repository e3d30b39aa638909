"""Writes plain data as JSON; see :mod:`.values`.

Containers are numbered in the order in which they are met, so that both sides know them by the same numbers: a second
mention is ``["r", number]``, which keeps aliases and cycles. Subclasses of plain types are read through the base class'
own methods: what a liar's ``__eq__`` or ``__iter__`` would say never crosses. What is not plain, its owner names.
"""

from __future__ import annotations

import array
import datetime as dt
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from .values import ARRAY_CODES, DEPTH, FACTORIES, NODES, SCALARS, TYPES, Json, Uncarried, flat

_SMALL = 1 << 63
_TYPE_NAMES = {t: name for name, t in TYPES.items()}
_KEYS: type = type({}.keys())
_VALUES: type = type({}.values())
_ITEMS: type = type({}.items())
_ORDERED: OrderedDict[Any, Any] = OrderedDict()


def _is_clean(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _scalar(value: Any) -> Json:
    kind = type(value)
    if kind is str:
        return value if _is_clean(value) else ["u", value.encode("utf-8", "surrogatepass").hex()]
    if kind is float:
        return value if math.isfinite(value) else ["f", repr(value)]
    if kind is int and not -_SMALL < value < _SMALL:
        return ["i", hex(value)]
    return value


Writer: TypeAlias = Callable[["Encoder", Any], Json]


class Encoder:
    """Writes values.

    Args:
        foreign: gives the JSON of a value that is not plain.
        known: containers that the other side knows already, by number.
        derived: gives the JSON of an instance of a subclass of a plain type, which by itself is written as that type.
    """

    def __init__(
        self,
        foreign: Callable[[object], Json],
        known: list[object] | None = None,
        derived: Callable[[Encoder, object, Writer], Json] | None = None,
    ) -> None:
        self._foreign = foreign
        self._derived = derived
        self.containers: list[object] = list(known or ())
        self._numbers = {id(c): n for n, c in enumerate(self.containers)}
        self._nodes = 0
        self._depth = 0

    def encode(self, value: object) -> Json:
        """The JSON of ``value``."""
        kind = type(value)
        if kind in SCALARS:
            return _scalar(value)
        writer = _WRITERS.get(kind)
        if writer is None:
            writer = _writer_of(kind)
            if writer is None:
                return self._foreign(value)
            if self._derived is not None:
                return self._derived(self, value, writer)
        return writer(self, value)

    def _enter(self, value: object, size: int) -> Json | None:
        number = self._numbers.get(id(value))
        if number is not None:
            return ["r", number]
        self._numbers[id(value)] = len(self.containers)
        self.containers.append(value)
        self._nodes += size + 1
        if self._nodes > NODES:
            raise Uncarried(f"more than {NODES} values")
        return None

    def contents(self, items: list[Any]) -> list[Json]:
        """The JSON of each of ``items``."""
        if self._depth >= DEPTH:
            raise Uncarried(f"nested more than {DEPTH} deep")
        if SCALARS.issuperset(map(type, items)):
            return list(map(_scalar, items))
        self._depth += 1
        try:
            return [self.encode(item) for item in items]
        finally:
            self._depth -= 1

    def sequence(self, tag: str, value: object, items: list[Any]) -> Json:
        """A container whose contents are ``items``."""
        return self._enter(value, len(items)) or [tag, *self.contents(items)]

    def change(self, value: object) -> Json:
        """The contents of a container that the other side knows, as they are now."""
        if isinstance(value, bytearray):
            return bytearray.hex(value)
        return self.contents(flat(value))


def _namedtuple_fields(kind: type) -> tuple[str, ...] | None:
    fields = next((vars(c)["_fields"] for c in kind.__mro__ if "_fields" in vars(c)), None)
    if type(fields) is tuple and fields and all(type(f) is str for f in fields):
        return fields
    return None


def _write_tuple(e: Encoder, v: Any) -> Json:
    items = list(tuple.__iter__(v))
    kind = type(v)
    if kind is not tuple:
        fields = _namedtuple_fields(kind)
        if fields is not None and len(fields) == len(items):
            return e._enter(v, len(items)) or ["n", kind.__name__, list(fields), *e.contents(items)]
    return e.sequence("t", v, items)


def _write_dict(e: Encoder, v: Any) -> Json:
    kind = type(v)
    if issubclass(kind, Counter):
        return e.sequence("C", v, flat(v))
    if issubclass(kind, OrderedDict):
        return e.sequence("O", v, flat(v))
    if kind is defaultdict:
        factory = v.default_factory
        name = getattr(factory, "__name__", "")
        if factory is None or FACTORIES.get(name) is factory:
            return e._enter(v, 2 * len(v)) or ["D", name if factory else None, *e.contents(flat(v))]
    return e.sequence("d", v, flat(v))


def _write_datetime(e: Encoder, v: Any) -> Json:
    zone = v.tzinfo
    if zone is not None and type(zone) is not dt.timezone:
        return e._foreign(v)
    offset = None if zone is None else zone.utcoffset(None) / dt.timedelta(microseconds=1)
    if type(v) is dt.time:
        return ["T", v.hour, v.minute, v.second, v.microsecond, v.fold, offset]
    return ["M", v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.fold, offset]


def _write_deque(e: Encoder, v: Any) -> Json:
    row = flat(v)
    return e._enter(v, len(row)) or ["q", deque.maxlen.__get__(v), *e.contents(row)]


def _write_array(e: Encoder, v: Any) -> Json:
    code = v.typecode
    if code not in ARRAY_CODES:
        return e._foreign(v)
    row = flat(v)
    return e._enter(v, len(row)) or ["a", code, *e.contents(row)]


_WRITERS: dict[type, Writer] = {
    int: lambda _e, v: _scalar(int.__pos__(v)),
    float: lambda _e, v: _scalar(float.__pos__(v)),
    str: lambda _e, v: _scalar(str.__str__(v)),
    complex: lambda _e, v: ["c", _scalar(complex.real.__get__(v)), _scalar(complex.imag.__get__(v))],
    bytes: lambda _e, v: ["b", bytes.hex(v)],
    list: lambda e, v: e.sequence("l", v, list(list.__iter__(v))),
    tuple: _write_tuple,
    dict: _write_dict,
    set: lambda e, v: e.sequence("s", v, list(set.__iter__(v))),
    frozenset: lambda e, v: e.sequence("z", v, list(frozenset.__iter__(v))),
    deque: _write_deque,
    bytearray: lambda e, v: e._enter(v, 0) or ["B", bytearray.hex(v)],
}
_EXACT: dict[type, Writer] = {
    range: lambda _e, v: ["g", _scalar(v.start), _scalar(v.stop), _scalar(v.step)],
    type(...): lambda _e, _v: ["E"],
    slice: lambda e, v: ["e", *e.contents([v.start, v.stop, v.step])],
    type(NotImplemented): lambda _e, _v: ["N"],
    Decimal: lambda _e, v: ["m", str(v)],
    Fraction: lambda _e, v: ["h", _scalar(v.numerator), _scalar(v.denominator)],
    dt.date: lambda _e, v: ["y", v.year, v.month, v.day],
    dt.timedelta: lambda _e, v: ["L", v.days, v.seconds, v.microseconds],
    dt.datetime: _write_datetime,
    dt.time: _write_datetime,
    array.array: _write_array,
    defaultdict: _write_dict,
    Counter: _write_dict,
    OrderedDict: _write_dict,
    type: lambda e, v: ["k", _TYPE_NAMES[v]] if v in _TYPE_NAMES else e._foreign(v),
    _KEYS: lambda e, v: e.sequence("K", v, list(v)),
    _VALUES: lambda e, v: e.sequence("V", v, list(v)),
    _ITEMS: lambda e, v: e.sequence("I", v, list(v)),
    type(_ORDERED.keys()): lambda e, v: e.sequence("K", v, list(v)),
    type(_ORDERED.values()): lambda e, v: e.sequence("V", v, list(v)),
    type(_ORDERED.items()): lambda e, v: e.sequence("I", v, list(v)),
}
_BASES = tuple(_WRITERS)
_WRITERS.update(_EXACT)


def _writer_of(kind: type) -> Writer | None:
    for base in _BASES:
        if issubclass(kind, base):
            return _WRITERS[base]
    return None


def is_plain(value: object) -> bool:
    """Whether a value crosses as data."""
    kind = type(value)
    return kind in SCALARS or _writer_of(kind) is not None or kind in _EXACT
