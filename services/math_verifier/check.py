"""One check: an extracted answer against the reference. Pure, but not bounded: run it in a worker process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

from math_verifier.compare.decision import Decision
from math_verifier.compare.structure import compare
from math_verifier.config import MathPolicy
from math_verifier.extract import extract, last_box
from math_verifier.normalize import normalize, squash
from math_verifier.parse import vocabulary as voc
from math_verifier.parse.ast import Clock, Named, Node, Num, ParseError, Seq, SetOp, Text
from math_verifier.parse.grammar import parse
from math_verifier.parse.tokens import MAX_TEXT, Comma
from math_verifier.parse.words import clock, counted, date, named_list, phrase, words

Status = Literal["correct", "wrong", "unparsable", "timeout", "error"]
Kind = Literal["completion", "answer"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """``extracted`` is the answer as it stood in the text; ``seconds`` is what a worker took."""

    status: Status
    extracted: str | None
    stage: str
    reason: str = ""
    seconds: float = 0.0


REMEMBERED: Final = 300
"""Longest normalised text, in characters, whose trees are remembered: a group of samples has one reference."""
INLINE_LIMIT: Final = 400
"""Longest answer, in characters, that is looked at outside a worker."""
_PLAIN: Final = re.compile(r"[+-]?(?:\d{1,40}|[1-9]\d{0,2}(?:,\d{3}){1,12})(?:\.\d{1,40})?")
_FRACTION: Final = re.compile(
    r"([+-]?)(?:\\frac\{([0-9]{1,40})\}\{([0-9]{1,40})\}|([0-9]{1,40})/([0-9]{1,40})|([0-9]{1,40}(?:\.[0-9]{1,40})?))"
)
_CHOICE: Final = re.compile(
    r"(?:(?:option|choice|answer)\s*:?\s*)?[({\[]*\s*([A-J])\s*(?:[)\]}]+[.:]?|[.:](?=\s|$))(?:\s.*)?|(?:option|choice)\s+([A-J])",
    re.I | re.S,
)
_MONTH: Final = re.compile(r"(?<![\\A-Za-z])(?:" + "|".join(set(voc.MONTHS) - {"may"}) + r")(?![A-Za-z])", re.I)
_LETTER: Final = re.compile(r"[({]*([A-Ja-j])[)}]*")
_TIMED: Final = re.compile(r"\d\s*:|[ap]\.?\s?m\b|noon|midnight", re.I)
_MAY: Final = re.compile(
    r"(?:\d{1,2}(?:st|nd|rd|th)?\s*(?:of\s+)?may|may\s+\d{1,2}(?:st|nd|rd|th)?)(?:,?\s*\d{4})?", re.I
)
_EXCEPT: Final = re.compile(
    r"(?:the\s+set\s+of\s+)?(?:all\s+)?(?:real\s+(?:numbers|values)?|reals)\s*(?:of\s+)?x?\s*,?\s*(?:except|excluding|other\s+than)"
    r"\s*(?:for\s+)?(?:x\s*=\s*)?(.{1,60})",
    re.I | re.S,
)
_LONG_WORD: Final = re.compile(
    r"(?<![\\A-Za-z])[A-Za-z]{3,}|(?<![\\A-Za-z])(?:no|is|to|of|it|do|we|up)(?![A-Za-z])", re.I
)
_TEXT_GROUP: Final = re.compile(
    r"\\(?:text|mbox|textbf|textit|textrm|mathrm|textnormal|operatorname\*?|emph)\s*\{([^{}]*)\}"
)
_ENVIRONMENT: Final = re.compile(r"\\(?:begin|end)\s*\{[A-Za-z]+\*?\}(?:\{[lcr|]*\})?")
_SLASHED: Final = re.compile(r"(^|[-+=(,]\s*)(\d+/\d+)(?=\s?[A-Za-z](?![A-Za-z]))")
_LIST_COMMA: Final = re.compile(r"\d,\d{3}(?!\d)")
_SPACED_UNIT: Final = re.compile(r"([+-]?\d[\d.,]{0,40}|[+-]?\\frac\{\d{1,20}\}\{\d{1,20}\})\s+([AghJKlLmNsVW])")
"""A whole answer of a number, a space and one letter that may be a unit."""
_DECIMAL_COMMA: Final = re.compile(
    r"[^\d]{0,4}(?:0,\d+|\d+,(?:\d{2}|\d{4,})|\d{4,},\d+|\d{1,3}(?: \d{3})+,\d{1,2})(?!\d)[^\d,]{0,20}"
)


def find_answer(text: str, kind: Kind, policy: MathPolicy) -> str | None:
    """The answer in ``text``; a bare answer is the whole text, unless it holds a box or a GSM8K mark."""
    if kind == "completion":
        found = extract(text, policy)
        return found.text if found else None
    boxed = last_box(text)
    if boxed is not None:
        return boxed
    head, mark, tail = text.rpartition("####")
    if mark and tail.strip() and (not head or head.endswith("\n")):
        return tail.strip()
    return text if text.strip() else None


def quick(gold: str, answer: str) -> Outcome | None:
    """What string equality and two plain numbers decide; bounded by ``INLINE_LIMIT``, so it may run anywhere."""
    if len(gold) > INLINE_LIMIT or len(answer) > INLINE_LIMIT:
        return None
    left, right = normalize(gold), normalize(answer)
    if not right:
        return Outcome("unparsable", answer, "string", "the answer is empty")
    if left == right or (left and squash(left) == squash(right)):
        return Outcome("correct", answer, "string")
    if _PLAIN.fullmatch(left) and _PLAIN.fullmatch(right):
        same = Fraction(left.replace(",", "")) == Fraction(right.replace(",", ""))
        if same:
            return Outcome("correct", answer, "exact")
        if "." not in left and "." not in right:
            return Outcome("wrong", answer, "exact", "different numbers")
    elif (one := _plain_value(left)) is not None and (two := _plain_value(right)) is not None:
        if one == two:
            return Outcome("correct", answer, "exact")
        if "." not in left and "." not in right:
            return Outcome("wrong", answer, "exact", "different numbers")
    return None


def _plain_value(text: str) -> Fraction | None:
    """Value of a fraction of two short integers, or of a short number without commas."""
    found = _FRACTION.fullmatch(text)
    if found is None:
        return None
    sign, top, bottom, upper, lower, number = found.groups()
    if number is None and not int(bottom or lower):
        return None
    value = Fraction(number) if number else Fraction(int(top or upper), int(bottom or lower))
    return -value if sign == "-" else value


def check(gold: str, answer: str, policy: MathPolicy) -> Outcome:
    """Compare an extracted answer with the reference."""
    if len(answer) > 8 * MAX_TEXT:
        return Outcome("unparsable", answer[:MAX_TEXT], "string", f"the answer has {len(answer)} characters")
    left, right = normalize(gold), normalize(answer)
    if not right:
        return Outcome("unparsable", answer, "string", "the answer is empty")
    if left == right or (left and squash(left) == squash(right)):
        return Outcome("correct", answer, "string")
    letters = _letters(left, right)
    if letters is not None:
        return Outcome("correct" if letters else "wrong", answer, "structural", "" if letters else "another choice")
    try:
        golds = _trees(left, policy)
    except ParseError as error:
        return Outcome("error", answer, "string", f"the reference cannot be read: {error}")
    try:
        answers = _trees(right, policy)
    except ParseError as error:
        return Outcome("unparsable", answer, "string", str(error))
    return _best(golds, answers, answer, policy)


def _trees(text: str, policy: MathPolicy) -> Sequence[Node]:
    """All :func:`readings`."""
    found = _remembered(text, policy) if len(text) <= REMEMBERED else _read(text, policy)
    if isinstance(found, str):
        raise ParseError(found)
    return found


def _read(text: str, policy: MathPolicy) -> tuple[Node, ...] | str:
    """All readings, or why there are none; an exception that is kept and raised again would grow."""
    try:
        return tuple(readings(text, policy))
    except ParseError as error:
        return str(error)


_remembered = lru_cache(maxsize=1024)(_read)


def _best(golds: Sequence[Node], answers: Sequence[Node], answer: str, policy: MathPolicy) -> Outcome:
    decisions: list[Decision] = []
    if (
        len(golds) > 1
        and len(answers) > 1
        and all(any(isinstance(t, Clock) for t in side) for side in (golds, answers))
    ):
        policy = policy.model_copy(update={"ratio_scaling": False})
    for gold in golds:
        for candidate in answers:
            try:
                decision = compare(gold, candidate, policy)
            except ParseError as error:
                decision = Decision(None, "structural", str(error))
            except RecursionError:
                decision = Decision(None, "structural", "nested too deeply to compare")
            if decision.equal:
                return Outcome("correct", answer, decision.stage)
            decisions.append(decision)
    first = decisions[0]
    if first.equal is None:
        return Outcome("unparsable", answer, first.stage, f"undecided: {first.reason}")
    return Outcome("wrong", answer, first.stage, first.reason)


def _letters(left: str, right: str) -> bool | None:
    """Multiple choice: a reference that is one letter A to J against a letter, or against an option with its text."""
    for one, two in ((left, right), (right, left)):
        letter = _LETTER.fullmatch(one)
        if not letter or not letter[1].isupper():
            continue
        bare = _TEXT_GROUP.sub(r"\1", two).strip()
        other = _LETTER.fullmatch(bare)
        if other and other[1].isupper():
            return letter[1] == other[1]
        option = _CHOICE.fullmatch(bare)
        if option:
            return letter[1] == (option[1] or option[2]).upper()
    return None


def readings(text: str, policy: MathPolicy) -> Iterator[Node]:
    """Trees of a normalised answer: the likely one first, then what an ambiguous comma may also mean.

    Raises:
        ParseError: there is none.
    """
    time = clock(_TEXT_GROUP.sub(r"\1", text).strip()) if _TIMED.search(text) else None
    if time and time[1]:
        yield Clock(time[0])
        return
    if text.count("-") == 2 and (day := date(text)):
        yield Text(day)
    if text.startswith("\\text"):
        plain = _TEXT_GROUP.sub(r" \1 ", text).strip()
        without = _EXCEPT.fullmatch(plain)
        said = phrase(plain)
        if without:
            yield SetOp("difference", Named("R"), Seq(_items(parse(without[1])), "set"))
            return
        if said is not None:
            yield said
            return
    if is_words(text) or (
        re.search(r"\d", text) and (_MONTH.search(text) or _MAY.fullmatch(_TEXT_GROUP.sub(r"\1", text)))
    ):
        plain = _TEXT_GROUP.sub(r" \1 ", text)
        without = _EXCEPT.fullmatch(plain.strip())
        if without:
            yield SetOp("difference", Named("R"), Seq(_items(parse(without[1])), "set"))
            return
        plain = plain.replace("\\", " ").replace("{", " ").replace("}", " ")
        said = words(plain)
        if policy.number_words or not isinstance(said, Num):
            yield said
        else:
            yield Text(plain.strip().casefold())
        if len(text) <= 3 and text.isalpha() and text.islower() and text not in voc.COMMON_WORDS:
            yield parse(text)
        for other in (named_list(plain), counted(plain) if policy.number_words else None):
            if other is not None:
                yield other
        return
    others: list[Comma] = ["list"] if _LIST_COMMA.search(text) else []
    if policy.decimal_comma and _DECIMAL_COMMA.fullmatch(text):
        others.append("decimal")
    try:
        first: Node | None = parse(text)
    except ParseError:
        if not others:
            raise
        first = None
    if first is not None:
        yield first
    spaced = _SPACED_UNIT.fullmatch(text)
    if spaced:
        yield parse(f"{spaced[1]}\\text{{ {spaced[2]}}}")
    if time:
        yield Clock(time[0])
    slashed = _SLASHED.sub(r"\1(\2)", text) if "/" in text else text
    if slashed != text:
        yield parse(slashed)
    found = first is not None
    for comma in others:
        try:
            other = parse(text, comma)
        except ParseError:
            if not found and comma == others[-1]:
                raise
            continue
        if other != first:
            found = True
            yield other


def _items(node: Node) -> tuple[Node, ...]:
    return node.items if isinstance(node, Seq) and node.kind in {"list", "set"} else (node,)


def is_words(text: str) -> bool:
    """Whether a normalised answer is words and not mathematics with units."""
    plain = _ENVIRONMENT.sub(" ", text)
    inner = " ".join(_TEXT_GROUP.findall(plain))
    rest = _TEXT_GROUP.sub(" ", plain)
    found = [word for word in _LONG_WORD.findall(rest) if not _known(word)]
    if re.search(r"\d", rest):
        return bool(found) and not _measured(rest)
    if found:
        negative = rest.startswith("-")
        return not negative and any(
            word.lower() in voc.COMMON_WORDS or len(word) > 3 or _vowelled(word) for word in found
        )
    letters = [word for word in re.findall(r"[A-Za-z]{2,}", inner) if word.lower() not in {"and", "or"}]
    return bool(letters) and not re.search(r"[A-Za-z+<=>^_-]|\\[a-z]{2}", rest)


def _known(word: str) -> bool:
    return (
        word in voc.FUNCTIONS
        or word in voc.CONSTANTS
        or word in voc.GREEK
        or word.lower() in {"and", "or", "mod", "choose", "in"}
        or any(
            word.startswith(name) and len(word) - len(name) <= 1
            for name in ("sin", "cos", "tan", "log", "sqrt", "arcsin", "arccos", "arctan", "sec", "csc", "cot", "ln")
        )
    )


def _vowelled(word: str) -> bool:
    return any(letter in "aeiou" for letter in word.lower()) and word.lower() not in {
        "abc",
        "abe",
        "acd",
        "ace",
        "ade",
        "abd",
        "abi",
        "aei",
    }


_MEASURED: Final = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*?(?:[a-z]\w?\s)?\s*[A-Za-z][A-Za-z\s./^\d{}\-]*$|.*=.*")
_OF_VALUE: Final = re.compile(r"^[A-Za-z]{0,2}\s*[=<>]")


def _measured(rest: str) -> bool:
    """``10 square units``: a number first, then words; or a statement with a relation sign."""
    return bool(_MEASURED.fullmatch(rest.strip()))
