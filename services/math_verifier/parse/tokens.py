r"""Tokens of a normalised answer.

The one context-sensitive part is the number: ``1,234`` is a number outside brackets and two items inside them,
``0.\overline{3}`` and ``1.2e5`` are single numbers, and ``1,5`` may be a decimal where the caller says so.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final, Literal, NamedTuple

from math_verifier.parse.ast import ParseError

Comma = Literal["thousands", "list", "decimal"]
MAX_TEXT: Final = 4000
"""Longest answer that is parsed, in characters after normalisation."""
MAX_TOKENS: Final = 2000
MAX_EXPONENT: Final = 400
"""Largest power of ten that a literal is multiplied out to."""

Kind = Literal["num", "word", "cmd", "op", "text", "begin", "end", "eof", "based"]


class Token(NamedTuple):
    kind: Kind
    text: str
    spaced: bool
    value: Fraction | None = None
    places: int | None = None
    exponent: int = 0


_ENV: Final = re.compile(r"\\(begin|end)\s*\{([A-Za-z]+\*?)\}")
_ARRAY_SPEC: Final = re.compile(r"\s*(?:\[[^\]]{0,8}\])?\s*\{[lcr|\s@]{0,40}\}")
_TEXT: Final = re.compile(
    r"\\(text|mbox|textbf|textrm|textit|textnormal|mathrm|operatorname\*?|mathop|hbox|emph|textsf|texttt)\s*\{([^{}]*)\}"
)
_CMD: Final = re.compile(r"\\([A-Za-z]+)\*?")
_WORD: Final = re.compile(r"[A-Za-z]+")
_OPS: Final = re.compile(r"\*\*|<=|>=|!=|==|<>|=>|->|\\\\|\\[{}|%$#&_^!]|[-+*/^_=<>(){}\[\]|,;:!'%&.?°£€¥₹\"]")
_THOUSANDS: Final = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?![\d])|[1-9]\d?(?:,\d{2})+,\d{3}(?!\d)")
_SPACED: Final = re.compile(r"\d{1,3}(?: \d{3})+(?![\d/]|\s*\\frac|\.\d* \d)")
_DIGITS: Final = re.compile(r"\d+")
_DECIMAL_COMMA: Final = re.compile(r",(\d+)")
_POINT: Final = re.compile(r"\.(\d*)")
_REPEAT: Final = re.compile(r"\s*\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))|\((\d+)\)(?=$|[^\d(^])")
_DOT: Final = re.compile(r"\s*\\dot\s*(?:\{\s*(\d)\s*\}|(\d))")
_ELLIPSIS: Final = re.compile(r"(?:\.\.\.|\s*\\[lc]?dots(?![A-Za-z]))(?!\s*,)")
_EXPONENT: Final = re.compile(r"[eE]([+-]?\d{1,9})(?![\dA-Za-z_^.])")
_BASED: Final = re.compile(
    r"([0-9A-Fa-f]+(?:\.[0-9A-F]+)?)\s*_\s*(?:\{\s*(?:\\text\{)?(\d{1,2}|[a-z]{3,9})\}?\s*\}|(\d)(?!\d))"
)
_COMPUTER: Final = re.compile(r"0b([01]+)(?![\w])|0x([0-9A-Fa-f]{2,})(?![\w])")
_BASE_WORDS: Final = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "twelve": 12,
    "sixteen": 16,
}


def tokenize(text: str, comma: Comma = "thousands") -> list[Token]:
    """Tokens of ``text``, ending with an ``eof`` token.

    Raises:
        ParseError: a character or number that no token starts with, or a text too long.
    """
    if len(text) > MAX_TEXT:
        raise ParseError(f"the answer has {len(text)} characters; at most {MAX_TEXT} are read")
    tokens: list[Token] = []
    position, depth, spaced = 0, 0, False
    while position < len(text):
        char = text[position]
        if char.isspace():
            position, spaced = position + 1, True
            continue
        token, position = _next(text, position, depth, spaced, comma)
        if token.kind == "op":
            depth += token.text in {"(", "[", "\\{"}
            depth -= token.text in {")", "]", "\\}"}
        tokens.append(token)
        spaced = False
        if len(tokens) > MAX_TOKENS:
            raise ParseError(f"the answer has more than {MAX_TOKENS} tokens")
    tokens.append(Token("eof", "", spaced))
    return tokens


def _next(text: str, position: int, depth: int, spaced: bool, comma: Comma) -> tuple[Token, int]:
    char = text[position]
    computer = _COMPUTER.match(text, position) if char == "0" else None
    if computer:
        digits = computer[1] or computer[2]
        return Token("based", digits.upper(), spaced, exponent=2 if computer[1] else 16), computer.end()
    based = _BASED.match(text, position) if char.isdigit() or char in "ABCDEFabcdef" else None
    if based:
        base = based[2] or based[3]
        number = _BASE_WORDS.get(base, 0) if base.isalpha() else int(base)
        digits = based[1].upper()
        named = digits.isalpha() and (number != 16 or len(digits) < 2)
        if 2 <= number <= 16 and not named and all(int(digit, 16) < number for digit in digits if digit != "."):
            return Token("based", digits, spaced, exponent=number), based.end()
    if char.isascii() and (
        char.isdigit()
        or (char == "." and (text[position + 1 : position + 2].isdigit() or text.startswith(".\\overline", position)))
    ):
        return _number(text, position, depth, spaced, comma)
    if char == "\\":
        found = _ENV.match(text, position)
        if found:
            end = found.end()
            if found[1] == "begin" and found[2].startswith(("array", "tabular")):
                spec = _ARRAY_SPEC.match(text, end)
                end = spec.end() if spec else end
            return Token("begin" if found[1] == "begin" else "end", found[2], spaced), end
        found = _TEXT.match(text, position)
        if found:
            kind: Kind = "cmd" if found[1].startswith(("operatorname", "mathop")) else "text"
            return Token(kind, found[2].strip().lstrip("\\"), spaced), found.end()
        found = _CMD.match(text, position)
        if found:
            return Token("cmd", found[1], spaced), found.end()
    found = _WORD.match(text, position)
    if found:
        return Token("word", found[0], spaced), found.end()
    found = _OPS.match(text, position)
    if found:
        return Token("op", found[0], spaced), found.end()
    raise ParseError(f"unexpected {char!r} at character {position + 1}")


def _number(text: str, position: int, depth: int, spaced: bool, comma: Comma) -> tuple[Token, int]:
    start = position
    whole = ""
    found = None
    if comma == "thousands" and depth == 0:
        found = _THOUSANDS.match(text, position)
    found = found or _SPACED.match(text, position) or _DIGITS.match(text, position)
    if found:
        whole, position = found[0].replace(",", "").replace(" ", ""), found.end()
    fraction = ""
    point = _POINT.match(text, position)
    if point and text.startswith("..", position):
        point = None
    if point is None and comma == "decimal" and depth == 0:
        point = _DECIMAL_COMMA.match(text, position)
    places: int | None = None
    if point:
        fraction, position = point[1], point.end()
        places = len(fraction) or None
    value = Fraction(int(whole + fraction or "0"), 10 ** len(fraction)) if fraction else Fraction(int(whole or "0"))
    if point:
        repeating, position = _repeating(text, position, fraction)
        if repeating:
            value += repeating
            places = None
    exponent = 0
    power = _EXPONENT.match(text, position)
    if power:
        position, exponent = power.end(), int(power[1])
        if abs(exponent) <= MAX_EXPONENT:
            value *= Fraction(10) ** exponent
            places = max(0, (places or 0) - exponent) or None
            exponent = 0
    plain = whole if position - start == len(whole) and whole.isdigit() else ""
    return Token("num", plain, spaced, value, places, exponent), position


def _repeating(text: str, position: int, fraction: str) -> tuple[Fraction, int]:
    r"""Value of the repeating tail after some decimals: ``\overline{3}``, ``\dot1 4 \dot2``, ``(3)``, ``333...``."""
    first = _DOT.match(text, position)
    if first:
        end = first.end()
        middle = _DIGITS.match(text, end)
        second = _DOT.match(text, middle.end() if middle else end)
        if second:
            block = (first[1] or first[2]) + (middle[0] if middle else "") + (second[1] or second[2])
            return _tail(block, len(fraction)), second.end()
    repeat = _REPEAT.match(text, position)
    if repeat:
        return _tail(repeat[1] or repeat[2] or repeat[3], len(fraction)), repeat.end()
    dots = _ELLIPSIS.match(text, position)
    if dots and fraction:
        for width in range(1, len(fraction) // 2 + 1):
            block = fraction[-width:]
            times = 3 if width == 1 else 2
            if fraction.endswith(block * times):
                return _tail(block, len(fraction)), dots.end()
    return Fraction(0), position


def _tail(block: str, shift: int) -> Fraction:
    return Fraction(int(block), (10 ** len(block) - 1) * 10**shift)
