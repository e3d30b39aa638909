"""Which of the program's classes, derived from plain types, are more than the plain type, and in what."""

from __future__ import annotations

import sys
from collections import deque, namedtuple
from typing import Any

from .remote import BINARY, UNARY

_BASES: tuple[type, ...] = (int, float, str, complex, bytes, list, tuple, dict, set, frozenset, deque)
_CHANGING = (list, dict, set, deque)
_PURE = frozenset(vars(namedtuple("_Pure", ()))) | {"__annotations__", "__orig_bases__", "__doc__", "__annotate__"}
_SPECIAL = {f"__{name.strip('_')}__" for name in (*BINARY, *UNARY)}
_SPECIAL |= {"__getitem__", "__setitem__", "__delitem__", "__missing__"}
_TEXTS = ("__str__", "__repr__")


def _is_own(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] not in sys.stdlib_module_names - {"__main__"}


_known: dict[int, tuple[type, list[str] | None]] = {}


def own_names(kind: type) -> list[str] | None:
    """What the class defines anew of what its plain base has, as far as that is forwarded; none for a class whose
    instances are nothing but plain: not of the program's own, or a bare named tuple."""
    found = _known.get(id(kind))
    if found is None:
        found = _known[id(kind)] = (kind, _own_names(kind))
    return found[1]


def _own_names(kind: Any) -> list[str] | None:
    base: Any = next((base for base in _BASES if issubclass(kind, base)), None)
    if base is None or not _is_own(kind):
        return None
    fields = vars(kind).get("_fields")
    if kind.__bases__ == (tuple,) and fields is not None and vars(kind).keys() <= _PURE | set(fields):
        return None
    defined = {name for c in kind.__mro__ if _is_own(c) for name in vars(c)}
    names = {name for name in defined if name in _SPECIAL}
    if issubclass(kind, _CHANGING):
        names |= {name for name in defined if not name.startswith("_") and hasattr(base, name)}
    if hasattr(kind, "_fields"):
        names |= {"_replace", "_make"}
    names |= {text for text in _TEXTS if getattr(kind, text) is not getattr(base, text)}
    return sorted(names)
