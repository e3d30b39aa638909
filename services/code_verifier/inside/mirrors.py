"""The judge's stand-ins for the candidate's exceptions.

An exception of the candidate is raised again in the tests as one of a stand-in's class, which knows whose it is. There
is a stand-in for each builtin class, derived from it and from the stand-ins of its bases, so ``except ValueError``
catches the candidate's, while a class that the *program* names, whatever it is another name for, catches nothing of the
tests' own: ``except InvalidAge`` with ``InvalidAge = Exception`` lets the tests' AssertionError through.

What would end the judge, or the tests' loops, is not derived from the builtin: see :data:`ENDING`.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

ENDING = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""No class of the candidate's is one of these in the judge, and an exception of them ends the run."""
_LOOPS = (StopIteration, StopAsyncIteration)


class FromCandidate:
    """Base of the stand-ins of exceptions: tells them from those of the tests."""

    _gristmill_error: Any = None
    _gristmill_text = ""
    _gristmill_where = ""

    def __str__(self) -> str:
        return self._gristmill_text if self._gristmill_error is not None else super().__str__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._gristmill_error is None:
            raise AttributeError(name)
        return getattr(self._gristmill_error, name)


class Ending(FromCandidate, BaseException):
    """What is no error: the program wants to leave."""


class _Mirror(type):
    """The class of a builtin's stand-in, which is equal to the builtin: ``kind() == ValueError``."""

    _gristmill_kind: type[BaseException]

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__dict__.get("_gristmill_kind", cls)

    def __hash__(cls) -> int:
        return hash(cls.__dict__.get("_gristmill_kind", cls.__qualname__))


_mirrors: dict[type[BaseException], type[BaseException]] = {}


def mirror(kind: type[BaseException]) -> type[BaseException]:
    """The stand-in of a builtin class."""
    made = _mirrors.get(kind)
    if made is not None:
        return made
    if issubclass(kind, ENDING):
        made = Ending
    else:
        if issubclass(kind, _LOOPS):
            bases: tuple[type, ...] = (mirror(RuntimeError),)
        elif kind is BaseException:
            bases = (FromCandidate, BaseException)
        else:
            bases = (*(mirror(base) for base in kind.__bases__), kind)
        space = {"_gristmill_kind": kind}
        made = types.new_class(kind.__name__, bases, {"metaclass": _Mirror}, lambda names: names.update(space))
    _mirrors[kind] = made
    return made


def mirrored(kind: type) -> type[BaseException] | None:
    """The builtin class that a stand-in stands for, if it is one."""
    found = kind.__dict__.get("_gristmill_kind")
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


_LIBRARY = {
    "binascii": ("Error", "Incomplete"),
    "_csv": ("Error",),
    "configparser": ("NoOptionError", "NoSectionError", "ParsingError"),
    "dataclasses": ("FrozenInstanceError",),
    "decimal": ("DecimalException", "DivisionByZero", "FloatOperation", "InvalidOperation", "Overflow", "Underflow"),
    "json.decoder": ("JSONDecodeError",),
    "queue": ("Empty", "Full"),
    "_queue": ("Empty",),
    "re": ("error",),
    "statistics": ("StatisticsError",),
    "struct": ("error",),
    "subprocess": ("CalledProcessError", "SubprocessError", "TimeoutExpired"),
    "xml.etree.ElementTree": ("ParseError",),
    "zlib": ("error",),
}
"""Exceptions of the standard library that a program can raise as themselves. No others: one that skips a test, or ends
a loop of events, would end the tests as well."""


def library(module: str, name: str) -> type[BaseException] | None:
    """One of those, where the tests' process has its module already."""
    kind = getattr(sys.modules.get(module), name, None) if name in _LIBRARY.get(module, ()) else None
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None


def builtin(name: str) -> type[BaseException] | None:
    """The builtin exception class of a name."""
    kind = vars(builtins).get(name)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None


def derive(name: str, bases: list[type[BaseException]]) -> type[BaseException]:
    """The stand-in of a class of the program's; ``bases`` are stand-ins."""
    name = name if name.isidentifier() else "Exception"
    if any(issubclass(base, Ending) for base in bases):
        return types.new_class(name, (Ending,))
    try:
        return types.new_class(name, tuple(bases))
    except TypeError:  # builtin layouts that do not go together
        return types.new_class(name, (mirror(Exception),))


def raisable(
    kind: type[BaseException], text: str, args: tuple[Any, ...], remote: object, where: str, parts: list[BaseException]
) -> BaseException:
    """An exception of a stand-in's class; ``parts`` are those of a group."""
    error: Any
    if issubclass(kind, BaseExceptionGroup):
        error = kind.__new__(kind, text, parts)
    elif issubclass(kind, MemoryError):
        error = BaseException.__new__(kind)  # its own __new__ is for itself only
    else:
        error = kind.__new__(kind)
    error.args = args
    error._gristmill_text = text
    error._gristmill_error = remote
    error._gristmill_where = where
    result: BaseException = error
    return result
