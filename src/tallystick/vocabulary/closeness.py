"""Closeness: which known terms a model may have meant by one that is not known.

Terms are compared by the pairs of neighbouring characters that they share. Which terms are compared
at all, some dozens of ten thousand, is found by the rarest runs of three characters of what was
written: a slip spoils at most four of them, and more than that are always asked for. Of the terms
compared, those that are few slips away come first (a slip is a character too many, missing, wrong,
or swapped with its neighbour), then those that share at least half of their pairs. A term whose
last part is the whole of what was written comes before both: `load` means `skills.load`. Ties are
in the order of the terms.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from tallystick.vocabulary.thesaurus import folded

__all__ = ["Closeness", "slips"]

_CHARS_MAX = 64
_ALIKE_MIN = 0.5
# How many runs are asked for at least, and how many terms they may name before no more are.
_RUNS_MIN, _NAMED_MAX = 6, 1_000
_LOOKED_AT_MAX, _COMPARED_MAX = 32, 6


class Closeness:
    """An index of terms by what they look like."""

    def __init__(self, terms: Iterable[str]) -> None:
        self._terms = sorted(set(terms))
        self._folded = [folded(term)[:_CHARS_MAX] for term in self._terms]
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        self._tails: defaultdict[str, list[int]] = defaultdict(list)
        # The pairs of each term as bits of a number: what two share is counted in one step.
        self._bits: dict[str, int] = {}
        self._masks: list[int] = []
        for place, text in enumerate(self._folded):
            mask = 0
            for run in _runs(text, 3):
                self._places[run].append(place)
            for pair in _runs(text, 2):
                mask |= self._bits.setdefault(pair, 1 << len(self._bits))
            self._masks.append(mask)
            if "." in text:
                self._tails[text.rpartition(".")[2]].append(place)

    def near(self, term: str, *, count: int = 3) -> tuple[str, ...]:
        """At most `count` terms that look like this one, the closest first."""
        text = folded(term[:_CHARS_MAX])[:_CHARS_MAX]
        ranked = [((-1, 0.0), place) for place in self._tails.get(text, ())]
        taken = {place for _, place in ranked}
        most = 1 if len(text) <= 4 else 2 if len(text) <= 8 else 3
        for unlike, place in self._compared(text):
            if place in taken:
                continue
            away = slips(text, self._folded[place], most=most)
            if away <= most or unlike <= 1 - _ALIKE_MIN:
                ranked.append(((away, unlike), place))
        ranked.sort()
        return tuple(self._terms[place] for _, place in ranked[:count])

    def _compared(self, text: str) -> list[tuple[float, int]]:
        """The terms that share the most pairs, each with the share that it does not."""
        pairs = _runs(text, 2)
        asked_for = (self._places.get(run) for run in _runs(text, 3))
        found = [places for places in asked_for if places is not None]
        # By length and then by what they hold: the order of a set is another in each process.
        found.sort(key=lambda places: (len(places), places))
        named: Counter[int] = Counter()
        total = 0
        for asked, places in enumerate(found, start=1):
            total += len(places)
            if asked > _RUNS_MIN and total > _NAMED_MAX:
                break
            named.update(places)
        least = min(sorted(named.values())[-_LOOKED_AT_MAX:], default=0)
        mask = sum(self._bits.get(pair, 0) for pair in pairs)
        compared = [
            (self._unlike(mask, len(pairs), place), place)
            for place, shared in named.items()
            if shared >= least
        ]
        compared.sort()
        return compared[:_COMPARED_MAX]

    def _unlike(self, mask: int, size: int, place: int) -> float:
        other = self._masks[place]
        return 1 - 2 * (mask & other).bit_count() / (size + other.bit_count())


def slips(one: str, other: str, *, most: int) -> int:
    """How many slips lead from one text to the other; `most` + 1 if it is more than `most`."""
    one, other = _differing(one, other)
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        row = [i] + [most + 1] * len(other)
        # Further from the diagonal than `most` there is nothing of at most that many slips.
        for j in range(max(1, i - most), min(len(other), i + most) + 1):
            b = other[j - 1]
            cost = last[j - 1] if a == b else 1 + min(last[j - 1], last[j], row[j - 1])
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row[j] = cost
        if min(row) > most and i > 1 and min(last) > most:
            return most + 1
        before, last = last, row
    return min(last[len(other)], most + 1)


def _differing(one: str, other: str) -> tuple[str, str]:
    """Two texts without what they begin and end with in common, which costs no slips."""
    shorter = min(len(one), len(other))
    start = 0
    while start < shorter and one[start] == other[start]:
        start += 1
    end = 0
    while end < shorter - start and one[-1 - end] == other[-1 - end]:
        end += 1
    return one[start : len(one) - end], other[start : len(other) - end]


def _runs(text: str, length: int) -> set[str]:
    """The runs of so many characters; also the beginning and the end are in as many."""
    edge = "\0" * (length - 1)
    padded = f"{edge}{text}{edge}"
    return {padded[place : place + length] for place in range(len(padded) - length + 1)}
