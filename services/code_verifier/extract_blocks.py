"""Blocks of code in Markdown: fences in every form that models write, and the tags that stand in for them.

One pass over the lines finds what may open or close a fence; a block then ends at the first end at which its code
parses, else at the first end there is, so that backticks within a docstring do not cut it and a forgotten closing
fence does not swallow the next block.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from code_verifier.extract_source import Parser

Language: TypeAlias = Literal["python", "untagged", "text", "markdown", "other"]

ENDS_TRIED: Final = 4
"""Further ends of a block that are tried when its code does not parse up to the first one."""
MAX_MARKS: Final = 1000
"""Lines with a fence that are looked at, the last ones of a completion."""
MAX_BLOCKS: Final = 200
"""The same of tags and of blocks on one line."""

# Possessive quantifiers throughout: no line may be gone over twice.
_MARK: Final = re.compile(
    r"^(?P<indent>[ \t]*+(?:(?:[-*+]|\d{1,3}[.)])[ \t]++)?(?:>[ \t]*+)*+)(?P<fence>`{3,}+|~{3,}+)(?P<info>[^\n`]*+)$",
    re.M,
)
_LATE_MARK: Final = re.compile(
    r"^(?P<before>[^`\n]*+)(?P<fence>`{3,}+)[ \t]*+(?P<info>(?:python3?|py3?)?)[ \t]*+$", re.M | re.I
)
_ONE_LINE: Final = re.compile(
    r"^[ \t]*+(?P<fence>`{3,}+)[ \t]*+(?P<tag>(?:python3?|py3?)(?=[ \t]))?[ \t]*+(?P<code>[^`\n]++)(?P=fence)[ \t]*+$",
    re.M | re.I,
)
_CODE_AFTER_TAG: Final = re.compile(
    r"(?:(?:def|class|import|from|async|for|while|if|with)\s|try:|print\s*\(|@\w|[A-Za-z_]\w*[ \t]+=[ \t]+[^\"'\s])"
)
_TAGS: Final = (
    re.compile(r"\[PYTHON\](?P<code>.*?)(?:\[/PYTHON\]|\Z)", re.S | re.I),
    re.compile(r"<\|python_tag\|>(?P<code>.*?)(?:<\||\Z)", re.S),
    re.compile(
        r"<(?P<tag>code|python|pre|program|solution)\b[^>\n]{0,100}>(?P<code>.*?)(?:</(?P=tag)>|\Z)", re.S | re.I
    ),
    re.compile(
        r"\\begin\{(?P<tag>lstlisting|minted|verbatim|python|code)\}(?:\[[^\]\n]{0,100}\])?(?:\{\w{1,20}\})?"
        r"(?P<code>.*?)(?:\\end\{(?P=tag)\}|\Z)",
        re.S,
    ),
)
_QUOTES: Final = re.compile(r"^(?P<tag>\'\'\'|\"\"\")[ \t]*+(?:python3?|py)[ \t]*+$", re.M | re.I)
_ENTITY: Final = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#\d{1,5}|#x[0-9a-fA-F]{1,4});")
_PYTHON: Final = (
    "python py python2 python3 py2 py3 pycon pytb ipython ipython3 python-repl pyi cpython sage "
    "python_code python-code pythonscript"
)
_TEXT: Final = "text txt plaintext plain pseudocode pseudo algorithm"
_MARKDOWN: Final = "markdown md mdx"
_OTHER: Final = (
    "bash sh shell zsh console terminal cmd powershell ps1 bat output stdout stderr input stdin log traceback json "
    "jsonl yaml yml toml ini cfg xml html css scss javascript js jsx typescript ts tsx java kotlin scala c cpp c++ "
    "cc h hpp cs csharp c# go golang rust rs ruby rb php perl pl r swift objective-c objc haskell hs lua julia jl "
    "matlab octave sql diff patch dockerfile makefile make cmake latex tex csv tsv math mermaid dot graphviz asm "
    "nasm lisp clojure scheme ocaml fsharp f# erlang elixir dart zig nim pascal fortran vb lean coq prolog regex http"
)
_LANGUAGES: Final[dict[str, Language]] = {
    **dict.fromkeys(_PYTHON.split(), "python"),
    **dict.fromkeys(_TEXT.split(), "text"),
    **dict.fromkeys(_MARKDOWN.split(), "markdown"),
    **dict.fromkeys(_OTHER.split(), "other"),
}


@dataclass(frozen=True, slots=True)
class Block:
    """A block as it stands, without what the Markdown around it adds to every line.

    ``closed`` is false where its end was not written; ``start`` and ``end`` delimit it, fences included, in the text.
    """

    code: str
    language: Language
    closed: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """A line that may open or close a fence."""

    start: int
    end: int
    indent: str
    fence: str
    info: str


def fenced(text: str, parser: Parser) -> list[Block]:
    """The fenced blocks of a text, in order."""
    marks = _marks(text)
    found: list[Block] = []
    number = 0
    while number < len(marks):
        opener = marks[number]
        block, number = _block(text, marks, number, parser)
        found.append(block)
        if opener.end >= len(text):
            break
    found += _one_liners(text, found)
    return sorted(found, key=lambda block: block.start)


def _marks(text: str) -> list[_Mark]:
    return [
        _Mark(found.start(), found.end(), found["indent"], found["fence"], found["info"].strip())
        for found in deque(_MARK.finditer(text), maxlen=MAX_MARKS)
    ]


def _block(text: str, marks: list[_Mark], number: int, parser: Parser) -> tuple[Block, int]:
    """The block that the mark opens, and the number of the first mark after it."""
    opener = marks[number]
    language, first_line = read_info(opener.info)
    ends: list[int] = []
    for later in range(number + 1, len(marks)):
        mark = marks[later]
        if closes(opener, mark) or opens_python(opener, mark):
            ends.append(later)
            if len(ends) > ENDS_TRIED:
                break
    chosen: int | None = None
    for later in ends:
        if chosen is None:
            chosen = later
        code = _content(text, opener, marks[later].start, first_line)
        if later == ends[0] and not _has_open_string(code):
            break
        if parser.parse(code) is not None:
            chosen = later
            break
    if chosen is None:
        return _unclosed(text, opener, len(text), language, first_line), len(marks)
    last = marks[chosen]
    if not closes(opener, last):
        return _unclosed(text, opener, last.start, language, first_line), chosen
    code = _content(text, opener, last.start, first_line)
    return Block(code, language, True, opener.start, last.end), chosen + 1


def closes(opener: _Mark, mark: _Mark) -> bool:
    """Whether ``mark`` may end what ``opener`` began: no info, as long, and not indented as code within would be."""
    return (
        not mark.info
        and mark.fence[0] == opener.fence[0]
        and len(mark.fence) >= len(opener.fence)
        and _width(mark.indent) <= _width(opener.indent) + 3
    )


def opens_python(opener: _Mark, mark: _Mark) -> bool:
    """Whether ``mark`` opens a new block though the last one was not closed."""
    return (
        mark.fence[0] == opener.fence[0]
        and len(mark.fence) >= len(opener.fence)
        and read_info(mark.info)[0] in {"python", "other"}
        and bool(mark.info)
    )


def _unclosed(text: str, opener: _Mark, end: int, language: Language, first_line: str) -> Block:
    """A block without a closing line; fence characters at the end of a line of code close it too."""
    code = _content(text, opener, end, first_line)
    glued = re.search(rf"(?<=[^\s{opener.fence[0]}]){opener.fence[0]}{{{len(opener.fence)},}}+[ \t]*+$", code, re.M)
    if glued is not None:
        return Block(code[: glued.start()], language, True, opener.start, end)
    return Block(code, language, False, opener.start, end)


def _content(text: str, opener: _Mark, end: int, first_line: str) -> str:
    body = text[opener.end + 1 : end].removesuffix("\n")
    if opener.indent:
        body = _unindent(body, opener.indent)
    return f"{first_line}\n{body}" if first_line else body


def _unindent(body: str, indent: str) -> str:
    """Take from every line what the list or quote around the fence puts before it."""
    if ">" in indent:
        return re.sub(r"^[ \t]*(?:>[ \t]?)+", "", body, flags=re.M)
    return re.sub(rf"^[ ]{{1,{_width(indent)}}}|^\t", "", body, flags=re.M)


def _width(indent: str) -> int:
    return len(indent.expandtabs(4))


def _has_open_string(code: str) -> bool:
    return code.count('"""') % 2 == 1 or code.count("'''") % 2 == 1


