r"""Text to one spelling: unicode, LaTeX spacing and styling, thousands marks, wrappers.

:func:`normalize` is what the parser reads; :func:`squash` is what the string stage compares. Both are linear in the
length of the text. Nothing here changes a value: whitespace between digits is kept, since ``1 1/2`` is not ``11/2``.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from math_verifier.spellings import english_unit, open_brace, respell, unquote

REMEMBERED: Final = 300
"""Longest text, in characters, whose spelling is remembered: references and common answers recur."""
MAX_WRAPPERS: Final = 8
"""Braces around a whole answer that are taken off; the parser takes off the rest."""
NEAR: Final = 40
"""Characters before a text group in which the value is looked for that it may be the unit of."""
SUPERSCRIPTS: Final = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni", strict=True))
SUBSCRIPTS: Final = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙₓ", "0123456789+-nx", strict=True))

_GREEK_NAMES: Final = """
alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi
psi omega
"""
_CAPITALS: Final = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
_GREEK: Final = {
    **dict(zip("αβγδεζηθικλμνξοπρστυφχψω", _GREEK_NAMES.split(), strict=True)),
    **dict(zip("ΓΔΘΛΞΠΣΦΨΩ", _CAPITALS.split(), strict=True)),
    "ϕ": "phi",
    "ϵ": "epsilon",
    "ϑ": "theta",
}
_COMMANDS: Final = """
× times ✕ times ⋅ cdot · cdot ∙ cdot • cdot ÷ div ± pm ∓ mp ≤ le ⩽ le ≦ le ≥ ge ⩾ ge ≧ ge ≠ ne ≈ approx ≃ approx
≡ equiv ∞ infty √ sqrt ∪ cup ∩ cap ∈ in ∉ notin ∖ setminus ∅ emptyset ⌀ emptyset … ldots ⋯ ldots ⟨ langle ⟩ rangle
〈 langle 〉 rangle ⌊ lfloor ⌋ rfloor ⌈ lceil ⌉ rceil ∑ sum ∏ prod ∫ int → to ⇒ Rightarrow ∠ angle △ triangle
⊆ subseteq ⊂ subset
"""
_PLAIN: Final = {
    **dict.fromkeys("−–—‐‑‒﹣－", "-"),
    **dict.fromkeys("°º˚", "^\\circ "),
    **dict.fromkeys("′’‘", "'"),
    **dict.fromkeys("“”″", '"'),
    **dict.fromkeys("∣｜", "|"),
    **dict.fromkeys("，、", ", "),
    **dict.fromkeys("⁄∕", "/"),
    **dict.fromkeys("％﹪", "\\%"),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    **{letter: f"\\mathbb{{{name}}}" for letter, name in zip("ℝℤℕℚℂ", "RZNQC", strict=True)},
    "∗": "*", "∛": "\\sqrt[3] ", "∜": "\\sqrt[4] ", "∧": " and ", "∨": " or ",
    "；": "; ", "：": ":", "≔": "=", "。": ".",
    "￡": "£", "￥": "¥", "＄": "\\$",
}  # fmt: skip
_REPLACE: Final = {
    **{letter: f"\\{name} " for letter, name in _GREEK.items()},
    **{letter: f"\\{name} " for letter, name in zip(*[iter(_COMMANDS.split())] * 2, strict=True)},
    **_PLAIN,
}
_TABLE: Final = str.maketrans(_REPLACE)

_VULGAR: Final = re.compile("[¼½¾⅐-⅞↉]")
_ROOT: Final = re.compile(r"√\s*(\d+(?:\.\d+)?|[A-Za-z])")
_WIDE_COMMA: Final = re.compile(r"(?<=\d)\uff0c(?=\d{3}(?!\d))")
_COMBINING_BAR: Final = re.compile("((?:\\d[\u0305\u0304])+)")
_SUPER_RUN: Final = re.compile("[" + "".join(SUPERSCRIPTS) + "]+")
_SUB_RUN: Final = re.compile("[" + "".join(SUBSCRIPTS) + "]+")
_THIN: Final = "\u2009\u202f\u00a0\u2007\u2008\u200a\u2006"
_THIN_GROUPS: Final = re.compile(rf"(?<=\d)[{_THIN}](?=\d{{3}}(?!\d))")
_TEX_GROUPS: Final = re.compile(r"(?<=\d)(?:\\,|\\ |\\;|\\:|~|\{\\,\}|\\thinspace ?)(?=\d{3}(?!\d))")
_BRACED_COMMA: Final = re.compile(r"(?<=\d)(?:\s?\{\s*,\s*\}|,\\!|\{,\\!\}|\\!,)\s*(?=\d{3}(?!\d))")
_BRACED_DECIMAL: Final = re.compile(r"(?<=\d)\{,\}(?=\d)")
_APOSTROPHES: Final = re.compile(r"(?<=\d)'(?=\d{3}(?!\d))")
_SIZES: Final = re.compile(
    r"\\(?:left|right|middle|[bB]ig{1,2}[lrm]?|displaystyle|textstyle|scriptstyle|scriptscriptstyle|limits|nolimits|"
    r"mathstrut|strut|allowbreak|nobreak|hfill|hfil|centering|large|Large|huge|normalsize|noindent|therefore|because|rm|bf|it)(?![A-Za-z])\s?"
)
_PHANTOM: Final = re.compile(r"\\(?:[hv]?phantom|hspace|vspace|label|tag|color|textcolor)\*?\{[^{}]{0,40}\}")
_SPACES: Final = re.compile(
    r"\\(?:quad|qquad|thinspace|enspace|medspace|thickspace|space)(?![A-Za-z])|(?<!\\)\\[,;:> ]|~"
)
_NEGATIVE_SPACE: Final = re.compile(r"(?<!\\)\\!|\\negthinspace(?![A-Za-z])")
_FRACTIONS: Final = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_DELIMITERS: Final = re.compile(r"(?<!\\)\\[()\[\]](?!\d*(?:pt|em|ex|mm)\])")
_HTML: Final = re.compile(r"<(su[pb])>([^<>]{1,40})</\1>")
_TAGS: Final = re.compile(r"</?(?:b|i|em|strong|u|span|p|br)\s*/?>", re.I)
_ESCAPED_TWICE: Final = re.compile(
    r"\\\\(?=(?:[dt]?frac|sqrt|boxed|text|mathrm|mathbf|left|right|cdot|times|pi|infty|le|ge|pm|cup|circ)(?![A-Za-z]))"
)
_TWICE: Final = re.compile(r"(?<!\\)\\\\begin(?![A-Za-z])")
_ONCE: Final = re.compile(r"(?<!\\)\\(?:\\\\)*(?=[A-Za-z])")
_STYLE: Final = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathtt|mathnormal|vec|overrightarrow|underline|mathopen|mathclose|mathord|"
    r"mathbin|mathrel|ensuremath|text|textbf|textit|textrm|mathrm|mbox|textnormal|emph|hbox)"
    r"\s*\{([^{}\\A-Za-z]{0,80}(?:[A-Za-z][^{}\\A-Za-z]{0,20})?)\}"
)
_TEXT_LEAD: Final = re.compile(
    r"^\s*\\(?:text|mbox|textbf|textrm|mathrm)\s*\{[^{}]{0,120}?(?:\bis|\bare|\bequals?|\banswer|:|=)\s*:?\s*\}\s*(?=\S)",
    re.I,
)
_CONNECTIVE: Final = re.compile(
    r"^\s*\\(?:text|mbox|textrm|mathrm)\s*\{\s*(?:so|thus|hence|therefore|then|let|we\s+(?:get|have|find)|since|and)[\s,:]*\}\s*(?=\S)",
    re.I,
)
_BLANK_MARKS: Final = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "✓✔■□∎"
_MARK_END: Final = re.compile(r"\\(?:square|blacksquare|checkmark|Box|qed)$")
_PLAIN_LEAD: Final = re.compile(
    r"^\s*(?:so|thus|hence|therefore)?,?\s*(?:the\s+)?(?:(?:final|correct|right)\s+)?answer\s*(?:is|:|=)\s*:?\s*(?=\S)",
    re.I,
)
_APPROXIMATE: Final = re.compile(
    r"^\s*(?:=|\\(?:approx|simeq|doteq)(?![A-Za-z])|(?:approximately|about|roughly|exactly)\s)\s*(?=\S)", re.I
)
_ASIDE: Final = re.compile(r"(?<=[\d}\)])\s*\([A-Za-z][A-Za-z .]{2,40}\)$")
_LETTERED: Final = re.compile(
    r"\\(?:text|mbox|textrm|textnormal|textbf)\s*\{(\s*(?:[-+]?[\d$][^{}]{0,80}|[A-Za-z](?:(?:\s*,\s*|\s+)(?:and\s+|or\s+)?[A-Za-z])+)\s*)\}"
)
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_BOLD: Final = re.compile(r"^\s*(\*\*|__|`{1,3})(.+)\1\s*$", re.S)
_WS: Final = re.compile(r"\s+")
_EUROPEAN: Final = re.compile(r"^([^\d]{0,4})(\d{1,3}(?:\.\d{3})+),(\d+)(?!\d)")
_DOT_THOUSANDS: Final = re.compile(r"^([^\d.]{0,4})(\d{1,3}(?:\.\d{3}){2,})(?![\d.])")


def unicode_to_tex(text: str) -> str:
    """Unicode mathematics to LaTeX and ASCII."""
    if text.isascii():
        return text
    text = english_unit(_unmarked(text))
    text = _THIN_GROUPS.sub("", text)
    text = _WIDE_COMMA.sub(",", text)
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _COMBINING_BAR.sub(lambda run: "\\overline{" + "".join(c for c in run[0] if c.isdigit()) + "}", text)
    text = _VULGAR.sub(_vulgar, text)
    text = _SUPER_RUN.sub(lambda run: _script("^", "".join(SUPERSCRIPTS[c] for c in run[0]), run), text)
    text = _SUB_RUN.sub(lambda run: _script("_", "".join(SUBSCRIPTS[c] for c in run[0]), run), text)
    return unicodedata.normalize("NFKC", text.translate(_TABLE)).translate(_TABLE)


def _unmarked(text: str) -> str:
    """Without blanks and end-of-proof marks at the end; one pass for each mark that is a command."""
    text = text.rstrip(_BLANK_MARKS)
    while text[-1:].isalpha() and "\\" in text[-12:] and (mark := _MARK_END.search(text, max(0, len(text) - 12))):
        text = text[: mark.start()].rstrip(_BLANK_MARKS)
    return text


def _script(mark: str, content: str, run: re.Match[str]) -> str:
    """Without braces where they are not needed: they would end a ``\\text{cm^2}`` early."""
    follows = run.string[run.end() : run.end() + 1]
    return f"{mark}{{{content}}}" if len(content) > 1 or follows.isalnum() else mark + content


def _vulgar(found: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", found[0]).partition("⁄")
    return f"\\frac{{{top}}}{{{bottom}}}" if bottom else top


def normalize(text: str) -> str:
    """One spelling of an answer, for the parser."""
    if _NUMBER.fullmatch(text):
        return text
    return _remembered(text) if len(text) <= REMEMBERED else _normalized(text)


@lru_cache(maxsize=2048)
def _remembered(text: str) -> str:
    return _normalized(text)


def _normalized(text: str) -> str:
    text = unicode_to_tex(undelimited(text))
    bold = _BOLD.match(text)
    if bold:
        text = bold[2]
    text = unquote(text)
    if "<" in text:
        text = _TAGS.sub("", text)
    if "\\\\" in text:
        if "\\begin" not in text:
            text = _ESCAPED_TWICE.sub(r"\\", text)
        elif _TWICE.search(text) and not _ONCE.search(text):
            text = text.replace("\\\\", "\\")
    text = _HTML.sub(lambda m: ("^" if m[1] == "sup" else "_") + "{" + m[2] + "}", text)
    text = _BRACED_COMMA.sub("", text)
    text = _BRACED_DECIMAL.sub(".", text)
    text = _TEX_GROUPS.sub("", text)
    text = _APOSTROPHES.sub("", text)
    if "\\right." in text:
        text = open_brace(text)
    text = text.replace("\\left.", "").replace("\\right.", "")
    if "\\" in text:
        text = _SIZES.sub("", text)
        text = _PHANTOM.sub("", text)
        text = _NEGATIVE_SPACE.sub("", text)
        text = text.replace("\\\\[", "\\\\ [")
        text = _DELIMITERS.sub(" ", text)
        text = _FRACTIONS.sub(r"\\frac", text)
        text = _TEXT_LEAD.sub("", _CONNECTIVE.sub("", _unmarked(text)))
        for _ in range(3):
            text, count = _STYLE.subn(_plain_style, text)
            if not count or "\\" not in text:
                break
        text = _LETTERED.sub(_lettered, text)
        text = _SPACES.sub(" ", text)
    elif "~" in text:
        text = text.replace("~", " ")
    if "answer" in text.lower():
        text = _PLAIN_LEAD.sub("", text)
    text = respell(text)
    text = _dollars(_APPROXIMATE.sub("", text))
    text = _EUROPEAN.sub(lambda m: m[1] + m[2].replace(".", "") + "." + m[3], text)
    text = _DOT_THOUSANDS.sub(lambda m: m[1] + m[2].replace(".", ""), text)
    text = _WS.sub(" ", text).rstrip(" \\;,:").lstrip()
    text = _ASIDE.sub("", _full_stop(text))
    return _unwrap(text)


_CLOSING: Final = {"\\(": "\\)", "\\[": "\\]"}


def undelimited(text: str) -> str:
    """Without the mathematics delimiters around the whole, and without ``\\displaystyle`` before it."""
    text = text.strip()
    for _ in range(4):
        before = text
        if text[:1] == "$" and text[-1:] == "$" and len(text) > 2:
            inner = text.strip("$")
            text = inner.strip() if "$" not in inner and not inner.endswith("\\") else text
        elif text[:2] in _CLOSING and text.find(_CLOSING[text[:2]]) == len(text) - 2:
            text = text[2:-2].strip()
        elif text.startswith("\\displaystyle") and not text[13:14].isalpha():
            text = text[13:].strip()
        if text == before:
            break
    return text


def _plain_style(found: re.Match[str]) -> str:
    """Content of a styled group, but a letter set as text behind a number stays text: it is a unit."""
    before = _GAP_END.sub("", found.string[max(0, found.start() - NEAR) : found.start()])
    if not found[1].strip(" ,;.\\$€£¥₹"):
        return f" {found[1]} "
    if (
        found[1].strip(" ~.").isalpha()
        and found[1].strip(" ~.") not in _NEVER_UNITS
        and found[0].startswith(("\\text", "\\mbox", "\\mathrm"))
        and before[-1:] in _VALUE_ENDS
    ):
        return found[0]
    measured = _MEASURED.fullmatch(found[1])
    return f"{measured[1]} \\text{{{measured[2]}}}" if measured else f"{{{found[1]}}}"


def _lettered(found: re.Match[str]) -> str:
    """Content of a text group that holds a number or letters of choices, unless it stands behind a value."""
    before = _GAP_END.sub("", found.string[max(0, found.start() - NEAR) : found.start()])
    if before[-1:] in _VALUE_ENDS:
        return found[0]
    measured = _MEASURED.fullmatch(found[1])
    return f"{measured[1]} \\text{{{measured[2]}}}" if measured else found[1]


_NEVER_UNITS: Final = frozenset("deijkxyz")
_GAP_END: Final = re.compile(r"(?:\\[,;:! ]|\\q?quad|~|\s)+$")
_MEASURED: Final = re.compile(r"\s*([-+]?[\d.,/]*\d)\s*([A-Za-z])\.?\s*")
_VALUE_ENDS: Final = frozenset("0123456789}")


def _dollars(text: str) -> str:
    """``$`` as a delimiter goes, ``$5`` alone and ``\\$`` stay as the currency ``\\$``."""
    if "$" not in text:
        return text
    bare = text.replace("\\$", "")
    single = bare.count("$") == 1 and re.search(r"(?<!\\)\$\s*[\d.]", text)
    text = text.replace("\\$", "\x01")
    text = text.replace("$", "\x01" if single else " ")
    return text.replace("\x01", "\\$")


def _full_stop(text: str) -> str:
    """Drop a full stop that ends the sentence, not the dots of an ellipsis."""
    return text if text.endswith("...") else text.removesuffix(".").removesuffix(".").rstrip()


def _unwrap(text: str) -> str:
    """Drop braces around the whole text."""
    for _ in range(MAX_WRAPPERS):
        if not (text.startswith("{") and text.endswith("}") and _matching(text) == len(text) - 1):
            break
        text = text[1:-1].strip()
    return text


def _matching(text: str) -> int:
    depth = 0
    skip = False
    for position, char in enumerate(text):
        if skip:
            skip = False
        elif char == "\\":
            skip = True
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return position
    return -1


_GAP: Final = re.compile(r" (?![\dA-Za-z])|(?<![\dA-Za-z,]) ")


def squash(text: str) -> str:
    """A normalised text without the spaces that mean nothing; for comparing strings."""
    return _GAP.sub("", text)
