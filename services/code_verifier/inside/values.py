"""Plain data as JSON: what may cross between the candidate and the judge, and how it is read.

Never pickle, marshal or eval. A value is a JSON scalar, or an array whose first element is a tag. Containers are
numbered in the order in which they are met, so that both sides know them by the same numbers: a second mention is
``["r", number]``, which keeps aliases and cycles. Subclasses of plain types are read through the base class' own
methods: what a liar's ``__eq__`` or ``__iter__`` would say never crosses.

What is not plain is handed to ``foreign`` (writing) or ``resolve`` (reading); see :mod:`.peer`.
"""

from __future__ import annotations

import array
import builtins
import datetime as dt
import json
import math
import operator
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from types import NoneType
from typing import Any, TypeAlias

Json: TypeAlias = Any

DEPTH = 300
NODES = 4_000_000
_SMALL = 1 << 63
_SCALARS = frozenset((NoneType, bool, int, float, str))
_FACTORIES: dict[str, Callable[[], object]] = {
    t.__name__: t for t in (list, dict, set, int, float, str, bool, tuple, complex, bytes, Counter, deque)
}
TYPES: dict[str, type] = {
    name: t for name, t in vars(builtins).items() if type(t) is type and not issubclass(t, BaseException)
}
_TYPE_NAMES = {t: name for name, t in TYPES.items()}
_KEYS, _VALUES, _ITEMS = type({}.keys()), type({}.values()), type({}.items())
_MUTABLE = (list, dict, set, deque, bytearray, array.array)
_ARRAY_CODES = frozenset("bBhHiIlLqQfd")


class Uncarried(Exception):
    """A value that cannot cross (too deep, too large)."""


class Malformed(Exception):
    """JSON that is no value."""


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


class Encoder:
    """Writes values.

    Args:
        foreign: gives the JSON of a value that is not plain.
        known: containers that the other side knows already, by number.
    """

    def __init__(self, foreign: Callable[[object], Json], known: list[object] | None = None) -> None:
        self._foreign = foreign
        self.containers: list[object] = list(known or ())
        self._numbers = {id(c): n for n, c in enumerate(self.containers)}
        self._nodes = 0
        self._depth = 0

    def encode(self, value: object) -> Json:
        """The JSON of ``value``."""
        kind = type(value)
        if kind in _SCALARS:
            return _scalar(value)
        writer = _WRITERS.get(kind)
        if writer is None:
            writer = _writer_of(kind)
            if writer is None:
                return self._foreign(value)
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
        if _SCALARS.issuperset(map(type, items)):
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


def _namedtuple_fields(kind: type) -> tuple[str, ...] | None:
    fields = kind.__dict__.get("_fields")
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
        if factory is None or _FACTORIES.get(name) is factory:
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
    return e._enter(v, len(row)) or ["q", deque.maxlen.__get__(v), *e.contents(row)]  # type: ignore[attr-defined]


def _write_array(e: Encoder, v: Any) -> Json:
    code = v.typecode
    if code not in _ARRAY_CODES:
        return e._foreign(v)
    row = flat(v)
    return e._enter(v, len(row)) or ["a", code, *e.contents(row)]


_WRITERS: dict[type, Callable[[Encoder, Any], Json]] = {
    int: lambda e, v: _scalar(int.__pos__(v)),
    float: lambda e, v: _scalar(float.__pos__(v)),
    str: lambda e, v: _scalar(str.__str__(v)),
    complex: lambda e, v: ["c", _scalar(complex.real.__get__(v)), _scalar(complex.imag.__get__(v))],  # type: ignore[attr-defined]
    bytes: lambda e, v: ["b", bytes.hex(v)],
    list: lambda e, v: e.sequence("l", v, list(list.__iter__(v))),
    tuple: _write_tuple,
    dict: _write_dict,
    set: lambda e, v: e.sequence("s", v, list(set.__iter__(v))),
    frozenset: lambda e, v: e.sequence("z", v, list(frozenset.__iter__(v))),
    deque: _write_deque,
    bytearray: lambda e, v: e._enter(v, 0) or ["B", bytearray.hex(v)],
}
_EXACT: dict[type, Callable[[Encoder, Any], Json]] = {
    range: lambda e, v: ["g", _scalar(v.start), _scalar(v.stop), _scalar(v.step)],
    type(...): lambda e, v: ["E"],
    type(NotImplemented): lambda e, v: ["N"],
    Decimal: lambda e, v: ["m", str(v)],
    Fraction: lambda e, v: ["h", _scalar(v.numerator), _scalar(v.denominator)],
    dt.date: lambda e, v: ["y", v.year, v.month, v.day],
    dt.timedelta: lambda e, v: ["L", v.days, v.seconds, v.microseconds],
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
}
_BASES = tuple(_WRITERS)
_WRITERS.update(_EXACT)


