"""Taking the program out of a completion.

What counts, in order:

1. ``<think>`` blocks are left out, unfinished ones to the end of the text.
2. Blocks in fences (or tags that stand in for them), Python or untagged, that parse: for tests that name an entry
   point, the last that defines it, a function before another value before a stand-in; for whole programs, the last that
   reads and writes, or else writes, or else reads, what lacks names last of all. Closed blocks go before open ones.
3. Code outside of fences, prose around it dropped, where no block does.
4. The last Python block that parses, else the last one.

Where the completion continues a prompt (``CodeTests.prompt``), a body alone is put behind the prompt, and a whole
function behind the prompt's imports and helpers; what the completion defines itself wins. Names that a chosen block
uses and does not define are taken from earlier blocks, functions and classes from later ones too. Code is never
repaired.

All of it is linear in the length of the text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from code_verifier.extract_bare import from_first_code_line, indented_regions, leading_program, program_in_prose
from code_verifier.extract_blocks import Block, fenced, has_entities, tagged, transcript_code, unescaped
from code_verifier.extract_prompt import complete, is_body, with_prompt
from code_verifier.extract_source import (
    Parser,
    binds,
    dedented,
    defines,
    first_line,
    free_names,
    is_program,
    lines_of,
    seems_to_define,
    wholeness,
)
from code_verifier.extract_text import first_turn, from_json, normal, without_thoughts

MAX_TEXT: Final = 4 * 1024 * 1024
"""Characters of a completion that are looked at, its last ones."""

_NAME_LINE: Final = re.compile(r"\A\s*+(?:python3?|py)[ \t]*\n", re.I)
"""The tag of a fence that ended up on the line after it, or without its fence."""
_ANSWER: Final = re.compile(r"<(?P<tag>answer|final_answer)>(?P<text>.*?)(?:</(?P=tag)>|\Z)", re.S | re.I)


@dataclass(frozen=True, slots=True)
class Program:
    """A program taken from a completion; ``how`` names the rule that found it."""

    source: str
    how: str


@dataclass(frozen=True, slots=True)
class _Found:
    code: str
    tree: ast.Module | None
    closed: bool
    body: bool = False
    """Whether it is the body of the prompt's function alone."""