def read_info(info: str) -> tuple[Language, str]:
    """What an info string says: the language, and code that stands on the line of the fence."""
    cleaned = info.strip()
    if not cleaned:
        return "untagged", ""
    if cleaned.startswith("{"):
        words = re.findall(r"[\w+#-]+", cleaned)
        word, rest = (words[0] if words else ""), ""
    else:
        found = re.match(r"[\w+#.-]+", cleaned)
        word, rest = (found[0], cleaned[found.end() :].strip()) if found else ("", cleaned)
    language = _language(word)
    if language == "untagged" and _CODE_AFTER_TAG.match(cleaned):
        return "untagged", cleaned
    if language == "python" and _CODE_AFTER_TAG.match(rest):
        return "python", rest
    return language, ""


def _language(word: str) -> Language:
    lowered = word.lower()
    if lowered in _LANGUAGES:
        return _LANGUAGES[lowered]
    if re.fullmatch(r"(?:python|py)[\d.]*|[\w-]+\.pyi?", lowered):
        return "python"
    return "untagged"


def _one_liners(text: str, found: list[Block]) -> Iterator[Block]:
    """Blocks on one line, and those whose opening fence stands at the end of a line of prose."""
    for m in deque(_ONE_LINE.finditer(text), maxlen=MAX_BLOCKS):
        if not _inside(m.start(), found):
            yield Block(m["code"].strip(), "python" if m["tag"] else "untagged", True, m.start(), m.end())
    if found and all(block.closed for block in found):
        return
    late = next((mark for mark in _LATE_MARK.finditer(text) if mark["before"].strip()), None)
    if late is None or any(block.start < late.start() < block.end for block in found if block.closed):
        return
    end = text.find(late["fence"], late.end())
    stop = len(text) if end < 0 else end
    code = text[late.end() + 1 : stop].removesuffix("\n")
    yield Block(code, "python" if late["info"] else "untagged", end >= 0, late.start("fence"), stop)


