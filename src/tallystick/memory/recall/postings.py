"""Postings: the notes that have each term, for scopes too large to read every note for each query.

All figures are counted over the mask, as in `words`, so a filter or an earlier position ranks as if
only its notes existed. `shortlist` chooses which terms are looked for.

Needs the extra `memory`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tallystick.core.errors import UsageError
from tallystick.memory.recall.shortlist import PARTS, rare_terms, term_scores
from tallystick.memory.recall.words import Bm25, Statistics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    # Returns the given number of places that come first among places of equally good notes.
    First = Callable[[NDArray[np.int64], int], NDArray[np.int64]]


class Postings:
    """The terms of notes by place, from 0 on, in the order in which they are added."""

    def __init__(self) -> None:
        self._lengths = array("I")
        self._terms = 0
        # By term: the places of notes, and how often each has the term.
        self._held: dict[str, tuple[array[int], array[int]]] = {}
        self._room: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, counts: Mapping[str, int]) -> int:
        """Add a note by its terms (`words.count_terms`). Return its place."""
        place = len(self._lengths)
        length = sum(counts.values())
        self._lengths.append(length)
        self._terms += length
        held = self._held
        for term, often in counts.items():
            pair = held.get(term)
            if pair is None:
                pair = held[term] = array("I"), array("I")
            pair[0].append(place)
            pair[1].append(often)
        return place

    def best(
        self,
        asked: Sequence[str],
        *,
        count: int,
        mask: NDArray[np.bool_] | None = None,
        bm25: Bm25 | None = None,
        first: First | None = None,
    ) -> tuple[list[int], Statistics]:
        """Return the places of the best `count` notes under the mask, and the mask's statistics.

        Only notes with one of the `rare_terms` are returned, their places ascending. Of the last
        ones, if they are equally good, `first` chooses; it is called at most once. Without it,
        those that were added first are taken. Raise `UsageError` if the mask has another length
        than there are notes.
        """
        import numpy as np

        if mask is not None and len(mask) != len(self._lengths):
            raise UsageError(f"a mask of {len(mask):,} for {len(self._lengths):,} notes")
        lengths = np.frombuffer(self._lengths, dtype=np.uint32)
        statistics = self._statistics(asked, lengths, mask)
        scores = self._zeros(len(lengths))
        there = np.zeros(len(lengths), dtype=np.bool_)
        bm25 = bm25 or Bm25()
        for term in rare_terms(asked, statistics):
            notes, often = self._of(term)
            if mask is not None:
                kept = mask.take(notes)
                notes, often = notes[kept], often[kept]
            there[notes] = True
            scores[notes] += term_scores(
                often.astype(np.float64),
                lengths.take(notes).astype(np.float64),
                rarity=statistics.rarity(term),
                usual=statistics.length,
                bm25=bm25,
            )
        places = np.flatnonzero(there)
        chosen = _first(scores, places, count, first)
        scores[places] = 0.0
        return chosen, statistics

    def counts(self, places: Sequence[int], asked: Sequence[str]) -> list[dict[str, int]]:
        """Return for each note how often it has each term of `asked`, and the count of its others.

        That count is under the empty term, so that the length of the note is right.
        """
        import numpy as np

        wanted = np.asarray(places, dtype=np.int64)
        counts: list[dict[str, int]] = [{} for _ in places]
        for term in asked:
            if term not in self._held:
                continue
            notes, often = self._of(term)
            found = np.minimum(np.searchsorted(notes, wanted), len(notes) - 1)
            there = np.flatnonzero(notes.take(found) == wanted)
            for at, so_often in zip(there.tolist(), often[found[there]].tolist(), strict=True):
                counts[at][term] = so_often
        lengths = np.frombuffer(self._lengths, dtype=np.uint32)[wanted].tolist()
        for length, count in zip(lengths, counts, strict=True):
            count[""] = length - sum(count.values())
        return counts

    def _zeros(self, count: int) -> NDArray[np.float64]:
        """Return an array of zeros for scores.

        The caller leaves it zero: a new one for each query costs.
        """
        import numpy as np

        if self._room is None or len(self._room) < count:
            self._room = np.zeros(2 * count)
        return self._room[:count]

    def _of(self, term: str) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        import numpy as np

        notes, often = self._held[term]
        return np.frombuffer(notes, dtype=np.uint32), np.frombuffer(often, dtype=np.uint32)

    def _statistics(
        self, asked: Sequence[str], lengths: NDArray[np.uint32], mask: NDArray[np.bool_] | None
    ) -> Statistics:
        import numpy as np

        frequency = dict.fromkeys(asked, 0)
        for term in asked:
            if term in self._held:
                notes, _ = self._of(term)
                # `take` is twice as quick as indexing with an array of another width than the
                # machine's.
                kept = len(notes) if mask is None else int(np.count_nonzero(mask.take(notes)))
                frequency[term] = kept
        if mask is None:
            return Statistics(notes=len(lengths), terms=self._terms, frequency=frequency)
        return Statistics(
            notes=int(np.count_nonzero(mask)),
            # The product is quicker than a selection.
            terms=int((lengths * mask).sum(dtype=np.int64)),
            frequency=frequency,
        )


def _first(
    scores: NDArray[np.float64], places: NDArray[np.int64], count: int, first: First | None
) -> list[int]:
    import numpy as np

    if count < 1 or len(places) <= count:
        every: list[int] = places.tolist()
        return every if count > 0 else []
    values = np.rint(scores.take(places) * PARTS)
    least = np.partition(values, len(values) - count)[len(values) - count]
    better, equal = places[values > least], places[values == least]
    wanted = count - len(better)
    chosen = equal[:wanted] if first is None else first(equal, wanted)
    return sorted((*better.tolist(), *chosen.tolist()))
