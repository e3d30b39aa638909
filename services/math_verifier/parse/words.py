"""Answers in words: known phrases, numbers, dates, times of day, names in a list."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from math_verifier.parse.ast import INFINITY, ZERO, Clock, Interval, Named, Node, Num, Quantity, Seq, Sym, Text, negate
from math_verifier.parse.vocabulary import MONTHS

_REALS: Final = """
all real numbers/all reals/real numbers/all real/reals/set of all real numbers/set of real numbers/all real values
any real number/all real values of x/all real x/all real numbers x/every real number/all values of x/all x
"""
_POSITIVE: Final = "all positive real numbers/positive real numbers/all positive reals/positive reals"
_NOT_NEGATIVE: Final = "all nonnegative real numbers/all non-negative real numbers/nonnegative real numbers"
_NEGATIVE: Final = "all negative real numbers/negative real numbers"
_EMPTY: Final = """
empty set/null set/no solution/no solutions/none/no real solution/no real solutions/there is no solution
there are no solutions/there are no real solutions
"""


def _phrases(text: str, node: Node) -> dict[str, Node]:
    return dict.fromkeys(text.strip().replace("\n", "/").split("/"), node)


_PHRASES: Final[dict[str, Node]] = {
    **_phrases("infinity/positive infinity", INFINITY),
    **_phrases("negative infinity/minus infinity", negate(INFINITY)),
    **_phrases(_REALS, Named("R")),
    **_phrases(_POSITIVE, Named("R+")),
    **_phrases(_NOT_NEGATIVE, Interval(ZERO, INFINITY, False, True)),
    **_phrases(_NEGATIVE, Interval(negate(INFINITY), ZERO, True, True)),
    **_phrases(_EMPTY, Named("empty")),
    **_phrases("does not exist/dne/doesn't exist", Text("does not exist")),
    **_phrases("all natural numbers/all positive integers/natural numbers/positive integers", Named("N")),
    **_phrases("all integers/integers/set of all integers/set of integers", Named("Z")),
    **_phrases("rational numbers/all rational numbers", Named("Q")),
    **_phrases("complex numbers/all complex numbers", Named("C")),
    **_phrases("noon/12 noon/midday", Clock(12 * 3600)),
    **_phrases("midnight/12 midnight", Clock(0)),
}
_CLEAN: Final = re.compile(r"[^a-z0-9+\-./:' ]+")
_ARTICLES: Final = re.compile(r"\b(?:the|an?)\b")
_BLANKS: Final = re.compile(r"\s+")
_DAY: Final = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?")
_LETTER: Final = re.compile(r"[A-Z]")
_ISO: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_LIST: Final = re.compile(r"\s*(?:[,;]\s*(?:and|or)?|\b(?:and|or)\b)\s*", re.I)
_CLOCK: Final = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(?:(a|p)\.?\s?m\.?|(noon|midnight))?", re.I)
_WEEKDAYS: Final = {
    name[:size]: name
    for name in ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    for size in (3, 4 if name[:2] in {"tu", "th"} else 3, 5 if name == "thursday" else 3)
}
_MONTH_NAMES: Final = "january february march april may june july august september october november december"
_FULL_MONTHS: Final = dict(enumerate(_MONTH_NAMES.split(), start=1))
_SMALL_NAMES: Final = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen
"""
_SMALL: Final = {name: value for value, name in enumerate(_SMALL_NAMES.split())}
_TENS_NAMES: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS: Final = {name: 10 * value for value, name in enumerate(_TENS_NAMES.split(), start=2)}
_SCALES: Final = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS: Final = {
    "half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12, "twentieth": 20, "hundredth": 100, "thousandth": 1000,
}  # fmt: skip

_NUMBER_WORDS: Final = frozenset({*_SMALL, *_TENS, *_SCALES, *_PARTS, "hundred"})
_WORDS: Final = frozenset({"and", "or", "not", "to", "minus", "plus", "is", "than", "over", "point", "times"})


def phrase(text: str) -> Node | None:
    """What a known phrase says, with the symbols that stand in it."""
    return _PHRASES.get(_BLANKS.sub(" ", _ARTICLES.sub(" ", text.casefold())).strip(" .$"))


def words(text: str) -> Node:
    """A text answer: a known phrase, a number, a date, or its words."""
    clean = _BLANKS.sub(" ", _CLEAN.sub(" ", text.casefold().replace("_", " "))).strip(" .:'-")
    if clean in _PHRASES:
        return _PHRASES[clean]
    bare = _BLANKS.sub(" ", _ARTICLES.sub(" ", clean)).strip() or clean
    if bare in _PHRASES:
        return _PHRASES[bare]
    value = number(clean)
    if value is not None:
        return Num(value)
    if bare in MONTHS:
        return Text(_FULL_MONTHS[MONTHS[bare]])
    return Text(_WEEKDAYS.get(bare) or date(bare) or bare)