def _writer_of(kind: type) -> Callable[[Encoder, Any], Json] | None:
    for base in _BASES:
        if issubclass(kind, base):
            return _WRITERS[base]
    return None


class Decoder:
    """Reads values.

    Args:
        resolve: gives the value of JSON with a tag that is not plain; raises :class:`Malformed`.
        known: containers that both sides know, by number.
    """

    def __init__(self, resolve: Callable[[list[Any]], object], known: list[object] | None = None) -> None:
        self._resolve = resolve
        self.containers: list[Any] = list(known or ())
        self._depth = 0

    def decode(self, value: Json) -> Any:
        """The value of what :func:`json.loads` gave; raises :class:`Malformed`."""
        if type(value) is not list:
            if type(value) in _SCALARS:
                return value
            raise Malformed(f"a {type(value).__name__}")
        if not value or type(value[0]) is not str:
            raise Malformed("an array without a tag")
        reader = _READERS.get(value[0])
        try:
            return self._resolve(value) if reader is None else reader(self, value)
        except Malformed:
            raise
        except (TypeError, ValueError, OverflowError, IndexError, KeyError, ArithmeticError) as error:
            raise Malformed(f"{value[0]!r}: {error}") from None

    def items(self, values: list[Any]) -> list[Any]:
        """The value of each."""
        if self._depth >= DEPTH + 10:
            raise Malformed("nested too deep")
        self._depth += 1
        try:
            return [v if type(v) is not list and type(v) in _SCALARS else self.decode(v) for v in values]
        finally:
            self._depth -= 1

    def fill(self, target: Any, values: list[Any]) -> Any:
        """Make ``values`` the contents of a mutable container."""
        self.containers.append(target)
        replace(target, self.items(values))
        return target

    def frozen(self, make: Callable[[list[Any]], object], values: list[Any]) -> Any:
        """A container that is made of its contents."""
        number = len(self.containers)
        self.containers.append(_UNMADE)
        made = make(self.items(values))
        self.containers[number] = made
        return made

    def change(self, number: Json, content: Json) -> None:
        """Give a known container the contents that :meth:`Encoder.change` wrote."""
        target = self.containers[_index(number, len(self.containers))]
        if not is_mutable(target):
            raise Malformed("a change of what cannot change")
        try:
            if isinstance(target, bytearray):
                target[:] = bytes.fromhex(content)
            elif type(content) is list:
                replace(target, self.items(content))
            else:
                raise Malformed("a change without contents")
        except (TypeError, ValueError) as error:
            raise Malformed(f"a change: {error}") from None


_UNMADE = object()


def _index(number: Json, size: int) -> int:
    if type(number) is not int or not 0 <= number < size:
        raise Malformed("a reference to nothing")
    return number


def _pairs(row: list[Any]) -> list[tuple[Any, Any]]:
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
        for key, value in _pairs(row):
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


def _read_ref(d: Decoder, v: list[Any]) -> object:
    found = d.containers[_index(v[1], len(d.containers))]
    if found is _UNMADE:
        raise Malformed("a cycle through a tuple")
    return found


def _zone(offset: Json) -> dt.timezone | None:
    return None if offset is None else dt.timezone(dt.timedelta(microseconds=offset))


