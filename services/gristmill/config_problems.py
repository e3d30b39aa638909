"""What is wrong with a configuration, in words: the setting, where it was set, what it accepts."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo


def unknown_variables(model: type[BaseModel], env: Mapping[str, str], prefix: str) -> Iterator[str]:
    """Complaints about variables with our prefix that no setting answers to."""
    known = [name.upper() for name in model.model_fields]
    for variable in sorted(env):
        if not variable.startswith(prefix):
            continue
        head, *rest = variable[len(prefix) :].split("__")
        if head not in known:
            hint = _suggestion("__".join([head, *rest]), [*known, *_variables(model)], prefix)
            yield f"  {variable} (environment): no such setting{hint}"
        elif rest and not _fields_at(model, [head.lower()]):
            yield f"  {variable} (environment): {head.lower()} is a plain setting and has no parts"


def explain(model: type[BaseModel], error: ValidationError, sources: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """One line for each problem: the setting, where it was set, what is wrong. Sources come in rising strength."""
    for item in error.errors():
        location = item["loc"]
        origin = _origin(location, sources)
        path = ".".join(str(part) for part in location) or "settings"
        if item["type"] == "extra_forbidden":
            hint = _suggestion(str(location[-1]), list(_fields_at(model, location[:-1])))
            yield f"  {path}{origin}: no such setting{hint}"
        else:
            got = _shown(model, location, item.get("input"))
            yield f"  {path}{origin}: {item['msg'].removeprefix('Value error, ')}{got}"


def _variables(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Environment names of all settings below ``model``, without the prefix."""
    for name, field in model.model_fields.items():
        yield path + name.upper()
        for inner in _models_in(field.annotation):
            yield from _variables(inner, f"{path}{name.upper()}__")


def _suggestion(name: str, known: Sequence[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _origin(location: Sequence[int | str], sources: Mapping[str, Mapping[str, Any]]) -> str:
    """The strongest source that sets the value at ``location``, in brackets; empty when none does."""
    return next((f" ({name})" for name, values in reversed(list(sources.items())) if _sets(values, location)), "")


def _sets(values: Any, location: Sequence[int | str]) -> bool:
    for part in location:
        if not isinstance(values, Mapping):
            return isinstance(values, Sequence)  # an item of a list comes from where the list does
        if part not in values:
            return False
        values = values[part]
    return bool(location)


def _shown(model: type[BaseModel], location: Sequence[int | str], value: object) -> str:
    """The refused value for the message; never a secret, nor a mapping that might hold one."""
    parent = _fields_at(model, location[:-1])
    field = parent.get(str(location[-1])) if location else None
    if isinstance(value, Mapping | BaseModel) or (
        field and SecretStr in (field.annotation, *get_args(field.annotation))
    ):
        return ""
    return f" (got {repr(value)[:80]})"


def _fields_at(model: type[BaseModel], path: Sequence[int | str]) -> Mapping[str, FieldInfo]:
    """Fields of the section at ``path``; empty when it is none."""
    current: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if current else None
        current = next((kind for kind in _models_in(field.annotation if field else None)), None)
    return current.model_fields if current else {}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Model classes in an annotation: itself, or inside a union, tuple, list or mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
