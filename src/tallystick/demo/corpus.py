"""A harbour's year: a log of three megabytes and a register of vessels, made from a seed.

The same seed gives the same bytes on every machine and every Python: the numbers come from a
generator written here, since that of the standard library is not promised to stay.
"""

from __future__ import annotations

import datetime
from typing import NamedTuple

__all__ = ["QUESTION", "SEED", "expected", "harbour"]

SEED = 2031
QUESTION = "Which vessel was towed in with a damaged propeller, and which company owns it?"

_LOG_BYTES = 3_000_000
_VESSELS = 1_000
_NEW_YEAR = datetime.datetime(2031, 1, 1)  # noqa: DTZ001 (a harbour's own clock)
_MASK = (1 << 64) - 1

_FIRST = (
    "Amber Anchor Bright Calder Cedar Copper Distant Dunmore Eastern Ember Fair Fenwick Gannet "
    "Golden Harrow Hollow Iron Juniper Kestrel Lantern Linden Marble Meadow North Old Orchard "
    "Pale Quiet Red Rowan Sable Silver Stone Tern Upland Velvet Walnut White Winter Yarrow"
).split()
_SECOND = (
    "Arrow Bell Castle Dawn Echo Fern Gate Haven Isle Jewel Kite Lady Morning Nest Oak Pearl "
    "Queen River Rose Spring Star Thistle Trader Union Vale Wave Willow Wren"
).split()
_OWNERS = (
    "Aldous Lines;Barrow and Sons;Coastwise Freight;Dorn Shipping;Eklund Marine;Farkas Cargo;"
    "Greco Brothers;Hoang Transport;Jansen Lines;Lindt Carriers;Moreau Shipping;Northgate Freight;"
    "Okafor Marine;Petrov Lines;Quist and Daughters;Silva Cargo;Tanaka Shipping;Varga Transport"
).split(";")
_FLAGS = "DK EE FI IE IS LT LV NL NO PL SE".split()
_CARGO = (
    "barley bricks cable cement clay coffee cork cotton flour glass granite grain iron jute "
    "lumber machinery oil paper peat salt sand slate steel sugar tea tiles timber wheat wool"
).split()
_CREW = "Abe Barros Castell Dorn Farkas Greco Hoang Ito Jansen Kovacs Okafor Silva Xu".split()

# Vessel, cargo, officer, number, berth, hours.
_ENTRIES = [
    "{v} arrived with {n} tons of {c}; pilot {o}.",
    "{v} left for open water with {n} tons of {c}.",
    "{v} asked for berth {b}; granted by {o}.",
    "{v} took on {n} litres of fuel.",
    "{v}: papers checked by {o}, nothing to note.",
    "{v}: hull inspected by {o}, no damage found.",
    "{v}: propeller cleaned by divers, no damage found.",
    "{v} unloaded {n} tons of {c} in {h} hours.",
    "{v} waited {h} hours for the tide.",
    "{v} reported fog and came in slowly; pilot {o}.",
    "{v} was moved to berth {b} by the harbour tug.",
    "{v} paid {n} crowns in harbour dues to {o}.",
]
_EVENT = "{v} was towed in with a damaged propeller; report signed by {o}."


class _Vessel(NamedTuple):
    """A row of the register."""

    number: str
    name: str
    flag: str
    owner: str
    tons: int


class _Dice:
    """Numbers by splitmix64: a counter, mixed."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, bound: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % bound

    def one_of(self, items: list[str]) -> str:
        return items[self.below(len(items))]


def harbour(seed: int = SEED) -> dict[str, str]:
    """The two texts of a seed, by file name."""
    dice = _Dice(seed)
    vessels = _vessels(dice)
    towed = vessels[dice.below(len(vessels))]
    return {"harbour.log": _log(dice, vessels, towed), "vessels.csv": _register(vessels)}


def expected(seed: int = SEED) -> tuple[str, str]:
    """The vessel and the owner that the question asks for."""
    dice = _Dice(seed)
    vessels = _vessels(dice)
    towed = vessels[dice.below(len(vessels))]
    return towed.number, towed.owner


def _vessels(dice: _Dice) -> list[_Vessel]:
    names = [f"{first} {second}" for first in _FIRST for second in _SECOND]
    return [
        _Vessel(
            number=f"V-{1000 + place * 3}",
            name=names.pop(dice.below(len(names))),
            flag=dice.one_of(_FLAGS),
            owner=dice.one_of(_OWNERS),
            tons=200 + dice.below(9_000),
        )
        for place in range(_VESSELS)
    ]


def _register(vessels: list[_Vessel]) -> str:
    rows = [f"{v.number},{v.name},{v.flag},{v.owner},{v.tons}" for v in vessels]
    return "\n".join(["vessel,name,flag,owner,tons", *rows]) + "\n"


def _log(dice: _Dice, vessels: list[_Vessel], towed: _Vessel) -> str:
    lines: list[str] = []
    size, minute = 0, 0
    while size < _LOG_BYTES:
        minute += 3 + dice.below(18)
        vessel = vessels[dice.below(len(vessels))]
        lines.append(_line(minute, vessel, dice.one_of(_ENTRIES), dice))
        size += len(lines[-1]) + 1
    place = len(lines) // 5 + dice.below(len(lines) // 2)
    stamp = lines[place].partition(" | ")[0]
    event = _EVENT.format(v=towed.number, o=dice.one_of(_CREW))
    lines[place] = f"{stamp} | {event}"
    return "\n".join(lines) + "\n"


def _line(minute: int, vessel: _Vessel, entry: str, dice: _Dice) -> str:
    when = _NEW_YEAR + datetime.timedelta(minutes=minute)
    said = entry.format(
        v=vessel.number,
        c=dice.one_of(_CARGO),
        o=dice.one_of(_CREW),
        n=10 + dice.below(900),
        b=1 + dice.below(14),
        h=1 + dice.below(9),
    )
    return f"{when:%Y-%m-%d %H:%M} | {said}"