def number(text: str) -> Fraction | None:
    """Value of ``twenty-one``, ``one hundred and five``, ``two thirds``, ``minus three``; None for other words."""
    parts = text.replace("-", " ").replace(",", " ").split()
    if not parts or len(parts) > 20:
        return None
    if parts[0] in {"minus", "negative"}:
        value = number(" ".join(parts[1:]))
        return None if value is None else -value
    last = parts[-1].removesuffix("s") if parts[-1] != "halves" else "half"
    if last in _PARTS and len(parts) > 1:
        if "and" in parts:
            cut = len(parts) - 1 - parts[::-1].index("and")
            whole, part = _whole(parts[:cut]), number(" ".join(parts[cut + 1 :]))
            return whole + part if whole is not None and part is not None and 0 < part < 1 else None
        top = 1 if parts[:-1] in (["a"], ["an"]) else _whole(parts[:-1])
        return None if top is None else Fraction(top, _PARTS[last])
    whole = _whole(parts)
    return None if whole is None else Fraction(whole)


def counted(text: str) -> Node | None:
    """``five red apples`` as a quantity; None where the text is no number with at most three words behind it."""
    parts = text.casefold().strip(" .").split()
    for size in range(min(3, len(parts) - 1), 0, -1):
        rest = parts[-size:]
        if any(not word.isalpha() or word in _WORDS or word in _NUMBER_WORDS for word in rest):
            continue
        value = number(" ".join(parts[:-size]))
        if value is not None:
            return Quantity(Num(value), " ".join(rest))
    return None


def _whole(parts: list[str]) -> int | None:
    total = group = 0
    previous = ""
    for part in parts:
        if part in _SMALL and previous in {"", "hundred", "and", "scale", "tens"}:
            if previous == "tens" and not 0 < _SMALL[part] < 10:
                return None
            group += _SMALL[part]
            previous = "small"
        elif part in _TENS and previous in {"", "hundred", "and", "scale"}:
            group += _TENS[part]
            previous = "tens"
        elif part == "a" and previous == "" and len(parts) > 1:
            group, previous = 1, "small"
        elif part == "hundred" and previous == "small" and 0 < group < 100:
            group *= 100
            previous = "hundred"
        elif (
            part in _SCALES
            and previous in {"small", "tens", "hundred"}
            and (total == 0 or total >= 1000 * _SCALES[part])
        ):
            total += group * _SCALES[part]
            group, previous = 0, "scale"
        elif part == "and" and previous in {"hundred", "scale"}:
            previous = "and"
        else:
            return None
    return total + group if previous not in {"", "and"} else None


def date(text: str) -> str | None:
    """``january 5 2020``, ``5th of january 2020`` to ``date 2020 1 5``; None when it is no date."""
    iso = _ISO.fullmatch(text)
    if iso and 1 <= int(iso[2]) <= 12 and 1 <= int(iso[3]) <= 31:
        return f"date {iso[1]} {int(iso[2])} {int(iso[3])}"
    parts = [part for part in text.replace(".", " ").replace(",", " ").split() if part not in {"of", "on"}]
    if not 2 <= len(parts) <= 3 or sum(part in MONTHS for part in parts) != 1:
        return None
    month = next(MONTHS[part] for part in parts if part in MONTHS)
    day, year = "", ""
    for part in parts:
        found = _DAY.fullmatch(part)
        if part in MONTHS:
            continue
        if found and not day:
            day = found[1].lstrip("0")
        elif part.isdigit() and len(part) == 4:
            year = part
        else:
            return None
    return f"date {year or '-'} {month} {day or '-'}"


def clock(text: str) -> tuple[int, bool] | None:
    """Seconds since midnight of a time of day, and whether it cannot be anything else; None when it is no time."""
    found = _CLOCK.fullmatch(text)
    if not found or not (found[2] or found[4] or found[5]) or int(found[1]) > 24 or int(found[2] or 0) > 59:
        return None
    hour = int(found[1])
    if found[5]:
        if hour != 12:
            return None
        hour = 12 if found[5].lower() == "noon" else 0
    elif found[4]:
        hour = hour % 12 + (12 if found[4].lower() == "p" else 0)
    seconds = hour * 3600 + int(found[2] or 0) * 60 + int(found[3] or 0)
    return seconds, bool(found[3] or found[4] or found[5])


def named_list(text: str) -> Node | None:
    """``Alice, Bob and Carol`` as a list of names; None where a part is more than two words."""
    if "," not in text and ";" not in text and not re.search(r"\b(?:and|or)\b", text):
        return None
    parts = [part.strip(" .") for part in _LIST.split(text.strip()) if part.strip(" .")]
    if not 2 <= len(parts) <= 12 or any(len(part.split()) > 2 or re.search(r"[\\\d]", part) for part in parts):
        return None
    return Seq(tuple(Sym(part) if _LETTER.fullmatch(part) else words(part) for part in parts), "list")
