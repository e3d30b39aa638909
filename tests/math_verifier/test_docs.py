"""The Python snippets of the documentation run, and give what they say."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from math_verifier import api

PAGE = Path(__file__).parents[2] / "docs" / "math-verification.md"


def test_every_snippet_gives_what_it_says() -> None:
    """An expression with a comment behind it must have that value; the snippets are one program."""
    names: dict[str, Any] = {}
    claims = 0
    for snippet in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S):
        lines = snippet.splitlines()
        for number, line in enumerate(lines):
            claim = re.fullmatch(r"(\s*)(?![#\s])(.+?)  # (.+)", line)
            if claim:
                lines[number] = f"{claim[1]}claim({claim[2]}, {ast.literal_eval(claim[3])!r})"
                claims += 1
        seen: list[tuple[Any, Any]] = []
        names["claim"] = lambda *pair, seen=seen: seen.append(pair)
        exec(compile("\n".join(lines), str(PAGE), "exec"), names)
        assert all(value == wanted for value, wanted in seen), seen
        claims -= len(seen)
    api.close()
    assert claims == 0