_made: dict[tuple[str, tuple[str, ...]], Any] = {}


def _read_namedtuple(d: Decoder, v: list[Any]) -> object:
    name, fields = v[1], v[2]
    if type(name) is not str or type(fields) is not list or not all(type(f) is str for f in fields):
        raise Malformed("a named tuple")
    key = (name, tuple(fields))
    made = _made.get(key)
    if made is None:
        if len(_made) > 256 or len(fields) > 1024:
            raise Malformed("too many named tuples")
        shown = name if name.isidentifier() else "tuple"
        made = _made[key] = namedtuple(shown, fields, rename=True)  # type: ignore[misc]  # noqa: PYI024
    return d.frozen(lambda row: made(*row), v[3:])


def _read_default(d: Decoder, v: list[Any]) -> object:
    factory = None if v[1] is None else _FACTORIES[v[1]]
    return d.fill(defaultdict(factory), v[2:])


def _read_array(d: Decoder, v: list[Any]) -> object:
    if v[1] not in _ARRAY_CODES:
        raise Malformed("an array")
    return d.fill(array.array(v[1]), v[2:])


def _read_bytearray(d: Decoder, v: list[Any]) -> object:
    made = bytearray.fromhex(v[1])
    d.containers.append(made)
    return made


def _read_view(view: str) -> Callable[[Decoder, list[Any]], object]:
    def make(row: list[Any]) -> object:
        if view == "K":
            return dict.fromkeys(row).keys()
        return dict(enumerate(row)).values() if view == "V" else dict(row).items()

    return lambda d, v: d.frozen(make, v[1:])


def _read_range(d: Decoder, v: list[Any]) -> object:
    return range(d.decode(v[1]), d.decode(v[2]), d.decode(v[3]))


_READERS: dict[str, Callable[[Decoder, list[Any]], object]] = {
    "r": _read_ref,
    "i": lambda d, v: int(v[1], 16),
    "f": lambda d, v: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[v[1]],
    "u": lambda d, v: bytes.fromhex(v[1]).decode("utf-8", "surrogatepass"),
    "c": lambda d, v: complex(d.decode(v[1]), d.decode(v[2])),
    "b": lambda d, v: bytes.fromhex(v[1]),
    "B": _read_bytearray,
    "l": lambda d, v: d.fill([], v[1:]),
    "t": lambda d, v: d.frozen(tuple, v[1:]),
    "n": _read_namedtuple,
    "d": lambda d, v: d.fill({}, v[1:]),
    "s": lambda d, v: d.fill(set(), v[1:]),
    "z": lambda d, v: d.frozen(frozenset, v[1:]),
    "q": lambda d, v: d.fill(deque(maxlen=v[1]), v[2:]),
    "C": lambda d, v: d.fill(Counter(), v[1:]),
    "O": lambda d, v: d.fill(OrderedDict(), v[1:]),
    "D": _read_default,
    "a": _read_array,
    "g": _read_range,
    "E": lambda d, v: ...,
    "N": lambda d, v: NotImplemented,
    "m": lambda d, v: Decimal(v[1]),
    "h": lambda d, v: Fraction(d.decode(v[1]), d.decode(v[2])),
    "y": lambda d, v: dt.date(v[1], v[2], v[3]),
    "L": lambda d, v: dt.timedelta(v[1], v[2], v[3]),
    "T": lambda d, v: dt.time(v[1], v[2], v[3], v[4], fold=v[5], tzinfo=_zone(v[6])),
    "M": lambda d, v: dt.datetime(*v[1:8], fold=v[8], tzinfo=_zone(v[9])),
    "k": lambda d, v: TYPES[v[1]],
    "K": _read_view("K"),
    "V": _read_view("V"),
    "I": _read_view("I"),
}


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


def is_plain(value: object) -> bool:
    """Whether a value crosses as data."""
    kind = type(value)
    return kind in _SCALARS or _writer_of(kind) is not None or kind in _EXACT
