"""A scan: the lists of a short list, read from the file for one query.

For whoever has no standing index: a command that ends with its answer, somebody who checks a
receipt, or a machine without the extra `memory`. It reads every note of the scope once, which for a
million takes seconds, and comes to what the index comes to. Which notes have a word is asked of the
full-text index, and nothing else is: its own statistics are of everything it holds, and change with
every later note. Every word is spelled in letters and digits and quoted: a query cannot be read as
anything but words.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from tallystick.core.errors import UsageError
from tallystick.memory.bm25 import Bm25, Statistics
from tallystick.memory.projection import spelled, unspelled
from tallystick.memory.scope import NoteFields
from tallystick.memory.selection import Filters, in_batches, scope_numbers
from tallystick.memory.shortlist import PARTS, Whole, guarded, term_scores
from tallystick.memory.vectors import model_at, vector_rows_at

__all__ = ["Scan", "notes_having"]


class Scan:
    """The notes that a reader sees as of a place and a moment, in one state of the file."""

    def __init__(
        self, db: sqlite3.Connection, *, reader: str | None, filters: Filters, seq: int, at: int
    ) -> None:
        self._db = db
        self._seq = int(seq)
        found = scope_numbers(db, reader=reader, filters=filters, seq=seq, at=at)
        self._lengths = dict.fromkeys(found, 0)
        for number, length in db.execute(
            "SELECT number, CASE terms WHEN '' THEN 0 "
            "ELSE length(terms) - length(replace(terms, ' ', '')) + 1 END FROM told"
        ):
            if number in self._lengths:
                self._lengths[number] = length

    @property
    def notes(self) -> int:
        return len(self._lengths)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all of them."""
        return list(self._lengths)

    def authors(self, said: frozenset[str]) -> list[str]:
        """All of them, whatever was said."""
        found = self._db.execute("SELECT number, author FROM note WHERE author IS NOT NULL")
        return sorted({author for number, author in found if number in self._lengths})

    def best(self, asked: Sequence[str], *, count: int, bm25: Bm25) -> tuple[list[int], Statistics]:
        having = {
            term: [each for each in notes_having(self._db, term) if each in self._lengths]
            for term in asked
        }
        statistics = Statistics(
            notes=len(self._lengths),
            terms=sum(self._lengths.values()),
            frequency={term: len(found) for term, found in having.items()},
        )
        looked_for = guarded(asked, statistics)
        some = sorted({number for term in looked_for for number in having[term]})
        scores = [
            self._score(number, counts, looked_for, statistics, bm25)
            for number, counts in zip(some, self.counts(some, looked_for), strict=True)
        ]
        # Rounded to a whole number, as the index does: half goes to the even neighbour.
        parts = [round(score * PARTS) for score in scores]
        return self._first(dict(zip(some, parts, strict=True)), count), statistics

    def near(self, vector: bytes, *, count: int) -> list[int]:
        model = model_at(self._db, self._seq)
        if model is None:
            return []
        signs = _Signs(model[1])
        wanted = signs.of(vector)
        if wanted is None:
            raise UsageError("vectors of different models or lengths cannot be compared")
        rows = (
            (number, signs.of(each))
            for number, each in vector_rows_at(self._db, self._seq)
            if number in self._lengths
        )
        found = [((code ^ wanted).bit_count(), number) for number, code in rows if code is not None]
        if len(found) > count:
            last = heapq.nsmallest(count, (far for far, _ in found))[-1]
            equal = [number for far, number in found if far == last]
            nearer = [number for far, number in found if far < last]
            # A note may be there by several of its windows, and each of them counts.
            ids = self._ids(equal)
            equal.sort(key=ids.__getitem__)
            return sorted({*nearer, *equal[: count - len(nearer)]})
        return sorted({number for _, number in found})

    def counts(self, numbers: Sequence[int], asked: Sequence[str]) -> list[Mapping[str, int]]:
        told = dict(in_batches(self._db, "SELECT number, terms FROM told WHERE number", numbers))
        return [_counted(told.get(number, ""), asked) for number in numbers]

    def fields(self, numbers: Sequence[int]) -> list[tuple[str, NoteFields]]:
        select = (
            "SELECT number, id, author, thread_id, position, created_at, importance "
            f"FROM note JOIN state USING (number) WHERE seq_from <= {self._seq} "
            f"AND {self._seq} < seq_to AND number"
        )
        found = {
            number: (
                id,
                NoteFields(
                    text="",
                    author=author or "",
                    session=thread or "",
                    position=position,
                    created_at=created_at,
                    importance=importance,
                ),
            )
            for number, id, author, thread, position, created_at, importance in in_batches(
                self._db, select, numbers
            )
        }
        return [found[number] for number in numbers]

    def within(self, numbers: Collection[int]) -> list[int]:
        return [number for number in numbers if number in self._lengths]

    def _score(
        self,
        number: int,
        counts: Mapping[str, int],
        looked_for: Sequence[str],
        statistics: Statistics,
        bm25: Bm25,
    ) -> float:
        score = 0.0
        for term in looked_for:
            if term in counts:
                score += term_scores(
                    float(counts[term]),
                    float(self._lengths[number]),
                    rarity=statistics.rarity(term),
                    usual=statistics.length,
                    bm25=bm25,
                )
        return score

    def _first(self, scores: Mapping[int, int], count: int) -> list[int]:
        if len(scores) <= count:
            return sorted(scores)
        least = heapq.nlargest(count, scores.values())[-1]
        better = [number for number, score in scores.items() if score > least]
        equal = [number for number, score in scores.items() if score == least]
        ids = self._ids(equal)
        return sorted((*better, *sorted(equal, key=ids.__getitem__)[: count - len(better)]))

    def _ids(self, numbers: Sequence[int]) -> dict[int, str]:
        return dict(in_batches(self._db, "SELECT number, id FROM note WHERE number", numbers))


def notes_having(db: sqlite3.Connection, term: str) -> Iterator[int]:
    """The numbers of the notes of a store that have a term, as `terms.terms` makes them."""
    # Quoted: nothing of a word is an operator.
    asked = (f'"{spelled(term)}"',)
    for (number,) in db.execute("SELECT rowid FROM words WHERE words MATCH ?", asked):
        yield number


class _Signs:
    """Codes as whole numbers: of each component one bit, which says whether it is above zero."""

    def __init__(self, dimensions: int) -> None:
        self._size = 2 * dimensions
        self._low = int.from_bytes(b"\xff\x7f" * dimensions, "little")
        self._high = int.from_bytes(b"\x00\x80" * dimensions, "little")

    def of(self, vector: bytes) -> int | None:
        """The code of a vector in fixed point, None if it has another length."""
        if len(vector) != self._size:
            return None
        whole = int.from_bytes(vector, "little")
        # In each component: adding the most there is reaches the sign only from above zero.
        return ((whole & self._low) + self._low) & ~whole & self._high


def _counted(told: str, asked: Sequence[str]) -> dict[str, int]:
    found = unspelled(told)
    counts = Counter(found)
    kept = {term: counts[term] for term in asked if term in counts}
    kept[""] = len(found) - sum(kept.values())
    return kept


_: type[Whole] = Scan
