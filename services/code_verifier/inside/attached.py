"""The judge's stand-ins for instances of the candidate's subclasses of plain types.

Such a stand-in *is* plain data in the judge: a list, a number, text, as the base class' own methods read it where it
came from. Comparisons, arithmetic with plain data, length, iteration and membership are the base class' own, on that
data; what the subclass says of them never matters. What the base does not have is forwarded, as for a
:class:`.remote.Remote`; so are methods and texts that the subclass defines anew, items of a container that the tests
made by calling its class, and operators, where the other operand is the candidate's as well.

Contents are kept the same on both sides: :meth:`JudgePeer.request` sends what the tests changed, each answer brings
what the program changed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from . import values
from .remote import BINARY, CLASSES, READABLE, STAND_INS, UNARY, Asking, ask, exactly, read, stands_in

_NUMBERS = (int, float, str, bytes, complex)
_FIXED = (tuple, frozenset)
_CHANGING = (list, set, dict, deque, Counter, OrderedDict, defaultdict)
_COMPARING = frozenset(
    [
        "count",
        "difference",
        "index",
        "intersection",
        "isdisjoint",
        "issubset",
        "issuperset",
        "symmetric_difference",
        "union",
    ]
)
"""Methods whose argument is what something is compared with: the base class' own, always."""
_READING = frozenset(("get", "items", "keys", "values"))
"""What a container that a function gave says of its contents is the base class' own too; the subclass has its say in
what the tests made by calling it."""
_get = object.__getattribute__
_put = object.__setattr__


