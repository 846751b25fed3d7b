"""Generate a harbour's log of one year: three megabytes of text, made from a seed.

The same seed gives the same bytes on every machine and every Python. The numbers come from a
generator written here, because Python does not promise that of its standard library to stay the
same.
"""

from __future__ import annotations

import datetime

SEED = 2031
QUESTION = "Which vessel was towed in with a damaged propeller, and which officer was on duty?"

_LOG_BYTES = 3_000_000
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
_CARGO = (
    "barley bricks cable cement clay coffee cork cotton flour glass granite grain iron jute "
    "lumber machinery oil paper peat salt sand slate steel sugar tea tiles timber wheat wool"
).split()
_CREW = "Abe Barros Castell Dorn Farkas Greco Hoang Ito Jansen Kovacs Okafor Silva".split()

# The fields are c: cargo, n: number, b: berth, h: hours.
_ENTRIES = [
    "arrived with {n} tons of {c}",
    "left for open water with {n} tons of {c}",
    "asked for berth {b}",
    "took on {n} litres of fuel",
    "papers checked; nothing to note",
    "hull inspected; no damage found",
    "propeller cleaned by divers; no damage found",
    "unloaded {n} tons of {c} in {h} hours",
    "waited {h} hours for the tide",
    "reported fog and came in slowly",
    "was moved to berth {b} by the harbour tug",
    "paid {n} crowns in harbour dues",
]
_EVENT = "was towed in with a damaged propeller"


class _Dice:
    """A random number generator (splitmix64): a counter, mixed."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, bound: int) -> int:
        """Return a number from 0 to `bound` - 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % bound

    def one_of(self, items: list[str]) -> str:
        return items[self.below(len(items))]


def harbour(seed: int = SEED) -> dict[str, str]:
    """Return the log of a seed by its file name: one file of about three megabytes."""
    dice = _Dice(seed)
    # First, so that `expected_answer` can compute it without generating the log.
    towed, officer = _event(dice)
    lines: list[str] = []
    size, minute = 0, 0
    while size < _LOG_BYTES:
        minute += 3 + dice.below(18)
        when = _NEW_YEAR + datetime.timedelta(minutes=minute)
        lines.append(f"{when:%Y-%m-%d %H:%M},{_vessel(dice)},{_entry(dice)},{dice.one_of(_CREW)}")
        size += len(lines[-1]) + 1
    place = len(lines) // 5 + dice.below(len(lines) // 2)
    time = lines[place].partition(",")[0]
    lines[place] = f"{time},{towed},{_EVENT},{officer}"
    return {"harbour.csv": "\n".join(["time,vessel,entry,officer", *lines]) + "\n"}


def expected_answer(seed: int = SEED) -> tuple[str, str]:
    """Return the vessel and the officer that the question asks for."""
    return _event(_Dice(seed))


def _event(dice: _Dice) -> tuple[str, str]:
    return _vessel(dice), dice.one_of(_CREW)


def _vessel(dice: _Dice) -> str:
    return f"{dice.one_of(_FIRST)} {dice.one_of(_SECOND)}"


def _entry(dice: _Dice) -> str:
    return dice.one_of(_ENTRIES).format(
        c=dice.one_of(_CARGO), n=10 + dice.below(900), b=1 + dice.below(14), h=1 + dice.below(9)
    )
