"""Units: dimension and exact scale, as far as answers use them."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

_TABLE: Final = """
length  m 1, meter 1, metre 1, mm 0.001, millimeter 0.001, millimetre 0.001, cm 0.01, centimeter 0.01, centimetre 0.01
length  dm 0.1, km 1000, kilometer 1000, kilometre 1000, inch 0.0254, inche 0.0254, in 0.0254, foot 0.3048, feet 0.3048
length  ft 0.3048, yard 0.9144, yd 0.9144, mile 1609.344, mi 1609.344
mass    kg 1, kilogram 1, mg 0.000001, g 0.001, gram 0.001, ton 1000, tonne 1000, lb 0.45359237, pound 0.45359237
mass    oz 0.028349523125, ounce 0.028349523125
time    s 1, sec 1, second 1, ms 0.001, min 60, minute 60, h 3600, hr 3600, hour 3600, day 86400, week 604800
month   month 1, year 12, yr 12
volume  l 1, L 1, liter 1, litre 1, ml 0.001, mL 0.001, milliliter 0.001
gallon  gallon 1, gal 1
cup     cup 1
pint    pint 1
quart   quart 1
dollar  $ 1, dollar 1, USD 1, cent 0.01, ¢ 0.01
euro    € 1, euro 1, EUR 1
pounds  £ 1, GBP 1
yen     ¥ 1, yen 1
yuan    yuan 1
rupee   ₹ 1, rupee 1, Rs 1
degree  degree 1, deg 1
radian  radian 1, rad 1
hertz   hertz 1, Hz 1, kHz 1000, MHz 1000000
joule   joule 1, kJ 1000, kilojoule 1000
watt    watt 1, kW 1000, kilowatt 1000
pascal  pascal 1, Pa 1, kPa 1000
newton  newton 1, kN 1000
mole    mole 1, mol 1
volt    volt 1
ampere  ampere 1, amp 1
ohm     ohm 1
celsius celsius 1
fahrenheit fahrenheit 1
percent percent 1, percentage 1, pct 1
"""


def _read(table: str) -> dict[str, tuple[str, Fraction]]:
    units: dict[str, tuple[str, Fraction]] = {}
    for line in table.strip().splitlines():
        dimension, entries = line.split(maxsplit=1)
        for entry in entries.split(", "):
            name, scale = entry.split()
            units[name] = (dimension, Fraction(scale))
    return units


_UNITS: Final = _read(_TABLE)
_COUNTED: Final = """
unit units square cubic sq cu per each people person apples apple books book students student ways way times points
point sides side items item pieces piece coins coin marbles tickets children boys girls more hours pages page miles
votes cards games outcomes of solutions integers values triangles pairs dozen pts pt
"""
COUNTED: Final = frozenset(_COUNTED.split())
"""Words that count things, or belong to a unit."""
CURRENCY_SIGNS: Final = frozenset(("\\$", "$", "€", "£", "¥", "₹"))
CURRENCY_COMMANDS: Final = {
    "pounds": "£", "euro": "€", "yen": "¥", "textdollar": "$", "texteuro": "€", "textyen": "¥", "textsterling": "£",
}  # fmt: skip


def unit_of(word: str) -> tuple[str, Fraction] | None:
    """Dimension and scale of a unit word, singular or plural, or None."""
    if word in _COMPOUND:
        return word, Fraction(1)
    for candidate in (word, word.lower(), word.lower().removesuffix("s")):
        if candidate in _UNITS:
            return _UNITS[candidate]
    return None


Dimension = tuple[tuple[str, int], ...]
_PIECES: Final = re.compile(r"[A-Za-zµ]+|[$€£¥₹¢]|\^\{?(-?\d)\}?|/|[^\s.,()*·]")
_COMPOUND: Final = {"mph": "mile / hour", "kmh": "km / hour", "kph": "km / hour"}


@lru_cache(maxsize=1024)
def dimension(unit: str) -> tuple[Dimension, Fraction] | None:
    """Powers of base dimensions, and the scale to their bases, of a unit as written (``cm^2``, ``miles per hour``).

    None where a word is no known unit.
    """
    powers: dict[str, int] = {}
    scale = Fraction(1)
    times, pending, last = 1, 0, ""
    for piece in _PIECES.finditer(" ".join(_COMPOUND.get(word, word) for word in unit.split())):
        text = piece[0]
        if text.lower() in {"square", "sq", "cubic", "cu"}:
            pending = 2 if text.lower() in {"square", "sq"} else 3
        elif text in {"/", "per"}:
            times = -1
        elif piece[1]:
            if not last:
                return None
            extra = int(piece[1]) - 1
            found = unit_of(last)
            assert found is not None
            powers[found[0]] += extra * times
            scale *= found[1] ** (extra * times)
        else:
            found = unit_of(text)
            if found is None:
                return None
            power = (pending or 1) * times
            powers[found[0]] = powers.get(found[0], 0) + power
            scale *= found[1] ** power
            last, pending = text, 0
    if "volume" in powers:
        count = powers.pop("volume")
        powers["length"] = powers.get("length", 0) + 3 * count
        scale /= Fraction(1000) ** count
    result = tuple(sorted((name, power) for name, power in powers.items() if power))
    return (result, scale) if result else None