class Attached:
    """What all of them share; comes before the base class."""

    _gristmill_peer: Any = None
    _gristmill_ref = -1
    _gristmill_class = -1
    _gristmill_base: Any = None
    _gristmill_kind = "object"
    _gristmill_made = False
    _gristmill_own: frozenset[str] = frozenset()

    def __getattribute__(self, name: str) -> Any:
        own = name in _get(self, "_gristmill_own") and not name.startswith("__") and name not in _COMPARING
        if own and (name not in _READING or _get(self, "_gristmill_made")):
            return ask(self, "get", name)
        return _get(self, name)

    def __getattr__(self, name: str) -> Any:
        if not stands_in(self) or (name.startswith("__") and name.endswith("__") and name not in READABLE):
            raise AttributeError(name)
        return read(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        ask(self, "set", name, value)

    def __delattr__(self, name: str) -> None:
        ask(self, "del", name)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return ask(self, "call", args, kwargs)

    def __enter__(self) -> Any:
        return ask(self, "enter")

    def __exit__(self, *_exception: object) -> None:
        ask(self, "exit")

    def __copy__(self) -> Any:
        return ask(self, "copy") if stands_in(self) else bare(self)

    def __deepcopy__(self, memo: object) -> Any:
        return ask(self, "deepcopy") if stands_in(self) else bare(self)


def _text(name: str, base: type) -> Callable[[Any], str]:
    own: Callable[[Any], str] = getattr(base, name)

    def method(self: Any) -> str:
        if name not in self._gristmill_own:
            return own(self)
        return exactly(self, str, name.strip("_"))

    return method


def _item(name: str, operation: str, base: Any) -> Callable[..., Any]:
    own = getattr(base, name)

    def method(self: Any, key: object, *value: object) -> Any:
        if name not in self._gristmill_own or not self._gristmill_made:
            return own(self, key, *value)
        return ask(self, operation, key, *value)

    return method


def _missing(base: Any) -> Callable[[Any, object], Any]:
    own = getattr(base, "__missing__", None)

    def method(self: Any, key: object) -> Any:
        if "__missing__" in self._gristmill_own and self._gristmill_made:
            return ask(self, "item", key)
        if own is None:
            raise KeyError(key)
        return own(self, key)

    return method


def _binary(name: str, base: Any) -> Callable[[Any, Any], Any]:
    special = f"__{name.strip('_')}__"
    own = getattr(base, special, None)

    def method(self: Any, other: Any, *modulus: Any) -> Any:
        if special in self._gristmill_own and stands_in(self) and stands_in(other):
            return self._gristmill_peer.request("operator", name, self, other)
        return NotImplemented if own is None else own(self, other, *modulus)

    return method


def _unary(name: str) -> Callable[[Any], Any]:
    return lambda self: ask(self, "operator1", name)


_kinds: dict[type, type] = {}


def kind_of(base: type) -> type:
    """The stand-ins' class for a plain type; raises :class:`values.Malformed` for what is none."""
    made = _kinds.get(base)
    if made is not None:
        return made
    if base not in (*_NUMBERS, *_FIXED, *_CHANGING) and not (base.__bases__ == (tuple,) and hasattr(base, "_fields")):
        raise values.Malformed(f"a subclass of {base.__name__}")
    if len(_kinds) >= CLASSES:
        raise values.Malformed("too many kinds of values")
    space: dict[str, Any] = {"_gristmill_base": base, "__hash__": base.__hash__}
    space |= {name: _text(name, base) for name in ("__str__", "__repr__")}
    space |= {f"__{name.strip('_')}__": _binary(name, base) for name in BINARY}
    space |= {f"__{name}__": _unary(name) for name in UNARY if not hasattr(base, f"__{name}__")}
    # A Counter's comparisons are Python: they would ask for the items of what it is compared with.
    if base in _CHANGING and base is not Counter:
        for name, operation in (("__getitem__", "item"), ("__setitem__", "setitem"), ("__delitem__", "delitem")):
            if hasattr(base, name):
                space[name] = _item(name, operation, base)
        if issubclass(base, dict):
            space["__missing__"] = _missing(base)
    made = _kinds[base] = type(base.__name__, (Attached, base), space)
    STAND_INS.add(made)
    return made


_OPERATORS = frozenset(f"__{name.strip('_')}__" for name in (*BINARY, *UNARY))
_ITEMS = frozenset(("__getitem__", "__setitem__", "__delitem__", "__missing__"))


def _may_be_own(name: str, base: Any) -> bool:
    """Whether a subclass can have its say in this: the list is the program's word."""
    if name in _OPERATORS or name in {"__str__", "__repr__"}:
        return True
    if base in _CHANGING:
        return name in _ITEMS or (not name.startswith("_") and hasattr(base, name))
    return name in _ITEMS or (name in {"_replace", "_make"} and issubclass(base, tuple))


def attached(peer: Asking, ref: int, names: list[str], kind: Any, plain: Any) -> Any:
    """A stand-in of a class that :func:`kind_of` made, or of one derived from it."""
    base = kind._gristmill_base
    if not all(_may_be_own(name, base) for name in names):
        raise values.Malformed("a subclass")
    if base in _CHANGING:
        made = kind.__new__(kind)
        if base is defaultdict:
            defaultdict.__init__(made, plain.default_factory)
        elif base is deque:
            deque.__init__(made, (), plain.maxlen)
        values.replace(made, values.flat(plain))
    elif issubclass(base, tuple):
        made = tuple.__new__(kind, plain)
    else:
        made = base.__new__(kind, plain)
    _put(made, "_gristmill_peer", peer)
    _put(made, "_gristmill_ref", ref)
    _put(made, "_gristmill_own", frozenset(names))
    return made


def _base(found: Any) -> Any:
    return type(found)._gristmill_base


def same_number(found: Any, plain: Any) -> bool:
    """Whether a stand-in has this value, which never changes, so that it can be given out again."""
    base = type(plain)
    return base in _NUMBERS and _base(found) is base and base.__eq__(found, plain) is True


def changes(found: Any, plain: Any) -> bool:
    """Whether a stand-in is a container that can take on the contents of ``plain``."""
    return type(plain) in _CHANGING and _base(found) is type(plain)


def bare(value: Any) -> Any:
    """The plain value of a stand-in, and anything else as it is."""
    if not issubclass(type(value), Attached):
        return value
    base: Any = _base(value)
    if base in _CHANGING:
        plain = base()
        values.replace(plain, values.flat(value))
        return plain
    if issubclass(base, tuple):
        return tuple.__new__(base, tuple.__iter__(value))
    return base.__getnewargs__(value)[0] if base in (int, float, str, bytes) else base.__new__(base, value)
