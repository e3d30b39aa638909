"""Putting a completion behind the program text of its prompt."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Final

from code_verifier.extract_bare import leading_program
from code_verifier.extract_source import (
    Parser,
    binds,
    dedented,
    defines,
    first_line,
    has_effect,
    lines_of,
    split_future,
    top_level,
)

_INDENT: Final = "    "


def is_body(code: str, tree: ast.Module | None, entry: str | None) -> bool:
    """Whether the code can only be the body of the prompt's function, not a program of its own."""
    first = first_line(code)
    if entry is not None and (defines(tree, entry) if tree is not None else _defines_at_margin(code, first, entry)):
        return False
    if first[:1] in {" ", "\t"}:
        return True
    if tree is None:
        # A body whose first line lost its indentation.
        return re.match(r"(?:return|if|for|while|with|try|\w+[ \t]*[-+*/]?=|\"\"\")", first) is not None
    return any(isinstance(node, ast.Return) for node in top_level(tree.body))


def _defines_at_margin(code: str, first: str, entry: str) -> bool:
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    found = re.finditer(rf"^([ \t]*+)(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(entry)}\b", code, re.M)
    return any(match[1] == indent for match in found)


def complete(prompt: str, body: str, parser: Parser) -> str:
    """The prompt with a body behind it: as it stands where that parses, else with the indentation it lost.

    Where nothing parses, what follows the body may be prose: it is cut off. Where that does not help either, prompt
    and body are put together as they stand.
    """
    head = prompt.rstrip() + "\n"
    code = body.strip("\n")
    first, _, rest = code.partition("\n")
    variants = [
        prompt + body,
        head + code,
        f"{head}{_INDENT}{first}\n{rest}",
        head + textwrap.indent(dedented(code), _INDENT),
    ]
    if _unfinished_line(prompt):
        variants = [prompt + body.lstrip(" "), *variants]
    for variant in variants:
        if _whole(parser.parse(variant)):
            return variant
    for variant in variants:
        shorter = leading_program(variant, parser)
        if shorter is not None and len(shorter) > len(head) and _whole(parser.parse(shorter)):
            return shorter
    return variants[-3] if prompt.endswith("\n") else prompt + body


def _unfinished_line(prompt: str) -> bool:
    return prompt.rpartition("\n")[2].strip(" \t") == "" and not prompt.endswith("\n")


def _whole(tree: ast.Module | None) -> bool:
    """Whether it parses, and no ``return`` stands outside of a function."""
    return tree is not None and not any(isinstance(node, ast.Return) for node in top_level(tree.body))


def with_prompt(prompt: str, code: str, entry: str | None, parser: Parser) -> str:
    """The code behind the imports, helpers and constants of the prompt that it does not define itself."""
    given = parser.parse(prompt)
    if given is None:
        given = parser.parse(prompt.rstrip() + f"\n{_INDENT}pass\n")
    if given is None:
        return code
    tree = parser.parse(code)
    own = {name for statement in top_level(tree.body) for name in binds(statement)} if tree is not None else set()
    own |= {entry} if entry is not None else set()
    needed: list[str] = []
    for statement in given.body:
        names = binds(statement)
        is_import = isinstance(statement, ast.Import | ast.ImportFrom)
        if (is_import or not names & own) and (has_effect(statement)):
            lines = lines_of(prompt, statement)
            if not needed or needed[-1] != lines:
                needed.append(lines)
    if not needed:
        return code
    future, rest = split_future(code, tree) if tree is not None else ("", code)
    first = [future] if future else []
    own_future = [line for line in needed if line.startswith("from __future__")]
    others = [line for line in needed if not line.startswith("from __future__")]
    return "\n".join([*own_future, *first, *others, rest])
