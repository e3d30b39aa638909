"""Source specs: the short form of a problem source, as typed on a command line.

``KIND`` or ``KIND:LOCATION`` with options after commas::

    arithmetic                          arithmetic:levels=1-3,split=heldout
    gsm8k:data/train.jsonl              mbpp:mbpp.jsonl,subset=train,weight=2
    gsm8k:hf   gsm8k:hf/test            hf:owner/name/split,config=main
    jsonl:rows.jsonl.gz                 parquet:rows.parquet,limit=500

A spec says nothing that a mapping in the YAML file cannot; :func:`parse_spec` turns one into that mapping.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

NAMED_KINDS = ("gsm8k", "math500", "aime", "humaneval", "mbpp")
"""Public datasets whose fields are known."""
FILE_KINDS = ("jsonl", "json", "parquet")
"""Files of any fields, read through a field mapping."""
KINDS = ("arithmetic", *NAMED_KINDS, *FILE_KINDS, "hf")

_OPTION = re.compile(r"([a-z_]+)=(.*)", re.DOTALL)
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "name": str,
    "weight": float,
    "levels": str,
    "topics": lambda text: tuple(text.split("+")),
    "seed": int,
    "split": str,
    "subset": str,
    "limit": int,
    "epochs": int,
    "config": str,
    "revision": str,
    "prompt": str,
    "challenge": lambda text: {"true": True, "false": False}[text.lower()],
}
_RENAMED = {"config": "hub_config", "revision": "hub_revision"}


def parse_spec(spec: str) -> dict[str, Any]:
    """Turn a spec into the keys of a source mapping.

    Raises:
        ValueError: unknown kind or option, an option of the wrong type, or a missing location.
    """
    kind, colon, rest = spec.strip().partition(":")
    if kind not in KINDS:
        raise ValueError(f"source {spec!r}: no kind {kind!r}; the kinds are {', '.join(KINDS)}")
    location, options = _split_options(rest)
    values: dict[str, Any] = {"kind": kind}
    for name, text in options:
        if name not in _OPTIONS:
            raise ValueError(f"source {spec!r}: no option {name!r}; the options are {', '.join(_OPTIONS)}")
        try:
            values[_RENAMED.get(name, name)] = _OPTIONS[name](text)
        except (ValueError, KeyError):
            raise ValueError(f"source {spec!r}: option {name} cannot be {text!r}") from None
    if kind == "arithmetic":
        if location:
            raise ValueError(f"source {spec!r}: {location!r} is not an option (arithmetic reads no file)")
        return values
    if not location:
        raise ValueError(f"source {spec!r}: say where it is, as in {kind}:PATH" + ("" if colon else " (no ':' found)"))
    if kind == "hf":
        return _at_hub(location) | values
    if kind in NAMED_KINDS and (location == "hf" or location.startswith("hf/")):
        subset = location[3:]
        return {"hub": True} | ({"subset": subset} if subset else {}) | values
    return {"path": location} | values


def parse_levels(text: str) -> tuple[int, ...]:
    """``2``, ``1-3`` or ``1+2+5``, also mixed (``1-3+6``), to a tuple of levels.

    Raises:
        ValueError: anything else.
    """
    levels: list[int] = []
    for part in text.split("+"):
        match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", part.strip())
        if not match:
            raise ValueError(f"levels {text!r} are not of the form 2, 1-3 or 1+2+5")
        low = int(match[1])
        high = int(match[2] or low)
        if high < low:
            raise ValueError(f"levels {text!r}: {low} is above {high}")
        levels.extend(range(low, high + 1))
    return tuple(dict.fromkeys(levels))


def _split_options(rest: str) -> tuple[str, list[tuple[str, str]]]:
    """Options stand last, so a path may hold commas as long as no ``,word=`` follows one."""
    tokens = rest.split(",")
    options: list[tuple[str, str]] = []
    while tokens and (match := _OPTION.fullmatch(tokens[-1])):
        if len(tokens) == 1 and match[1] not in _OPTIONS and "/" in match[2]:
            break  # a path such as run=3/rows.jsonl
        options.insert(0, (match[1], match[2]))
        tokens.pop()
    return ",".join(tokens), options


def _at_hub(location: str) -> dict[str, Any]:
    """``owner/name/split``, ``owner/name`` or ``name``; the split is ``train`` unless named."""
    parts = location.split("/")
    if len(parts) > 3 or not all(parts):
        raise ValueError(f"hub dataset {location!r} is not of the form owner/name or owner/name/split")
    return {"hub": True, "hub_id": "/".join(parts[:2]), "subset": parts[2] if len(parts) == 3 else "train"}