class _Extractor:
    def __init__(self, entry_point: str | None, prompt: str | None) -> None:
        self.entry = entry_point.split(".")[0].split("(")[0] if entry_point else None
        self.prompt = normal(prompt) if prompt and prompt.strip() else None
        self.parser = Parser()

    def extract(self, text: str, depth: int = 0) -> Program | None:
        answers = list(_ANSWER.finditer(text))
        if answers and depth == 0:
            program = self.extract(answers[-1]["text"], 1)
            if program is not None and (self._fits(program.source) or self._is_broken(program, answers[-1]["text"])):
                return program
        blocks = fenced(text, self.parser)
        for kind, found in (("fence", blocks), ("tag", [] if blocks else tagged(text))):
            program = self._of_blocks(text, found, kind, depth)
            if program is not None:
                return program
        return self._unfenced(text, depth) if not _usable(blocks) else None

    def _is_broken(self, program: Program, answer: str) -> bool:
        """Whether an answer is a block of code that does not parse, and not a usage or an example that does."""
        return "```" in answer and self.parser.parse(program.source) is None

    # -- blocks

    def _of_blocks(self, text: str, blocks: Sequence[Block], kind: str, depth: int) -> Program | None:
        usable = _usable(blocks)
        lead = self._lead(text, blocks)
        candidates = [self._candidate(block) for block in usable]
        if lead is not None:
            candidates.insert(0, lead)
        if not candidates:
            return self._inner(blocks, depth)
        chosen = self._choose(candidates)
        if chosen is not None:
            return self._finish(candidates, chosen, kind)
        outside = _outside(text, blocks)
        if self.entry is not None and seems_to_define(outside, self.entry):
            bare = program_in_prose(outside, self.entry, self.parser)
            if bare is not None and self._fits(bare):
                return Program(self._place(bare), "bare")
        weak = [item for item in blocks if item.language == "text"]
        for block in reversed(weak):
            found = self._candidate(block)
            if self._rank(found):
                return self._finish([*candidates, found], len(candidates), kind)
        last = self._last(candidates, usable, lead is not None)
        return None if last is None else self._finish(candidates, last, kind)

    def _inner(self, blocks: Sequence[Block], depth: int) -> Program | None:
        """A program within a Markdown or JSON block, or in a block tagged as text."""
        if depth > 1:
            return None
        for block in reversed(blocks):
            if block.language == "markdown":
                return self.extract(block.code, depth + 1)
            code = from_json(block.code) if block.code.lstrip().startswith("{") else None
            if code is not None:
                return self.extract(code, depth + 1)
        for block in reversed(blocks):
            if block.language == "text":
                found = self._candidate(block)
                if self._rank(found):
                    return self._finish([found], 0, "fence")
        return None

    def _candidate(self, block: Block) -> _Found:
        code = _NAME_LINE.sub("", block.code.lstrip("\ufeff"))
        transcript = transcript_code(code)
        code = code if transcript is None else transcript
        parses = self.parser.parse(code)
        if self.prompt is not None and is_body(code, parses, self.entry):
            whole = complete(self.prompt, code, self.parser)
            return _Found(whole, self.parser.parse(whole), block.closed, body=True)
        if parses is None:
            code, parses = self._readable(code)
        elif has_entities(code) and free_names(parses) & {"lt", "gt", "amp", "quot", "apos"}:
            plain = unescaped(code)
            tree = self.parser.parse(plain)
            code, parses = (code, parses) if tree is None else (plain, tree)
        if parses is None and not block.closed:
            shorter = leading_program(code, self.parser)
            if shorter is not None and self._fits(shorter):
                return _Found(shorter, self.parser.parse(shorter), False)
        return _Found(code, parses, block.closed)

    def _readable(self, code: str) -> tuple[str, ast.Module | None]:
        """The code without what Markdown or HTML did to it, if that makes it parse."""
        variants = []
        if first_line(code)[:1] in {" ", "\t"}:
            variants.append(dedented(code))
        if has_entities(code):
            variants.append(unescaped(code))
        if "\u00a0" in code:
            variants.append(code.replace("\u00a0", " "))
        if "\\n" in code and "\n" not in code.strip():
            variants.append(code.replace("\\n", "\n").replace('\\"', '"').replace("\\t", "\t"))
        for variant in variants:
            tree = self.parser.parse(variant)
            if tree is not None:
                return variant, tree
        return code, None

    def _lead(self, text: str, blocks: Sequence[Block]) -> _Found | None:
        """The text before the first fence, where that fence closes what the prompt had opened."""
        if not blocks or not text.startswith(("```", "~~~"), blocks[0].start) or blocks[0].language != "untagged":
            return None
        lead = text[: blocks[0].start].strip("\n")
        if not lead.strip():
            return None
        tree = self.parser.parse(lead)
        if self.prompt is not None and is_body(lead, tree, self.entry):
            whole = complete(self.prompt, lead, self.parser)
            tree = self.parser.parse(whole)
            return None if tree is None else _Found(whole, tree, True, body=True)
        return None if tree is None or not is_program(tree) else _Found(lead, tree, True)

    def _rank(self, found: _Found) -> int:
        """How well a program that parses fits the tests; 0 not at all."""
        if found.tree is None:
            return 0
        if self.entry is None:
            return wholeness(found.tree)
        return 3 if found.body else defines(found.tree, self.entry)

    def _choose(self, candidates: Sequence[_Found]) -> int | None:
        ranks = [self._rank(candidate) for candidate in candidates]
        best = max(ranks, default=0)
        for closed in (True, False) if best else ():
            for number in range(len(candidates) - 1, -1, -1):
                if candidates[number].closed == closed and ranks[number] == best:
                    return number
        if self.entry is not None:
            # What is too long to be parsed here, or does not parse, may still be what was meant.
            for number in range(len(candidates) - 1, -1, -1):
                if candidates[number].tree is None and seems_to_define(candidates[number].code, self.entry):
                    return number
        return None

    def _last(self, candidates: Sequence[_Found], usable: Sequence[Block], lead: bool) -> int | None:
        offset = 1 if lead else 0
        tags = ["python"] * offset + [block.language for block in usable]
        numbers = [number for number, tag in enumerate(tags) if tag == "python" and candidates[number].code.strip()]
        parsing = [number for number in numbers if candidates[number].tree is not None]
        if parsing or numbers:
            return (parsing or numbers)[-1]
        rest = [number for number, item in enumerate(candidates) if item.tree is not None and is_program(item.tree)]
        return rest[-1] if rest else None

    def _finish(self, candidates: Sequence[_Found], number: int, kind: str) -> Program:
        chosen = candidates[number]
        if chosen.body:
            return Program(chosen.code, "continuation")
        lacking = self._missing(chosen, candidates[:number], candidates[number + 1 :])
        return Program(self._place(lacking + chosen.code), kind)

    def _missing(self, chosen: _Found, earlier: Sequence[_Found], later: Sequence[_Found]) -> str:
        """Definitions of earlier blocks that the chosen one uses and lacks; functions and classes of later ones too."""
        if chosen.tree is None:
            return ""
        wanted = free_names(chosen.tree)
        taken: list[str] = []
        for block, before in [*((block, True) for block in reversed(earlier)), *((block, False) for block in later)]:
            for statement in reversed(block.tree.body if block.tree is not None and not block.body else []):
                names = binds(statement)
                helps = before or isinstance(statement, ast.FunctionDef | ast.ClassDef)
                if helps and wanted & names and self.entry not in names:
                    taken.append(lines_of(block.code, statement))
                    wanted = (wanted - names) | free_names(ast.Module([statement], []))
        return "".join(f"{part}\n" for part in reversed(taken))

    # -- no blocks

    def _unfenced(self, text: str, depth: int) -> Program | None:
        code = _NAME_LINE.sub("", text.strip("\n").lstrip("\ufeff"))
        if not code.strip():
            return None
        if depth == 0 and code.lstrip().startswith("{"):
            inner = from_json(code)
            if inner is not None:
                return self.extract(inner, 1)
        tree = self.parser.parse(code)
        if self.prompt is not None and is_body(code, tree, self.entry):
            whole = complete(self.prompt, text, self.parser)
            if self.parser.parse(whole) is not None or code[:1] in {" ", "\t"}:
                return Program(whole, "continuation")
        transcript = transcript_code(code)
        if transcript is not None:
            return Program(self._place(transcript), "transcript")
        if tree is None:
            code, tree = self._readable(code)
        if tree is not None and not _has_words(tree):
            return Program(self._place(code), "bare") if is_program(tree) else None
        for found in (program_in_prose(code, self.entry, self.parser), *indented_regions(code, self.parser)):
            if found is not None and (self.entry is None or self._fits(found)):
                return Program(self._place(found), "bare")
        if self.entry is None or not seems_to_define(code, self.entry):
            found = program_in_prose(code, None, self.parser)
            if found is not None:
                return Program(self._place(found), "bare")
        found = from_first_code_line(code)
        return None if found is None else Program(self._place(found), "bare")

    def _fits(self, source: str) -> bool:
        tree = self.parser.parse(source)
        return tree is not None and (self.entry is None or defines(tree, self.entry) > 0)

    def _place(self, code: str) -> str:
        """The code behind what it needs of the prompt."""
        if self.prompt is None:
            return code
        return with_prompt(self.prompt, code, self.entry, self.parser)


def extract(text: str, *, entry_point: str | None = None, prompt: str | None = None) -> Program | None:
    """The program of a completion, None where there is none.

    Args:
        text: model output.
        entry_point: what the tests call; None for whole programs.
        prompt: program text that the completion may continue.
    """
    text = normal(text[-MAX_TEXT:])
    program = _Extractor(entry_point, prompt).extract(without_thoughts(first_turn(text)))
    if program is None or not program.source.strip():
        return None
    return program if program.source.endswith("\n") else Program(program.source + "\n", program.how)


def _has_words(tree: ast.Module) -> bool:
    """Whether words of prose stand among the statements: names by themselves that nothing binds."""
    words = {s.value.id for s in tree.body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Name)}
    return bool(words & free_names(tree))


def _usable(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.language in {"python", "untagged"} and block.code.strip()]


def _outside(text: str, blocks: Sequence[Block]) -> str:
    parts: list[str] = []
    position = 0
    for block in blocks:
        parts.append(text[position : block.start])
        position = max(position, block.end)
    return "".join([*parts, text[position:]])
