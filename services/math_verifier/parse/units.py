"""Units: dimension and exact scale, as far as answers use them."""

from __future__ import annotations

from fractions import Fraction
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
mph     mph 1
kmh     kmh 1, kph 1
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
votes cards games outcomes of solutions integers values triangles pairs dozen
"""
COUNTED: Final = frozenset(_COUNTED.split())
"""Words that count things, or belong to a unit."""
CURRENCY_SIGNS: Final = frozenset(("\\$", "$", "€", "£", "¥", "₹"))
CURRENCY_COMMANDS: Final = {
    "pounds": "£", "euro": "€", "yen": "¥", "textdollar": "$", "texteuro": "€", "textyen": "¥", "textsterling": "£",
}  # fmt: skip


def unit_of(word: str) -> tuple[str, Fraction] | None:
    """Dimension and scale of a unit word, singular or plural, or None."""
    for candidate in (word, word.lower(), word.lower().removesuffix("s")):
        if candidate in _UNITS:
            return _UNITS[candidate]
    return None


def dimension(unit: str) -> tuple[tuple[str, int], Fraction] | None:
    """Dimension with its power, and the scale to its base, of a unit as written (``cm^2``, ``square feet``).

    None for words that are no known unit, and for quotients.
    """
    power = 1
    found: tuple[str, Fraction] | None = None
    for word in unit.replace("^", " ^").split():
        bare = word.strip(".,()")
        if bare.lower() in {"square", "sq"}:
            power = 2
        elif bare.lower() in {"cubic", "cu"}:
            power = 3
        elif bare.startswith("^") and bare[1:].isdigit() and len(bare) == 2:
            power = int(bare[1:])
        elif bare in {"/", "per"}:
            return None
        elif found is None:
            found = unit_of(bare)
            if found is None:
                return None
    if found is None or power == 0:
        return None
    return (found[0], power), found[1] ** power
