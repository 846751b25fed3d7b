"""The short list: candidates out of a scope that is too large to rank note by note.

Two lists make it, and each follows from the notes of the scope alone: the best by the words of the
query, and the nearest by one bit for each component of their vectors. Together they are ranked as a
scope of their own, with the statistics of the whole. What is the same as for the whole: every
lane's value for a note of the list, and the floor above which notes lend to their neighbours. What
is not: a note that is on neither list is not found, even if its neighbours are good.

Rule 1: of equally good notes, those with the smaller ids are taken. So it does not matter how the
lists are made: by an index that has followed the log for days (`standing`), or by reading the file
for this one query (`scan`).
Rule 2: what is figured here is named by `RULES`, which stands in receipts. Whoever changes what
comes out, by another limit too, changes the name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tallystick.memory.asked import QUERY_CHARS_MAX, Asked, ask
from tallystick.memory.bm25 import Bm25, Statistics, count_statistics
from tallystick.memory.fusion import common_terms
from tallystick.memory.profile import Profile
from tallystick.memory.scope import Embedded, Embedder, NoteFields
from tallystick.memory.terms import words

__all__ = [
    "CANDIDATES",
    "LARGE",
    "RULES",
    "Once",
    "Shortlist",
    "Whole",
    "full_list",
    "guarded",
    "shortlist",
    "term_scores",
]

RULES = "words-codes-2"
# Scopes of more notes than this have a short list. Others are ranked note by note.
LARGE = 2_000
# Of each list. A code is coarse: among fewer than 300 some of the nearest ten are missed.
CANDIDATES = 300
# The guard: among more notes than this, terms that more than this share of them have are not looked
# for, unless the query has no others. Reading them costs most and tells least.
GUARDED_NOTES = 50_000
GUARDED_SHARE = 0.02
# Scores are compared to so many parts of one: their last bits differ between machines.
PARTS = 1e9

Number = TypeVar("Number")


class Whole(Protocol):
    """A scope of very many notes, by their numbers, as the short list asks about it."""

    @property
    def notes(self) -> int: ...

    def authors(self, said: frozenset[str]) -> Iterable[str]:
        """The authors of its notes, at least those whose names have one of these words."""
        ...

    def best(
        self, asked: Sequence[str], *, count: int, bm25: Bm25
    ) -> tuple[Sequence[int], Statistics]:
        """The notes with the best sums of `term_scores`, and the statistics of the scope."""
        ...

    def near(self, vector: bytes, *, count: int) -> Sequence[int]:
        """The notes of the vectors that differ in sign in the fewest components."""
        ...

    def counts(self, numbers: Sequence[int], asked: Sequence[str]) -> Sequence[Mapping[str, int]]:
        """For each note how often it has each term asked, and its other terms as the term ``."""
        ...

    def fields(self, numbers: Sequence[int]) -> Sequence[tuple[str, NoteFields]]:
        """The id of each note, and what ranking reads of it but for its text and relations."""
        ...

    def within(self, numbers: Collection[int]) -> Collection[int]:
        """Those of some notes that are of this scope."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """The notes to rank, how often each has the terms, and what to rank them with.

    `statistics` are of the whole scope, and `asked` is the query as its authors make it out.
    """

    numbers: tuple[int, ...]
    counts: Mapping[int, Mapping[str, int]]
    statistics: Statistics
    asked: Asked

    def with_more(self, numbers: Collection[int], whole: Whole) -> Shortlist:
        """The same list with further notes of the same scope."""
        more = sorted(set(whole.within(numbers)) - self.counts.keys())
        counted = dict(zip(more, whole.counts(more, self.asked.terms), strict=True))
        return Shortlist(
            numbers=tuple(sorted((*self.numbers, *more))),
            counts={**self.counts, **counted},
            statistics=self.statistics,
            asked=self.asked,
        )


def shortlist(
    query: str, whole: Whole, *, profile: Profile, embedder: Embedder | None
) -> Shortlist:
    """The candidates for a query. `embedder` is None where there are no vectors to compare."""
    asked = _asked(query, whole)
    by_vectors = profile.dense and any(char.isalnum() for char in asked.text)
    # Scores by words are exact: beside vectors, half as many are enough.
    count = -(-CANDIDATES // 2) if by_vectors and embedder is not None else CANDIDATES
    found, statistics = whole.best(asked.terms, count=count, bm25=profile.bm25)
    chosen = set(found if profile.lexical else ())
    if by_vectors and embedder is not None:
        common = common_terms(asked.terms, statistics, profile)
        vector = embedder.embed(asked.text_without(common)).vector
        chosen.update(whole.near(vector, count=CANDIDATES))
    numbers = tuple(sorted(chosen))
    counts = whole.counts(numbers, asked.terms)
    return Shortlist(
        numbers=numbers,
        counts=dict(zip(numbers, counts, strict=True)),
        statistics=statistics,
        asked=asked,
    )


def full_list(query: str, whole: Whole, numbers: Sequence[int]) -> Shortlist:
    """All notes of a scope, which are `numbers`."""
    asked = _asked(query, whole)
    counts = whole.counts(numbers, asked.terms)
    return Shortlist(
        numbers=tuple(numbers),
        counts=dict(zip(numbers, counts, strict=True)),
        statistics=count_statistics(asked.terms, counts),
        asked=asked,
    )


def _asked(query: str, whole: Whole) -> Asked:
    text = query[:QUERY_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")
    return ask(query, authors=whole.authors(frozenset(words(text))))


def guarded(asked: Sequence[str], statistics: Statistics) -> list[str]:
    """The terms to look for: those that a note has, and that do not have too many."""
    known = [term for term in asked if statistics.frequency[term]]
    if statistics.notes <= GUARDED_NOTES:
        return known
    many = GUARDED_SHARE * statistics.notes
    rare = [term for term in known if statistics.frequency[term] <= many]
    # A query of common words only is answered by the least common of them.
    return rare or sorted(known, key=lambda term: (statistics.frequency[term], term))[:1]


def term_scores(
    often: Number, length: Number, *, rarity: float, usual: float, bm25: Bm25
) -> Number:
    """What a term adds to the score of a note that has it so often among so many terms.

    For numbers and for arrays of them: the same operations in the same order, so the same bits.
    """
    longer = length / usual  # type: ignore[operator]
    held = bm25.saturation * (1 - bm25.length + bm25.length * longer)
    return rarity * (often * (bm25.saturation + 1) / (often + held))  # type: ignore[operator, return-value]


class Once:
    """An embedder that is asked once for each text, however often the text is needed."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._made: dict[str, Embedded] = {}

    @property
    def digest(self) -> str:
        return self._embedder.digest

    def embed(self, text: str) -> Embedded:
        if text not in self._made:
            self._made[text] = self._embedder.embed(text)
        return self._made[text]


_: type[Embedder] = Once
