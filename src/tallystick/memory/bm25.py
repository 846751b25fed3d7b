"""BM25, exact over any set of notes: number, frequencies and lengths are that set's own.

A full-text index keeps these figures for everything it holds, so what it answers for a part, or for
an earlier time, changes with every later note. Here they are counted when they are asked for.

The score is given as a share of the best there could be: 1 is a note that is nothing but the words
that were asked. So scores of different queries and sets can be compared and added to others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tallystick.memory.terms import terms

__all__ = ["Bm25", "Statistics", "asked_terms", "bm25_scores", "count_statistics", "count_terms"]

# More different terms than this are not a question. The first ones count.
_ASKED_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Bm25:
    """How soon a repeated word stops counting, and how much a long note is held back."""

    saturation: float = 0.9
    length: float = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a set of notes is like: how many, how many terms in all, how many have each term."""

    notes: int
    terms: int
    frequency: Mapping[str, int]

    def rarity(self, term: str) -> float:
        """How much a term says: much if few notes have it, never less than nothing."""
        having = self.frequency.get(term, 0)
        return math.log(1 + (self.notes - having + 0.5) / (having + 0.5))

    @property
    def length(self) -> float:
        """The usual number of terms of a note."""
        return self.terms / self.notes if self.terms else 1.0


def count_terms(text: str) -> dict[str, int]:
    """The terms of a text, and how often each is in it."""
    return dict(Counter(terms(text)))


def asked_terms(query: str, *, without: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The different terms of a query in their order, without some."""
    asked = dict.fromkeys(term for term in terms(query) if term not in without)
    return tuple(asked)[:_ASKED_MAX]


def count_statistics(asked: Iterable[str], counts: Sequence[Mapping[str, int]]) -> Statistics:
    """The statistics of a set of notes, as far as a query needs them."""
    frequency = {term: sum(term in count for count in counts) for term in asked}
    total = sum(sum(count.values()) for count in counts)
    return Statistics(notes=len(counts), terms=total, frequency=frequency)


def bm25_scores(
    asked: Sequence[str],
    counts: Sequence[Mapping[str, int]],
    statistics: Statistics,
    bm25: Bm25,
) -> list[float]:
    """For each note the share, from 0 to 1, of what a note could score for these terms.

    A term that no note has is not held against any.
    """
    known = [term for term in asked if statistics.frequency.get(term, 0) > 0]
    rarity = [(term, statistics.rarity(term)) for term in known]
    more = bm25.saturation + 1
    best = math.fsum(rare for _, rare in rarity) * more
    if best <= 0:
        return [0.0] * len(counts)
    usual, short = statistics.length, 1 - bm25.length
    scores: list[float] = []
    for count in counts:
        found = [(rare, count[term]) for term, rare in rarity if term in count]
        if found:
            held = bm25.saturation * (short + bm25.length * (sum(count.values()) / usual))
            score = math.fsum([rare * (often * more / (often + held)) for rare, often in found])
            scores.append(score / best)
        else:
            scores.append(0.0)
    return scores
