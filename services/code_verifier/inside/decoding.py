"""Reads plain data from JSON that may be hostile; see :mod:`.encoding` for the form.

Strict: an unknown tag, a reference to nothing, a value that Python refuses, too much depth raise
:class:`.values.Malformed`. Only types of the standard library are made, by their own constructors, of values read.
"""

from __future__ import annotations

import array
import datetime as dt
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .values import ARRAY_CODES, DEPTH, FACTORIES, SCALARS, TYPES, Json, Malformed, is_mutable, replace


class Decoder:
    """Reads values.

    Args:
        resolve: gives the value of JSON with a tag that is not plain; raises :class:`Malformed`.
        known: containers that both sides know, by number.
        attach: makes what stands for an instance of a subclass of a plain type, of what describes it and of its plain
            value; raises :class:`Malformed`.
    """

    def __init__(
        self,
        resolve: Callable[[list[Any]], object],
        known: list[object] | None = None,
        attach: Callable[[list[Json], Any], object] | None = None,
    ) -> None:
        self._resolve = resolve
        self._attach = attach
        self.containers: list[Any] = list(known or ())
        self._depth = 0
        self.deepest = 0

    def decode(self, value: Json) -> Any:
        """The value of what :func:`json.loads` gave; raises :class:`Malformed`."""
        if type(value) is not list:
            if type(value) in SCALARS:
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
        self.deepest = max(self.deepest, self._depth)
        try:
            return [v if type(v) is not list and type(v) in SCALARS else self.decode(v) for v in values]
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

    def derived(self, value: list[Any]) -> object:
        """An instance of a subclass of a plain type."""
        inner = value[1]
        if self._attach is None or (type(inner) is list and inner[:1] == ["S"]):
            raise Malformed("a subclass")
        number = len(self.containers)
        plain = self.decode(inner)
        made = self._attach(value[2:], plain)
        if number < len(self.containers) and self.containers[number] is plain:
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


def _read_ref(d: Decoder, v: list[Any]) -> object:
    found = d.containers[_index(v[1], len(d.containers))]
    if found is _UNMADE:
        raise Malformed("a cycle through a tuple")
    return found


def _zone(offset: Json) -> dt.timezone | None:
    return None if offset is None else dt.timezone(dt.timedelta(microseconds=offset))


_METHODS = frozenset(name for name in vars(tuple) if not name.startswith("_"))
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
        made = _made[key] = namedtuple(shown, fields, rename=True)
    found = d.frozen(lambda row: made(*row), v[3:])
    if any(name in _METHODS and callable(getattr(found, name)) for name in fields):
        raise Malformed("a named tuple whose methods are the program's")
    return found


def _read_default(d: Decoder, v: list[Any]) -> object:
    factory = None if v[1] is None else FACTORIES[v[1]]
    return d.fill(defaultdict(factory), v[2:])


def _read_array(d: Decoder, v: list[Any]) -> object:
    if v[1] not in ARRAY_CODES:
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
    "i": lambda _d, v: int(v[1], 16),
    "f": lambda _d, v: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[v[1]],
    "u": lambda _d, v: bytes.fromhex(v[1]).decode("utf-8", "surrogatepass"),
    "c": lambda d, v: complex(d.decode(v[1]), d.decode(v[2])),
    "b": lambda _d, v: bytes.fromhex(v[1]),
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
    "e": lambda d, v: slice(*d.items([v[1], v[2], v[3]])),
    "S": lambda d, v: d.derived(v),
    "E": lambda _d, _v: ...,
    "N": lambda _d, _v: NotImplemented,
    "m": lambda _d, v: Decimal(v[1]),
    "h": lambda d, v: Fraction(d.decode(v[1]), d.decode(v[2])),
    "y": lambda _d, v: dt.date(v[1], v[2], v[3]),
    "L": lambda _d, v: dt.timedelta(v[1], v[2], v[3]),
    "T": lambda _d, v: dt.time(v[1], v[2], v[3], v[4], fold=v[5], tzinfo=_zone(v[6])),
    "M": lambda _d, v: dt.datetime(v[1], v[2], v[3], v[4], v[5], v[6], v[7], _zone(v[9]), fold=v[8]),
    "k": lambda _d, v: TYPES[v[1]],
    "K": _read_view("K"),
    "V": _read_view("V"),
    "I": _read_view("I"),
}
