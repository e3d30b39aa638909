"""Code that stands in text without fences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from code_verifier.extract_source import PARSE_BUDGET, Parser, defines, has_effect, is_program, looks_like_code

_GOES_ON: Final = re.compile(r"[)\]}]|(?:else|elif|except|finally)\b|'''|\"\"\"")
_TRIPLE: Final = re.compile(r"'''|\"\"\"")
_MARGIN: Final = re.compile(r"^(?=[^\s#)\]}])", re.M)
_SURELY_CODE: Final = re.compile(
    r"^(?:(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(|class[ \t]+\w+[^\n]{0,200}:|import[ \t]+[\w.]+[ \t]*$"
    r"|from[ \t]+[\w.]+[ \t]+import\b|@[\w.]+$)",
    re.M,
)
_INDENTED: Final = re.compile(r"(?:^(?: {4}|\t)[^\n]*\n|^[ \t]*\n)++", re.M)
CUTS: Final = 8
"""Ends that are tried for a program that does not parse to its end."""
CHUNKS: Final = 4000
"""Groups of lines that are looked at."""


def leading_program(code: str, parser: Parser) -> str | None:
    """The code up to a line at the margin, the last such line at which it parses and does something.

    Only the last few and the first few lines are tried.
    """
    cuts = [found.start() for found in _MARGIN.finditer(code)][1:]
    tried = cuts[-CUTS:][::-1] + [
        cut for cut in cuts[:CUTS] if not looks_like_code(code[cut : cut + 300].split("\n", maxsplit=1)[0])
    ]
    for cut in tried:
        tree = parser.parse(code[:cut])
        if tree is not None and is_program(tree):
            return code[:cut]
    return None


def program_in_prose(text: str, entry: str | None, parser: Parser) -> str | None:
    """The statements among lines of prose; None where there are none, or where they do not define ``entry``.

    Only the end of a long text is looked at.
    """
    text = text[-PARSE_BUDGET:]
    kept: list[str] = []
    for number, chunk in enumerate(_chunks(text)):
        tree = parser.parse(chunk) if number < CHUNKS else None
        if tree is not None and any(has_effect(statement) for statement in tree.body):
            kept.append(chunk)
    program = "\n".join(kept)
    tree = parser.parse(program) if any(looks_like_code(line) for line in program.split("\n")) else None
    return program + "\n" if tree is not None and (entry is None or defines(tree, entry)) else None


def from_first_code_line(text: str) -> str | None:
    """Everything from the first line on that must be Python."""
    found = _SURELY_CODE.search(text)
    return None if found is None else text[found.start() :]


def _chunks(text: str) -> Iterator[str]:
    """Groups of lines that begin at the margin: what is indented, and what closes or goes on, belongs to the last."""
    current: list[str] = []
    quotes = ""
    for line in text.split("\n"):
        begins = bool(line) and not line[0].isspace() and not quotes and not _GOES_ON.match(line)
        if begins and current and not current[-1].startswith("@"):
            yield "\n".join(current)
            current = []
        current.append(line)
        for found in _TRIPLE.findall(line):
            quotes = "" if quotes == found else quotes or found
    if current:
        yield "\n".join(current)


def indented_regions(text: str, parser: Parser) -> Iterator[str]:
    """Markdown's indented code: runs of lines with four blanks or a tab before them, the last one first."""
    for run in list(_INDENTED.finditer(text + "\n"))[:-21:-1]:
        code = re.sub(r"^(?: {4}|\t)", "", run[0], flags=re.M)
        tree = parser.parse(code) if code.strip() else None
        if tree is not None and is_program(tree):
            yield code
