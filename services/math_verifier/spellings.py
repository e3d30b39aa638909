r"""Other ways to write the same mathematics, to the one that the parser reads.

Each rule names a piece of text without which it cannot apply, so that most answers cost a few substring searches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Replacement = str | Callable[[re.Match[str]], str]

_NAMES: Final = (
    "gcd|lcm|GCD|LCM|HCF|max|mod|bmod|det|Re|Im|arg|deg|sgn|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|"
    "tanh|ln|log|exp|cis"
)
_TEXT: Final = r"\\(?:text|mathrm|textrm|mbox|mathit|textit|mathsf|mathtt|texttt|mathbf|textbf|operatorname\*?)\s*"
_OVER: Final = (
    r"(?:km|cm|mm|m|ft|feet|mi|miles?|in|kg|g|mg|k?J|N|L|mL|k?W|rad|rev|mol)\s*/\s*"
    r"(?:s|sec|second|hr?|hour|min|minute|mol|kg|g|c?m|m?L|K|day)(?:\^\{?[23]\}?)?"
)
_PARAMETER: Final = (
    rf"[\s,;(]*(?:{_TEXT}\{{)?\s*,?\s*(?:\(\s*)?(?:(?:where|for|with|and)\b)?\s*(?:(?:any|all|every|some|an|each)\b)?\s*"
    rf"(?:\}}\s*)?(?:integer(?:s|\s+values?(?:\s+of)?)?\s*(?:\}}\s*)?(?P<name>[a-z])|"
    rf"(?P<other>[a-z])\s*(?:{_TEXT}\{{)?\s*(?:is|are)\s*(?:an?y?\b)?\s*(?:arbitrary\s+)?integers?\s*\}}?)\s*\}}?\s*\)?\.?$"
)
_TURNED: Final = r"(?<![\w)\]}])\s*([\[\]])([^\[\](){}]+[,;][^\[\](){}]+)([\[\]])(?![\w(\[{])"
_BASE: Final = r"\s*\(?(?:in\s+)?base[\s\-]*"
_SCALES: Final = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def _repeat_group(found: re.Match[str]) -> str:
    return found[0].replace("_", "")


def _combination(found: re.Match[str]) -> str:
    n, k = found["n"], found["k"]
    return f"\\binom{{{n}}}{{{k}}}" if found["kind"] == "C" else f"P({n},{k})"


def _selection(found: re.Match[str]) -> str:
    """``C_{10}^{3}``: the number below chooses the number above; the other way round it is a power of a name."""
    n, k = found[2] or found[3], found[4] or found[5]
    if int(k) > int(n):
        return found[0]
    return f"\\binom{{{n}}}{{{k}}}" if found[1] == "C" else f"P({n},{k})"


def _scale(found: re.Match[str]) -> str:
    power = _SCALES[found[2].lower()]
    return f"{found[1]}\\cdot 10^{{{power}}} " if found[1] == "}" else f"{found[1]}e{power} "


def _interval(found: re.Match[str]) -> str:
    """``]1, 2[`` with round brackets."""
    low, high = found[1], found[3]
    if (low, high) == ("[", "]"):
        return found[0]
    return ("(" if low == "]" else "[") + found[2] + (")" if high == "[" else "]")


def _integer(found: re.Match[str]) -> str:
    return f" , {found['name'] or found['other']} \\in \\mathbb{{Z}}"


def _rule(
    needle: str, pattern: str, replacement: Replacement, flags: int = 0
) -> tuple[str, re.Pattern[str], Replacement]:
    return needle, re.compile(pattern, flags), replacement


_RULES: Final = (
    _rule("\\", rf"{_TEXT}\{{\s*({_NAMES})\s*\}}", r"\\\1 "),
    _rule("min", rf"{_TEXT}\{{\s*min\s*\}}(?=\s*(?:\\left)?\s*(?:\(|\\\{{|\{{|_))", r"\\min "),
    _rule("\\", r"\\(?:bbox(?:\[[^\]]*\])?|f?colorbox(?:\{[^{}]*\})+(?=\{))", ""),
    _rule("\\", rf"{_TEXT}\{{\s*i\s*\}}(?![A-Za-z])", "i"),
    _rule("_", rf"{_TEXT}\{{\s*([0-9A-Fa-f]+)\s*\}}(?=\s*_)", r"\1"),
    _rule("\\", r"\\(?:text|mbox|mathrm|textrm)\s*\{\s*(\\?[$€£¥₹])\s*\}", r"\1"),
    _rule("\\", r"\\(?:text|mbox|mathrm|textrm)\s*\{\s*(\\?[$€£¥₹]\s?[\d.,]+)\s*\}", r"\1"),
    _rule("vert", r"\\(?:[lr]?vert)(?![A-Za-z])\s?", "|"),
    _rule("\\mid", r"^((?:[^|]*[-+*/=(,]\s*)?)\\mid(?![A-Za-z])([^|]+?)\\mid(?![A-Za-z])", r"\1|\2|"),
    _rule("\\lbr", r"\\lbrack(?![A-Za-z])", "["),
    _rule("\\rbr", r"\\rbrack(?![A-Za-z])", "]"),
    _rule("\\lbr", r"\\lbrace(?![A-Za-z])", r"\\{"),
    _rule("\\rbr", r"\\rbrace(?![A-Za-z])", r"\\}"),
    _rule("\\colon", r"\\colon(?![A-Za-z])", ":"),
    _rule("\\ratio", r"\\ratio(?![A-Za-z])", ":"),
    _rule(".", r"\b(sq|cu|in|ft|yd|hrs?|mins?|secs?|lbs?|oz)\.(?=\s|$|\})", r"\1"),
    _rule("/", rf"(?<=[\d}}])\s*({_OVER})$", r" \\text{\1}"),
    _rule("or", r"(?<=[\d)\]}])(or)(?=[A-Za-z(]\s*[\d(=_<>^\\])", r" \1 "),
    _rule("and", r"(?<=[\d)\]}])and(?=[A-Za-z(]\s*[\d(=_<>^\\])", " and "),
    _rule("point", r"^(?:the\s+)?(?:points?|ordered\s+pairs?)\s+(?=[(\\])", "", re.I),
    _rule(":=", r":=", "="),
    _rule("...", r"(?<=[,+*\s])\.{3}(?![.\d])", r"\\ldots "),
    _rule("\\", r"\\([RNZQC])(?![A-Za-z])", r"\\mathbb{\1}"),
    _rule("\\neg", r"\\neg(?:med|thick)space(?![A-Za-z])", ""),
    _rule("\\cr", r"\\cr(?![A-Za-z])", r"\\\\ "),
    _rule("\\\\", r"(?<!\\)\\\\\s*\[\s*-?\d+(?:\.\d+)?\s*(?:pt|em|ex|mm|cm)\s*\]", r"\\\\ "),
    _rule("+/-", r"\+\s?/\s?-", r"\\pm "),
    _rule("+-", r"^\s*\+-\s*(?=\S)", r"\\pm "),
    _rule("frac", r"(?<![\\A-Za-z])[dt]?frac(?=\s*[{\d])", r"\\frac"),
    _rule("sqrt", r"(?<![\\A-Za-z])sqrt(?=\s*[{\[])", r"\\sqrt"),
    _rule("{\\overline", r"(?<=[\d.])\{(\\overline\s*\{\d+\})\}", r"\1"),
    _rule("{\\frac", r"(?<=\d)\s*\{(\\frac\s*\{\d+\}\s*\{\d+\})\}", r"\1"),
    _rule("_", r"(?<![\w.])\d{1,3}(?:_\d{3}){2,}(?!\w)", _repeat_group),
    _rule("^", r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r" \\times "),
    _rule("_", r"(?:\{\})?_\{?(?P<n>\d+)\}?\s*(?P<kind>[CP])\s*_\s*\{?(?P<k>\d+)\}?", _combination),
    _rule("^", r"(?<![\w})\]])(?:\{\})?\^\{?(?P<n>\d+)\}?\s*(?P<kind>[CP])\s*_\s*\{?(?P<k>\d+)\}?", _combination),
    _rule("_", r"(?<![A-Za-z\\])([CA])\s*_\s*(?:\{(\d+)\}|(\d))\s*\^\s*(?:\{(\d+)\}|(\d))(?!\d)", _selection),
    _rule("base", r"(\b[\dA-F]+)\s*\(?(?:in\s+)?base[\s\-]*(\d{1,2})\s*\)?$", r"\1_{\2}"),
    _rule("base", rf"(\b[\dA-F]+)\s*{_TEXT}\{{{_BASE}\}}\s*(\d{{1,2}})\s*\)?$", r"\1_{\2}"),
    _rule("base", rf"(\b[\dA-F]+)\s*{_TEXT}\{{{_BASE}(\d{{1,2}})\s*\)?\s*\}}$", r"\1_{\2}"),
    _rule("illion", rf"{_TEXT}\{{\s*([mbt]r?illion)s?\b", r"\1 \\text{", re.I),
    _rule("illion", r"(\d|\})\s*\b([mbt]r?illion)s?\b", _scale, re.I),
    _rule("housand", rf"{_TEXT}\{{\s*(thousand)s?\b", r"\1 \\text{", re.I),
    _rule("housand", r"(\d|\})\s*(thousand)s?\b", _scale, re.I),
    _rule("hundred", rf"{_TEXT}\{{\s*(hundred)\b(?!th)", r"\1 \\text{", re.I),
    _rule("hundred", r"(\d)\s*(hundred)\b(?!th)", _scale, re.I),
    _rule("\\", r"\\(?:text|mbox|mathrm|textrm|textbf)\s*\{([\s,;.]*)\}", r" \1 "),
    _rule("to", r"^(\d+(?:\.\d+)?)\s*(?:\\text\s*\{\s*to\s*\}|to)\s*(\d+(?:\.\d+)?)$", r"\1:\2"),
    _rule("_", r"\(([\dA-F]{2,}|\d)\)(?=\s*_\s*(?:\d|\{\s*\d))", r"\1"),
    _rule("_", r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?=\s*_\s*(?:\d|\{\s*\d))", lambda found: found[0].replace(",", "")),
    _rule("nteger", _PARAMETER, _integer),
    _rule("minus", r"^minus\s+(?=\d|\\frac)", "-", re.I),
    _rule("egative", r"^negative\s+(?=\d|\\frac)", "-", re.I),
    _rule("C", r"^(\d+)\s*C\s*(\d+)$", r"\\binom{\1}{\2}"),
    _rule("[", _TURNED, _interval),
    _rule("]", _TURNED, _interval),
    _rule("USD", r"^US(?:D\s*\\?\$?|\s*\\?\$)\s*(?=\d)", r"\\$"),
    _rule("US", r"^US\s*\\?\$\s*(?=\d)", r"\\$"),
    _rule("Rs", r"^Rs\.?\s*(?=\d)", "₹"),
    _rule("\\$", r"^([-+]?[\d.,]+)\s*\\\$$", r"\\$\1"),
)  # fmt: skip
_HAN_UNIT: Final = re.compile("(?<=[\\d}])\\s*([\u4e00-\u9fff]{1,6})[\u3002.]?$")
_HAN_UNITS: Final = {
    "美元": "dollars", "元": "\\text{yuan}", "人民币": "\\text{yuan}", "欧元": "euros", "厘米": "cm", "毫米": "mm",
    "米": "meters", "公里": "km", "千米": "km", "公斤": "kg", "千克": "kg", "克": "grams", "小时": "hours",
    "分钟": "minutes", "秒": "seconds", "天": "days", "度": "degrees", "平方厘米": "cm^2", "平方米": "m^2",
    "立方厘米": "cm^3", "升": "liters", "毫升": "ml",
}  # fmt: skip
_HAN_SCALES: Final = frozenset("十百千万亿兆億萬半成折分零一二三四五六七八九点")
_SIGN_BEHIND: Final = re.compile(r"^([-+]?[\d.,\s]+?)\s*([€£¥₹])$")
_QUOTED: Final = re.compile(r"""^\s*(["'])(?=\S)([^"']*)\1\s*$""")
_STARRED: Final = re.compile(r"^\s*\*(?=[^\s*])([^*]+)(?<=\S)\*\s*$")
_BRACED_SYSTEM: Final = re.compile(
    r"^\s*\\(?:left\s*)?(?:\\\{|\{|lbrace)\s*(?=\\begin\s*\{(?:array|aligned|cases|matrix|gathered)\})"
)


def respell(text: str) -> str:
    """``text`` with the rules applied."""
    for needle, pattern, replacement in _RULES:
        if needle in text:
            text = pattern.sub(replacement, text)
    if not text.isascii():
        text = _SIGN_BEHIND.sub(r"\2\1", text)
    return text


def english_unit(text: str) -> str:
    """A Chinese unit behind a number in English; one without a name here goes, but not what scales the number."""
    found = _HAN_UNIT.search(text, max(0, len(text) - 20))
    if not found or (found[1] not in _HAN_UNITS and _HAN_SCALES.intersection(found[1])):
        return text
    return f"{text[: found.start()]} {_HAN_UNITS.get(found[1], '')}".rstrip()


def unquote(text: str) -> str:
    """Without quotation marks or italics around the whole."""
    if text[:1] in {'"', "'"}:
        return _QUOTED.sub(r"\2", text)
    return _STARRED.sub(r"\1", text) if text[:1] == "*" else text


def open_brace(text: str) -> str:
    r"""Without the brace that ``\right.`` closes, before a system of equations."""
    return _BRACED_SYSTEM.sub("", text)
