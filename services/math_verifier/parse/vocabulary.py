"""Words of the grammar: functions, constants, relations, units, phrases."""

from __future__ import annotations

import re
from typing import Final

from math_verifier.parse.ast import INFINITY, Const, Named, Node, Text

FUNCTIONS: Final = {
    **{
        name: name
        for name in (
            "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch "
            "arcsinh arccosh arctanh ln lg log exp gcd lcm max min det arg sgn floor ceil abs sqrt cbrt binom factorial tr"
        ).split()
    },
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "arsinh": "arcsinh", "arcosh": "arccosh", "artanh": "arctanh",
    "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "tg": "tan", "ctg": "cot", "cosec": "csc", "arctg": "arctan",
    "sign": "sgn", "ceiling": "ceil", "Re": "re", "Im": "im", "HCF": "gcd", "LCM": "lcm", "GCD": "gcd", "Log": "log",
    "Arg": "arg",
}  # fmt: skip
"""Spelling to name in the tree."""

INVERSES: Final = {
    "sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc",
    "sinh": "arcsinh", "cosh": "arccosh", "tanh": "arctanh",
}  # fmt: skip

CONSTANTS: Final[dict[str, Node]] = {
    "pi": Const("pi"), "infty": INFINITY, "infinity": INFINITY, "inf": INFINITY, "oo": INFINITY, "Infinity": INFINITY,
    "ldots": Const("dots"), "dots": Const("dots"), "cdots": Const("dots"), "dotsc": Const("dots"), "dotsb": Const("dots"),
    "emptyset": Named("empty"), "varnothing": Named("empty"), "imath": Const("i"), "Reals": Named("R"), "reals": Named("R"),
}  # fmt: skip

GREEK: Final = frozenset(
    (
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon "
        "phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar"
    ).split()
)

RELATIONS: Final = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "=>": "=>", "!=": "!=", "<>": "!=",
    "le": "<=", "leq": "<=", "leqslant": "<=", "leqq": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=",
    "lt": "<", "gt": ">", "ne": "!=", "neq": "!=", "approx": "~", "simeq": "~", "doteq": "~", "sim": "~",
    "in": "in", "notin": "notin", "equiv": "equiv", "cong": "=", "mapsto": "to", "to": "to", "rightarrow": "to",
    "subset": "subset", "subseteq": "subset", "parallel": "parallel", "perp": "perp", "propto": "propto", "coloneqq": "=",
    "triangleq": "=", "eq": "=", "Rightarrow": "=>", "implies": "=>", "Longrightarrow": "=>", "iff": "=>", "Leftrightarrow": "=>",
}  # fmt: skip

NUMBER_SETS: Final = frozenset("RZNQC")

# unit: (dimension, scale to the base of the dimension)
_UNITS: Final[dict[str, tuple[str, float]]] = {
    "mm": ("length", 1e-3), "millimeter": ("length", 1e-3), "cm": ("length", 1e-2), "centimeter": ("length", 1e-2),
    "dm": ("length", 1e-1), "m": ("length", 1.0), "meter": ("length", 1.0), "km": ("length", 1e3), "kilometer": ("length", 1e3),
    "inch": ("length", 0.0254), "in": ("length", 0.0254), "foot": ("length", 0.3048), "feet": ("length", 0.3048), "ft": ("length", 0.3048),
    "yard": ("length", 0.9144), "yd": ("length", 0.9144), "mile": ("length", 1609.344), "mi": ("length", 1609.344),
    "mg": ("mass", 1e-6), "g": ("mass", 1e-3), "gram": ("mass", 1e-3), "kg": ("mass", 1.0), "kilogram": ("mass", 1.0),
    "ton": ("mass", 1e3), "tonne": ("mass", 1e3), "lb": ("mass", 0.45359237), "pound": ("mass", 0.45359237), "oz": ("mass", 0.028349523125),
    "ounce": ("mass", 0.028349523125),
    "ms": ("time", 1e-3), "s": ("time", 1.0), "sec": ("time", 1.0), "second": ("time", 1.0), "min": ("time", 60.0), "minute": ("time", 60.0),
    "h": ("time", 3600.0), "hr": ("time", 3600.0), "hour": ("time", 3600.0), "day": ("time", 86400.0), "week": ("time", 604800.0),
    "month": ("month", 1.0), "year": ("month", 12.0), "yr": ("month", 12.0),
    "ml": ("volume", 1e-3), "mL": ("volume", 1e-3), "milliliter": ("volume", 1e-3), "l": ("volume", 1.0), "L": ("volume", 1.0),
    "liter": ("volume", 1.0), "litre": ("volume", 1.0), "gallon": ("gallon", 1.0), "gal": ("gallon", 1.0), "cup": ("cup", 1.0),
    "pint": ("pint", 1.0), "quart": ("quart", 1.0),
    "$": ("dollar", 1.0), "dollar": ("dollar", 1.0), "USD": ("dollar", 1.0), "cent": ("dollar", 0.01), "¢": ("dollar", 0.01),
    "€": ("euro", 1.0), "euro": ("euro", 1.0), "EUR": ("euro", 1.0), "£": ("sterling", 1.0), "GBP": ("sterling", 1.0), "¥": ("yen", 1.0),
    "yen": ("yen", 1.0), "yuan": ("yuan", 1.0), "rupee": ("rupee", 1.0), "Rs": ("rupee", 1.0), "₹": ("rupee", 1.0),
    "degree": ("degree", 1.0), "deg": ("degree", 1.0), "radian": ("radian", 1.0), "rad": ("radian", 1.0),
    "mph": ("mph", 1.0), "kmh": ("kmh", 1.0), "kph": ("kmh", 1.0), "mps": ("mps", 1.0),
    "percent": ("percent", 1.0), "percentage": ("percent", 1.0), "pct": ("percent", 1.0),
}  # fmt: skip
_PLURALS: Final = {"inches": "inch", "centimetres": "centimeter", "metres": "meter", "kilometres": "kilometer", "millimetres": "millimeter",
                   "metre": "meter", "centimetre": "centimeter", "kilometre": "kilometer", "cents": "cent", "percents": "percent", "yuan": "yuan"}  # fmt: skip
