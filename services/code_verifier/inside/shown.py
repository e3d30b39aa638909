"""What a program may know of the tests' objects without asking the tests.

Of a function what a decorator copies and a dispatcher looks at: its name, its documentation, its parameters' names and
kinds and which have defaults, not the defaults; nothing of its code, its globals or its constants.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from .values import Json

_DOCUMENTATION = 4000
_ARGS, _KWARGS = 4, 8


def shown(value: Any, is_instance: Callable[[object], bool]) -> list[Json]:
    """What goes along with the number of a test's object."""
    bound = type(value) is types.MethodType and type(value.__func__) is types.FunctionType
    function = value.__func__ if bound else value
    if type(function) is not types.FunctionType:
        return ["instance" if is_instance(value) else "other"]
    doc = function.__doc__
    return [
        "function",
        function.__name__,
        function.__qualname__,
        doc[:_DOCUMENTATION] if isinstance(doc, str) else None,
        _parameters(function)[int(bound) :],
    ]


def _parameters(function: types.FunctionType) -> list[list[Json]]:
    """Name, kind (as :class:`inspect.Parameter` numbers them) and whether there is a default."""
    code = function.__code__
    names = code.co_varnames
    count, only = code.co_argcount, code.co_kwonlyargcount
    defaults = len(function.__defaults__ or ())
    found: list[list[Json]] = [
        [name, 0 if at < code.co_posonlyargcount else 1, at >= count - defaults]
        for at, name in enumerate(names[:count])
    ]
    at = count + only
    if code.co_flags & _ARGS:
        found.append([names[at], 2, False])
        at += 1
    found += [[name, 3, name in (function.__kwdefaults__ or {})] for name in names[count : count + only]]
    if code.co_flags & _KWARGS:
        found.append([names[at], 4, False])
    return found
