r"""Finding the final answer in model text.

In order: the last complete ``\boxed`` (or ``\fbox``), answer tags, ``####``, "the answer is", the last bold text, and
where the policy is lenient the last formula or number. Work is linear: phrases are looked for only in the tail.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

from math_verifier.config import MathPolicy
from math_verifier.parse import vocabulary as voc

TAIL: Final = 8000
"""Characters at the end of the text in which unmarked answers are looked for."""
LONGEST: Final = 4000
"""Longest answer, in characters."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """``text`` is the answer as written, ``how`` the rule that found it."""

    text: str
    how: str


_CONTROL: Final = re.compile(
    r"<\|(?:im_start|im_end|endoftext|eot_id|end_of_text|start_header_id|assistant|user)\|?>|</s>|<eos>|<end_of_turn>"
)
_BOX: Final = re.compile(r"\\(?:boxed|fbox|framebox|boxedanswer)(?![A-Za-z])\s*")
_TAG: Final = re.compile(r"<(answer|final_answer|solution)>(.*?)(?:</\1>|$)", re.S | re.I)
_HASHES: Final = re.compile(r"^[ \t]*####[ \t]*(?!#)(\S[^\n]{0,400})$", re.M)
_HEADING: Final = re.compile(r"[A-Za-z]{3,}.*(?::|\*\*)?\s*$")
_PHRASE: Final = re.compile(
    r"(?:final\s+answer|answers?|答案|results?|solutions?|roots|(?:correct|right|best)\s+(?:option|choice))\s*(?:\**\s*(?:is|are|was|equals|would\s+be|:|=|\uff1a|是|为)+\s*\**:?|\**\s*(?=\$|\\\(|\\\[|\n\s*(?:\$|\\\[|\\\()))\s*",
    re.I,
)
_IS: Final = re.compile(r"\b(?:is|are|equals|be|becomes|gives|=)\s*:?\s+(?=\S)", re.I)
_FORMULA: Final = re.compile(
    r"\$\$(.+?)\$\$|(?<!\\)\$(?!\s*\d[\d,.]*\s(?![^$]*[\\^_=+]))((?:[^$\\]|\\.){1,2000}?)\$|"
    # An opener that is never closed ends at the next one: else a text of openers costs the square of its length.
    r"(?<!\\)\\\[((?:(?!(?<!\\)\\\[).)+?)\\\]|(?<!\\)\\\(((?:(?!(?<!\\)\\\().)+?)\\\)",
    re.S,
)
_BOLD: Final = re.compile(r"\*\*([^*\n]{1,200})\*\*")
_BOLD_LETTER: Final = re.compile(r"\(?[A-J]\)?\.?")
_ONLY_LETTER: Final = re.compile(r"\s*\(?[A-J][).]?\.?\s*")
_SURE: Final = r"(?:(?:for\s+sure|definitely|clearly|certainly|most\s+likely|likely|probably|option|choice)\s+)*"
_CHOSEN: Final = re.compile(
    rf"{_SURE}\(?([A-J])\)?(?:\*\*)?(?=[,;]?\s+(?:it|because|since|as|so|not|this|that|while|whereas)\b|\s*[。，])"
)
_CHOSEN_LAST: Final = re.compile(
    rf"\b(?:it'?s|it\s+is|must\s+be|choose|pick|select|go\s+with|answer|option|choice)\s+{_SURE}\(?([A-J])\)?\.?\s*$"
)
_LEADING_CHOICE: Final = re.compile(r"\s*\(?[A-J](?:[.:)]\s|[。，])[^\d\n$\\]{0,200}$")
_CJK: Final = re.compile("[\u4e00-\u9fff]")
_CONDITION: Final = re.compile(
    r"[\s,;]*\(?(?:(?:for|with)\s+(?:some|all|any|every|each)|where|such\s+that|provided(?:\s+that)?|whenever)"
    r"(?:\s+(?:real|positive|negative|integers?|numbers?|constants?|values?|of|fixed|nonnegative|nonzero))*\s*$"
)
_COMMAND: Final = re.compile(r"\\(?:text|mathrm|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORD: Final = re.compile(r"[A-Za-z]{2,}")
_STATES: Final = re.compile(r"\d|\\[A-Za-z]|[A-Za-z]\s*[-+*/^=<>]")
_MONEY: Final = r"(?:\\?[$€£¥]\s?)?"
_NUMBER: Final = re.compile(
    rf"(?<![A-Za-z0-9_.^])-?{_MONEY}-?"
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?![\d./])|\d+(?:,\d+)+|\d+)"
    r"(?:\.\d+)?(?:\s?/\s?\d+(?![\d/]))?(?:\s?(?:\\?%|°))?|(?<![A-Za-z0-9_.])-?\.\d+"
    r"|-?\\[dt]?frac\s?\{[^{}]{1,40}\}\s?\{[^{}]{1,40}\}",
)
_SENTENCE: Final = re.compile(r"(?<!\.)[.!?](?=\s+[A-Z\"*(<\\]|\s*$|\s*\n)|\n\s*\n|\n(?=[A-Z])")
_RETRACTION: Final = re.compile(r"wait|actually|but|hmm|no,|instead|correct|mistake|sorry|should|not|then|so ", re.I)
_CONNECTOR: Final = re.compile(r"(?:,|;|\band\b|\bor\b|&)", re.I)
_ADJACENT: Final = re.compile(r"(?:[ $]|\\q?quad|\\[,;: ]|~){0,12}")
_ALLOWED_BETWEEN: Final = re.compile(
    r"^(?:\s|\$|,|;|&|\\quad|\\qquad|\\[,;()\[\]]|\\text\s*\{|\}|\band\b|\bor\b|\bfor\b|\bpart\b|\([a-z]\)|[A-Za-z](?:_\{?\w{1,3}\}?)?\s*=)*$",
    re.I,
)


def extract(text: str, policy: MathPolicy) -> Extraction | None:
    """The final answer of a completion, or None."""
    cut = _CONTROL.search(text)
    if cut:
        text = text[: cut.start()] if text[: cut.start()].strip() else text[cut.end() :]
    head, closed, tail = text.rpartition("</think>")
    if closed:
        return _search(tail, policy) or _search(head.replace("<think>", " "), policy, unmarked=False)
    if "<think>" in text:
        before, _, inside = text.partition("<think>")
        return _search(inside if policy.unfinished_think else before, policy)
    return _search(text, policy)


def _search(text: str, policy: MathPolicy, unmarked: bool = True) -> Extraction | None:
    found = last_box(text)
    if found is not None:
        return Extraction(found, "boxed")
    if policy.extraction == "boxed":
        return None
    tail = text[-TAIL:]
    for rule, how in ((_tagged, "tag"), (_hashes, "hashes"), (_phrase, "phrase"), (_bold, "bold")):
        found = rule(tail)
        if found:
            return Extraction(found[:LONGEST], how)
    if policy.extraction == "lenient" and unmarked:
        found = _last(tail)
        if found:
            return Extraction(found[:LONGEST], "last")
    return None


def last_box(text: str) -> str | None:
    r"""Content of the last complete box; boxes joined only by "and", "or" or commas make one list."""
    if "\\" not in text or "box" not in text:
        return None
    boxes: list[tuple[int, int, str]] = []
    for found in list(_BOX.finditer(text))[-12:]:
        group = _content(text, found.end())
        if group is not None:
            boxes.append((found.start(), group[0], group[1]))
    outer: list[tuple[int, int, str]] = []
    for box in boxes:
        if not outer or box[0] >= outer[-1][1]:
            outer.append(box)
    boxes = outer
    if not boxes:
        return None
    parts = [boxes[-1][2]]
    for (_, end, earlier), (start, _, _) in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        between = text[end:start]
        if not _ADJACENT.fullmatch(between) and (
            len(between) > 60 or not _CONNECTOR.search(between) or not _ALLOWED_BETWEEN.match(between)
        ):
            break
        parts.insert(0, earlier)
    inner = " , ".join(parts) if len(parts) > 1 else parts[0]
    nested = last_box(inner) if "box" in inner else None
    return nested if nested is not None else inner


def _content(text: str, start: int) -> tuple[int, str] | None:
    """End and content of the group at ``start``, or of the one token there."""
    if start >= len(text):
        return None
    if text[start] != "{":
        word = re.compile(r"\S+?(?=[\s$.,;]|$)").match(text, start)
        return (word.end(), word[0]) if word else None
    depth = 0
    position = start
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return position + 1, text[start + 1 : position].strip()
        position += 1
        if position - start > 4 * LONGEST:
            return position, text[start + 1 : position]
    return None


def _tagged(text: str) -> str | None:
    found = _latest(_TAG, text)
    return found[2].strip() if found and found[2].strip() else None


def _hashes(text: str) -> str | None:
    for found in reversed(_HASHES.findall(text)):
        if not _HEADING.match(found) or len(found.split()) == 1:
            return str(found).strip()
    return None


def _phrase(text: str) -> str | None:
    for found in reversed(list(_PHRASE.finditer(text))):
        rest = text[found.end() : found.end() + 1000]
        answer = _clause(rest)
        if answer:
            return answer
    return None


def _clause(rest: str) -> str | None:
    """The answer at the start of ``rest``: a formula, bold text, or the clause up to the end of the sentence."""
    stripped = rest.lstrip(" *:\n")
    chosen = _CHOSEN.match(stripped)
    if chosen:
        return chosen[1]
    formula = _FORMULA.match(stripped)
    if formula:
        follow = stripped[formula.end() :]
        joined = re.match(r"\s*(?:,|and|or|,\s*and)\s*", follow)
        second = _FORMULA.match(follow, joined.end()) if joined and joined.end() else None
        first = next(group for group in formula.groups() if group)
        if second:
            return f"{first} , {next(group for group in second.groups() if group)}"
        unit = re.match(r"\s*(%|\\%|percent)", follow)
        return first + (unit[1] if unit else "")
    ending = _SENTENCE.search(stripped)
    clause = (stripped[: ending.start()] if ending else stripped.split("\n")[0]).strip().strip("*").strip()
    if not clause:
        return None
    if _CJK.search(clause):
        return _last(clause) or clause
    if len(clause.split()) > 4 or re.search(r"\bis\b", clause):
        after = _latest(_IS, clause)
        if after:
            clause = clause[after.end() :].strip()
        if len(clause.split()) > 4:
            return _last(clause) if re.search(r"\d|\$|\\", clause) else clause
    return clause


def _bold(text: str) -> str | None:
    for found in reversed(_BOLD.findall(text)):
        bare = found.strip().rstrip(".:")
        if _BOLD_LETTER.fullmatch(bare):
            return str(bare)
        if re.search(r"answer|step|note|solution|case|part\b", bare, re.I) and "=" not in bare:
            continue
        if re.search(r"\d", bare) and len(bare.split()) <= 6:
            return str(bare)
    return None


def _last(text: str) -> str | None:
    """The last formula or number, whichever is later; of a text that is but a letter, the letter."""
    if len(text) < 20 and _ONLY_LETTER.fullmatch(text):
        return text.strip()
    if len(text) <= 400:
        bare = _bare(text)
        if bare:
            return bare
    chosen = _CHOSEN_LAST.search(text, max(0, len(text) - 80))
    if chosen:
        return chosen[1]
    formula, end = _stated(text)
    number = _latest(_NUMBER, text, end)
    if number:
        unit = re.compile(r"\s*(?:%|\\%|percent\b|pct\b)").match(text, number.end())
        return number[0] + (unit[0] if unit else "")
    if formula:
        return next(group for group in formula.groups() if group).strip()
    return None


def _bare(text: str) -> str | None:
    """The whole text, where it is mathematics without a word or a delimiter, or an option with its letter first."""
    if _LEADING_CHOICE.fullmatch(text):
        return text.strip()
    if "\n" in text.strip() or "$" in text or "\\(" in text or "\\[" in text or ":" in text:
        return None
    rest = _COMMAND.sub(" ", text)
    if any(word not in voc.FUNCTIONS for word in _WORD.findall(rest)) or not (rest.isascii() and _STATES.search(text)):
        return None
    return text.strip()


def _stated(text: str) -> tuple[re.Match[str] | None, int]:
    """The last formula that is no condition on an earlier one (``$x^a$ for some $a > 0$``), and where the last ends."""
    matches = deque(_FORMULA.finditer(text), maxlen=3)
    end = matches[-1].end() if matches else 0
    while len(matches) > 1 and _CONDITION.match(text, matches[-2].end(), matches[-1].start()):
        matches.pop()
    return (matches[-1] if matches else None), end


def _latest(pattern: re.Pattern[str], text: str, start: int = 0) -> re.Match[str] | None:
    """The last match."""
    matches = deque(pattern.finditer(text, start), maxlen=1)
    return matches[0] if matches else None
