"""Drawn data: names, words, dates, amounts and layouts, all from one seeded source per task.

Most names are coined from syllables, so no two seeds share them and none of them means anything.
"""

from __future__ import annotations

import csv
import datetime
import io
import random
from collections.abc import Sequence

__all__ = [
    "NOUNS",
    "coined",
    "csv_text",
    "dates",
    "elsewhere",
    "identifiers",
    "people",
    "recased",
    "sentences",
    "source",
    "with_blank_lines",
]


def _words(text: str) -> list[str]:
    return text.split()


_ONSETS = _words("b br c d dr f g gl h j k l m n p pr r s st t tr v z")
_VOWELS = _words("a e i o u ai ea oa")
_CODAS = ["", "", "", "l", "n", "r", "s", "nd", "rt"]
# Shorter ones are often words after all.
_COINED_CHARS_MIN = 6
_FIRST = _words(
    "Ada Aiko Alma Amir Anton Bea Boris Carla Chidi Dalia Dmitri Elif Emil Farah Gita Hana Hugo "
    "Ines Ivan Jonas Kira Lars Leila Luca Mara Milan Nadia Noor Olga Omar Paula Priya Rosa Samir "
    "Sofia Tariq Uma Vera Wei Yara Yusuf Zoe"
)
_LAST = _words(
    "Abe Barros Castell Dorn Eklund Farkas Greco Hoang Ito Jansen Kovacs Lindt Moreau Nakata "
    "Okafor Petrov Quist Rahman Silva Tanaka Ueda Varga Weiss Xu Yilmaz Zeman"
)
NOUNS = _words(
    "amber anchor basket beacon blanket bottle bracket bridge bucket button candle canvas carpet "
    "copper cotton curtain feather fiddle garden ginger hammer harbor helmet jacket kettle ladder "
    "lantern marble meadow mirror needle orchard paddle pepper pillow pocket ribbon saddle silver "
    "spindle stable tunnel velvet walnut window"
)
_VERBS = _words("moved checked stored counted cleaned painted shipped opened closed sorted")
_PLACES = _words("shelf hall yard cellar office depot gate kitchen attic dock")
_MOODS = _words("slowly twice again quietly early late together alone")


def source(name: str, seed: int) -> random.Random:
    """The source of one task's data: tasks of one seed do not depend on each other."""
    return random.Random(f"{name}/{seed}")


def coined(rng: random.Random, count: int, *, syllables: int = 2) -> list[str]:
    """Different invented words, capitalized."""
    made: dict[str, None] = {}
    while len(made) < count:
        parts = [
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables)
        ]
        word = "".join(parts)
        if len(word) >= _COINED_CHARS_MIN:
            made[word.capitalize()] = None
    return list(made)


def people(rng: random.Random, count: int) -> list[str]:
    """Different people, by first and last name."""
    pairs = [f"{first} {last}" for first in _FIRST for last in _LAST]
    return rng.sample(pairs, count)


def identifiers(rng: random.Random, count: int) -> list[str]:
    """Different identifiers of one form, in no order."""
    prefix = "".join(rng.sample("ABCDEFGHKLMNPRSTVW", rng.choice([1, 2])))
    joint = rng.choice(["-", "", "_"])
    return [f"{prefix}{joint}{number}" for number in rng.sample(range(10_000, 100_000), count)]


def dates(
    rng: random.Random, count: int, *, first: datetime.date, days: int
) -> list[datetime.date]:
    """Days drawn from a span, in no order, with repeats."""
    return [first + datetime.timedelta(days=rng.randrange(days)) for _ in range(count)]


def sentences(rng: random.Random, count: int) -> list[str]:
    """Sentences that say little."""
    who = [name.split()[0] for name in people(rng, 12)] + ["somebody", "the crew", "nobody"]
    made = []
    for _ in range(count):
        thing, other = rng.sample(NOUNS, 2)
        said = rng.choice(
            [
                f"{rng.choice(who)} {rng.choice(_VERBS)} the {thing} {rng.choice(_MOODS)}",
                f"the {thing} in the {rng.choice(_PLACES)} was {rng.choice(_VERBS)}",
                f"{rng.choice(who)} asked about the {thing} and the {other}",
                f"no {thing} is left near the {rng.choice(_PLACES)}, only the {other}",
            ]
        )
        made.append(said[0].upper() + said[1:] + ".")
    return made


def recased(rng: random.Random, word: str) -> str:
    """The same word in upper, lower or title case."""
    return rng.choice([word.lower(), word.upper(), word.title()])


def elsewhere(rng: random.Random, count: int) -> int:
    """A place among so many that no look at the head, the middle or the tail shows."""
    share = rng.choice([rng.uniform(0.08, 0.42), rng.uniform(0.58, 0.92)])
    return int(count * share)


def csv_text(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as comma-separated text; fields are quoted where they must be."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def with_blank_lines(rng: random.Random, text: str, *, count: int) -> str:
    """The same lines with some empty ones between them, never before the first."""
    lines = text.splitlines()
    for _ in range(count):
        lines.insert(rng.randrange(2, len(lines)), "")
    return "\n".join(lines) + "\n"