COUNTED: Final = frozenset(
    (
        "unit units square cubic sq cu per each people person apples apple books book students student ways way times "
        "points point sides side items item pieces piece coins coin marbles tickets children boys girls more hours "
        "pages page miles votes cards games outcomes solutions integers values triangles pairs dozen"
    ).split()
)
CURRENCY_SIGNS: Final = frozenset(("\\$", "$", "€", "£", "¥", "₹"))
CURRENCY_COMMANDS: Final = {
    "pounds": "£",
    "euro": "€",
    "yen": "¥",
    "textdollar": "$",
    "texteuro": "€",
    "textyen": "¥",
    "textsterling": "£",
}
GLUED_LETTERS: Final = frozenset("mgshlL")
"""One-letter units that read as variables unless set apart as text."""


def unit_of(word: str) -> tuple[str, float] | None:
    """Dimension and scale of a unit word, singular or plural, or None."""
    for candidate in (word, word.lower(), _PLURALS.get(word.lower(), ""), word.lower().removesuffix("s")):
        if candidate in _UNITS:
            return _UNITS[candidate]
    return None


_PHRASES: Final[dict[str, Node]] = {
    "infinity": INFINITY, "positive infinity": INFINITY, "all real numbers": Named("R"), "all reals": Named("R"),
    "real numbers": Named("R"), "all real": Named("R"), "empty set": Named("empty"), "no solution": Named("empty"),
    "no solutions": Named("empty"), "no real solution": Named("empty"), "no real solutions": Named("empty"),
    "null set": Named("empty"), "does not exist": Text("does not exist"), "dne": Text("does not exist"),
    "all integers": Named("Z"), "all natural numbers": Named("N"), "all positive integers": Named("N"),
}  # fmt: skip
_CLEAN: Final = re.compile(r"[^a-z0-9+\-./:' ]+")
_ARTICLES: Final = re.compile(r"\b(?:the|an?)\b")
_BLANKS: Final = re.compile(r"\s+")

MONTHS: Final = {
    name: number
    for number, names in enumerate(
        "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|september sep sept|october oct|"
        "november nov|december dec".split("|"),
        start=1,
    )
    for name in names.split()
}


def words(text: str) -> Node:
    """A text answer: a known phrase, a date, or its words."""
    clean = _BLANKS.sub(" ", _CLEAN.sub(" ", text.casefold().replace("_", " "))).strip(" .:'-")
    if clean in _PHRASES:
        return _PHRASES[clean]
    bare = _BLANKS.sub(" ", _ARTICLES.sub(" ", clean)).strip() or clean
    if bare in _PHRASES:
        return _PHRASES[bare]
    return Text(_date(bare) or bare)


_DAY: Final = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?")


def _date(text: str) -> str | None:
    """``january 5 2020``, ``5th of january 2020`` to ``date 2020 1 5``; None when it is no date."""
    parts = [part for part in text.replace(".", " ").split() if part not in {"of", "on"}]
    if not 2 <= len(parts) <= 3 or sum(part in MONTHS for part in parts) != 1:
        return None
    month = next(MONTHS[part] for part in parts if part in MONTHS)
    day, year = "", ""
    for part in parts:
        number = _DAY.fullmatch(part)
        if part in MONTHS:
            continue
        if number and not day:
            day = number[1].lstrip("0")
        elif part.isdigit() and len(part) == 4:
            year = part
        else:
            return None
    return f"date {year or '-'} {month} {day or '-'}"


COMMON_WORDS: Final = frozenset(
    (
        "no yes not one two six ten odd red all any sum day man boy dog cat ace god own now won ton eat tea ate sun mon tue "
        "wed thu fri sat the and for blue even true none east west north south left right both zero up down is it only if"
    ).split()
)