def _inside(position: int, blocks: list[Block]) -> bool:
    return any(block.start < position < block.end for block in blocks)


def tagged(text: str) -> list[Block]:
    """Blocks between tags that stand in for fences: those of the first kind of tags that occurs."""
    for pattern in _TAGS:
        matches = deque(pattern.finditer(text), maxlen=MAX_BLOCKS)
        found = [Block(_tidy(m["code"]), "python", True, m.start(), m.end()) for m in matches if m["code"].strip()]
        if found:
            return found
    quotes = _QUOTES.search(text)
    if quotes is not None:
        end = text.find("\n" + quotes["tag"], quotes.end())
        stop = len(text) if end < 0 else end
        return [Block(text[quotes.end() + 1 : stop], "python", end >= 0, quotes.start(), stop)]
    return []


def _tidy(code: str) -> str:
    inner = re.match(r"\s*<code\b[^>\n]*>(.*?)(?:</code>|\Z)", code, re.S | re.I)
    return textwrap.dedent((inner[1] if inner else code).strip("\n")).rstrip()


def has_entities(code: str) -> bool:
    """Whether HTML character references occur in it."""
    return _ENTITY.search(code) is not None


def unescaped(code: str) -> str:
    """The code with HTML character references resolved."""
    # One by one: what else looks like a reference may hold more digits than Python takes for a number.
    return _ENTITY.sub(lambda found: html.unescape(found[0]), code).replace("\u00a0", " ")


def transcript_code(code: str) -> str | None:
    """The input lines of a doctest or IPython transcript; None when it is none."""
    lines = code.split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    if not re.match(r">>>(?: |$)|In \[\d*\]: ", first):
        return None
    kept = (re.match(r"[ \t]*+(?:>>>|\.\.\.|In \[\d*\]:|\.{3,}:)(?: (.*)|$)", line) for line in lines)
    return "\n".join(found[1] or "" for found in kept if found) + "\n"
