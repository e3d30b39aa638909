"""The judge's stand-ins for the candidate's exceptions.

An exception of the candidate is raised again in the tests as one of a fresh class, derived from the nearest builtin
one, which knows whose it is: ``except ValueError`` works, and the candidate's AssertionError is not the tests'.
"""

from __future__ import annotations

import types
from typing import Any


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


def derive(name: str, bases: list[type[BaseException]]) -> type[BaseException]:
    name = name if name.isidentifier() else "Exception"
    own: list[type] = [] if any(issubclass(base, FromCandidate) for base in bases) else [FromCandidate]
    try:
        return types.new_class(name, (*own, *bases))
    except TypeError:  # builtin layouts that do not go together
        return types.new_class(name, (FromCandidate, Exception))


_raisable: dict[type[BaseException], type[BaseException]] = {}


def raisable(kind: type[BaseException], text: str, args: tuple[Any, ...], remote: object, where: str) -> BaseException:
    if not issubclass(kind, FromCandidate):
        made = _raisable.get(kind)
        if made is None:
            made = _raisable[kind] = derive(kind.__name__, [kind])
        kind = made
    error: Any = kind.__new__(kind)
    error.args = args
    error._gristmill_text = text
    error._gristmill_error = remote
    error._gristmill_where = where
    result: BaseException = error
    return result
