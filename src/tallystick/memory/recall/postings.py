"""Postings: the notes that have each term, for scopes too large to read every note for each query.

All figures are counted over the mask, as in `words`, so a filter or an earlier position ranks as if
only its notes existed. `shortlist` chooses which terms are looked for.

Needs the extra `memory`.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.errors import UsageError
from tallystick.memory.recall.packing import Packed, pack, unpack
from tallystick.memory.recall.shortlist import PARTS, rare_terms, term_scores
from tallystick.memory.recall.words import Bm25, Statistics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    # Returns the given number of places that come first among places of equally good notes.
    First = Callable[[NDArray[np.int64], int], NDArray[np.int64]]


# Terms of a block in packed form: parts that are read one by one, each with the terms whose
# checksum gives its number. A query reads the parts of its terms and no others.


class _PackedTerms(msgspec.Struct, frozen=True, array_like=True):
    """Terms in order, each between two ends of lines; where their notes end; places; how often."""

    terms: bytes
    ends: Packed
    places: Packed
    often: Packed


_decode_terms = msgspec.msgpack.Decoder(_PackedTerms).decode


def part_of(term: str, parts: int) -> int:
    """Return the number of the part that has a term."""
    return zlib.crc32(term.encode()) % parts


def _find(packed: _PackedTerms, term: str) -> tuple[NDArray[np.uint32], NDArray[np.uint32]] | None:
    """Return the places of notes with a term, and how often each has it; None for none.

    Places count from the first note of the block.
    """
    import numpy as np

    # A dictionary of all terms would take longer to make than one of them to find.
    at = packed.terms.find(b"\n%b\n" % term.encode())
    if at < 0:
        return None
    number = packed.terms.count(b"\n", 0, at)
    begin, end = unpack(packed.ends, np.int64)[number : number + 2].tolist()
    return (
        unpack(packed.places, np.uint32, begin, end),
        unpack(packed.often, np.uint32, begin, end),
    )


class BlockTerms:
    """The terms of a block. `read` returns one of its `parts` as bytes, when it is first needed."""

    def __init__(self, first: int, parts: int, read: Callable[[int], bytes]) -> None:
        self.first = first
        self._parts = parts
        self._read = read
        self._known: dict[int, _PackedTerms] = {}

    def find(self, term: str) -> tuple[NDArray[np.uint32], NDArray[np.uint32]] | None:
        """Return the places of notes with a term, and how often each has it; None for none."""
        import numpy as np

        number = part_of(term, self._parts)
        if number not in self._known:
            self._known[number] = _decode_terms(self._read(number))
        found = _find(self._known[number], term)
        return None if found is None else (found[0] + np.uint32(self.first), found[1])


_FOUND_MAX = 4_096


class Postings:
    """The terms of notes by place, from 0 on, in the order in which they are added."""

    def __init__(self) -> None:
        self._lengths = array("I")
        self._terms = 0
        # By term: the places of notes, and how often each has the term.
        self._held: dict[str, tuple[array[int], array[int]]] = {}
        # The terms of blocks are not among these. What was found in them is kept for later queries.
        self._blocks: list[BlockTerms] = []
        self._found: dict[str, tuple[NDArray[np.uint32], NDArray[np.uint32]] | None] = {}
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

    def add_block(self, lengths: Packed, *, parts: int, read: Callable[[int], bytes]) -> None:
        """Add the notes of a block: the number of terms of each, and its terms as `BlockTerms`."""
        import numpy as np

        self._blocks.append(BlockTerms(len(self._lengths), parts, read))
        self._found.clear()
        counted = unpack(lengths, np.uint32)
        self._lengths.frombytes(counted.tobytes())
        self._terms += int(counted.sum(dtype=np.int64))

    def pack_lengths(self) -> Packed:
        """Return the number of terms of each note, for a block."""
        import numpy as np

        return pack(np.frombuffer(self._lengths, dtype=np.uint32))

    def pack_terms(self, parts: int) -> Iterator[bytes]:
        """Yield the terms of all notes in a number of parts, for a block.

        Notes that were added as a block are left out.
        """
        import numpy as np

        chosen: list[list[str]] = [[] for _ in range(parts)]
        for term in sorted(self._held):
            chosen[part_of(term, parts)].append(term)
        for terms in chosen:
            pairs = [self._held[term] for term in terms]
            places, often = array("I"), array("I")
            for pair in pairs:
                places.extend(pair[0])
                often.extend(pair[1])
            packed = _PackedTerms(
                "".join(f"\n{term}" for term in terms).encode() + b"\n",
                pack(np.cumsum([0, *(len(pair[0]) for pair in pairs)])),
                pack(np.frombuffer(places, dtype=np.uint32)),
                pack(np.frombuffer(often, dtype=np.uint32)),
            )
            yield msgspec.msgpack.encode(packed)

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
        statistics = self.statistics(asked, mask)
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

    def statistics(self, asked: Sequence[str], mask: NDArray[np.bool_] | None) -> Statistics:
        """Return the statistics of the notes under the mask, or of all for None."""
        import numpy as np

        lengths = np.frombuffer(self._lengths, dtype=np.uint32)
        frequency = dict.fromkeys(asked, 0)
        for term in asked:
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

    def counts(self, places: Sequence[int], asked: Sequence[str]) -> list[dict[str, int]]:
        """Return for each note how often it has each term of `asked`, and the count of its others.

        That count is under the empty term, so that the length of the note is right.
        """
        import numpy as np

        wanted = np.asarray(places, dtype=np.int64)
        counts: list[dict[str, int]] = [{} for _ in places]
        for term in asked:
            notes, often = self._of(term)
            if not len(notes):
                continue
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
        """Return the places of notes that have a term, ascending, and how often each has it."""
        import numpy as np

        pairs = []
        if (kept := self._of_blocks(term)) is not None:
            pairs.append(kept)
        if (held := self._held.get(term)) is not None:
            notes, often = (np.frombuffer(each, dtype=np.uint32) for each in held)
            pairs.append((notes, often))
            if kept is not None and notes[0] < kept[0][-1]:
                # A block was missing, and its notes are held between those of others.
                places, counts = (np.concatenate(each) for each in zip(*pairs, strict=True))
                order = np.argsort(places, kind="stable")
                return places[order], counts[order]
        return _joined(pairs)

    def _of_blocks(self, term: str) -> tuple[NDArray[np.uint32], NDArray[np.uint32]] | None:
        if not self._blocks:
            return None
        if term not in self._found:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            some = [found for block in self._blocks if (found := block.find(term)) is not None]
            self._found[term] = _joined(some) if some else None
        return self._found[term]


def _joined(
    pairs: Sequence[tuple[NDArray[np.uint32], NDArray[np.uint32]]],
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    import numpy as np

    if len(pairs) == 1:
        return pairs[0]
    if not pairs:
        nothing = np.empty(0, dtype=np.uint32)
        return nothing, nothing
    places, often = zip(*pairs, strict=True)
    return np.concatenate(places), np.concatenate(often)


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
