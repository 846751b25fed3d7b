"""Postings: which notes have a term, for scopes too large to read every note for each query.

The figures are counted over the mask, as in `bm25`, so a filter or an earlier time ranks as if only
its notes were there. Over so many notes that it matters, terms that very many notes have are not
looked for, unless the query has no others: reading them costs most and tells least.

Needs the extra `memory`.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tallystick.core.errors import UsageError
from tallystick.memory.bm25 import Bm25, Statistics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["GUARDED_NOTES", "Postings"]

# The guard: among more notes than this, terms that more than this share of them have.
GUARDED_NOTES = 50_000
_GUARDED_SHARE = 0.02
_OFTEN_MAX = 65_535


class Postings:
    """Terms of notes by number, from 0 on, in the order in which they are added."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._lengths = array("I")
        self._terms = 0
        # Ids are made in the order of time, so this nearly always holds, and saves comparing them.
        self._ascending = True
        self._notes: dict[str, array[int]] = {}
        self._often: dict[str, array[int]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Sequence[str]:
        return self._ids

    def add(self, id: str, counts: Mapping[str, int]) -> int:
        """Add a note by its terms (`bm25.count_terms`). Returns its number."""
        number = len(self._ids)
        self._ascending = self._ascending and (number == 0 or self._ids[-1] < id)
        self._ids.append(id)
        self._lengths.append(sum(counts.values()))
        self._terms += self._lengths[-1]
        for term, often in counts.items():
            if term not in self._notes:
                self._notes[term] = array("I")
                self._often[term] = array("H")
            self._notes[term].append(number)
            self._often[term].append(min(often, _OFTEN_MAX))
        return number

    def best(
        self,
        asked: Sequence[str],
        *,
        count: int,
        mask: NDArray[np.bool_] | None = None,
        bm25: Bm25 | None = None,
    ) -> tuple[list[int], Statistics]:
        """The numbers of the best notes under the mask, ascending, and the mask's statistics.

        Of equally good ones those with the smaller ids are taken.
        """
        import numpy as np

        if mask is not None and len(mask) != len(self._ids):
            raise UsageError(f"a mask of {len(mask):,} for {len(self._ids):,} notes")
        lengths = np.frombuffer(self._lengths, dtype=np.uint32)
        statistics, found = self._statistics(asked, lengths, mask)
        looked_for = _guarded(asked, statistics)
        scores = np.zeros(len(self._ids))
        bm25 = bm25 or Bm25()
        for term in looked_for:
            notes, often = found[term]
            longer = lengths[notes] / statistics.length
            held = bm25.saturation * (1 - bm25.length + bm25.length * longer)
            more = often * (bm25.saturation + 1) / (often + held)
            scores[notes] += statistics.rarity(term) * more
        return self._first(scores, count), statistics

    def counts(self, numbers: Sequence[int], asked: Sequence[str]) -> list[dict[str, int]]:
        """For each note how often it has each term that is asked, and its other terms as one.

        The others are under the empty term, so that the length of the note is right.
        """
        import numpy as np

        wanted = np.asarray(numbers, dtype=np.int64)
        counts: list[dict[str, int]] = [{} for _ in numbers]
        for term in asked:
            if term not in self._notes:
                continue
            notes = np.frombuffer(self._notes[term], dtype=np.uint32)
            places = np.minimum(np.searchsorted(notes, wanted), len(notes) - 1)
            for at in np.flatnonzero(notes[places] == wanted).tolist():
                counts[at][term] = self._often[term][int(places[at])]
        for number, count in zip(numbers, counts, strict=True):
            count[""] = self._lengths[number] - sum(count.values())
        return counts

    def _statistics(
        self, asked: Sequence[str], lengths: NDArray[np.uint32], mask: NDArray[np.bool_] | None
    ) -> tuple[Statistics, dict[str, tuple[NDArray[np.uint32], NDArray[np.uint16]]]]:
        import numpy as np

        found = {}
        for term in asked:
            if term in self._notes:
                notes = np.frombuffer(self._notes[term], dtype=np.uint32)
                often = np.frombuffer(self._often[term], dtype=np.uint16)
                if mask is not None:
                    kept = mask[notes]
                    notes, often = notes[kept], often[kept]
                found[term] = notes, often
        statistics = Statistics(
            notes=len(lengths) if mask is None else int(np.count_nonzero(mask)),
            terms=self._terms if mask is None else int(lengths[mask].sum(dtype=np.int64)),
            frequency={term: len(found[term][0]) if term in found else 0 for term in asked},
        )
        return statistics, found

    def _first(self, scores: NDArray[np.float64], count: int) -> list[int]:
        import numpy as np

        places = np.flatnonzero(scores)
        if count < 1 or len(places) <= count:
            every: list[int] = places.tolist()
            return every if count > 0 else []
        # Rounded as the lanes are: sums in another order may differ in their last bits.
        values = np.round(scores[places], 9)
        least = np.partition(values, len(values) - count)[len(values) - count]
        better, equal = places[values > least], places[values == least]
        wanted = count - len(better)
        if self._ascending:
            return sorted((*better.tolist(), *equal[:wanted].tolist()))
        chosen = heapq.nsmallest(wanted, equal.tolist(), key=self._ids.__getitem__)
        return sorted((*better.tolist(), *chosen))


def _guarded(asked: Sequence[str], statistics: Statistics) -> list[str]:
    known = [term for term in asked if statistics.frequency[term]]
    if statistics.notes <= GUARDED_NOTES:
        return known
    many = _GUARDED_SHARE * statistics.notes
    rare = [term for term in known if statistics.frequency[term] <= many]
    # A query of common words only is answered by the least common of them.
    return rare or sorted(known, key=lambda term: (statistics.frequency[term], term))[:1]
