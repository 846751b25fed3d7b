"""Masked: the notes of a standing index that one reader sees, as a short list asks about them.

Needs the extra `memory`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from tallystick.core.errors import UsageError
from tallystick.memory.arrays import Column
from tallystick.memory.bm25 import Bm25, Statistics
from tallystick.memory.candidates import Count, content_tokens
from tallystick.memory.codes import Codes
from tallystick.memory.columns import NoteColumns
from tallystick.memory.postings import Postings
from tallystick.memory.scope import NoteFields
from tallystick.memory.shortlist import Whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Masked"]


class Masked:
    """Notes under a mask, as a short list asks about them."""

    def __init__(
        self,
        notes: NoteColumns,
        postings: Postings,
        mask: NDArray[np.bool_],
        seq: int,
        codes: Codes | None,
        code_place: Column[np.int64],
        coded: NDArray[np.bool_] | None,
        tokens: dict[tuple[str, Count], Column[np.int64]],
    ) -> None:
        import numpy as np

        self._columns = notes
        self._postings = postings
        self._mask = mask
        self._seq = seq
        self._codes = codes
        self._code_place = code_place
        self._coded = coded
        self._tokens = tokens
        self._notes = int(np.count_nonzero(mask))
        # Of the notes that were given away.
        self._places: dict[int, int] = {}

    @property
    def notes(self) -> int:
        return self._notes

    @property
    def numbers(self) -> list[int]:
        """The numbers of all of them."""
        found: list[int] = self._columns.number.values[self._mask].tolist()
        return found

    def authors(self, said: frozenset[str]) -> list[str]:
        return self._columns.authors(said, self._mask)

    def best(self, asked: Sequence[str], *, count: int, bm25: Bm25) -> tuple[list[int], Statistics]:
        mask = None if self._notes == len(self._mask) else self._mask
        places, statistics = self._postings.best(
            asked, count=count, mask=mask, bm25=bm25, first=self._columns.first
        )
        return self._named(places), statistics

    def near(self, vector: bytes, *, count: int) -> list[int]:
        import numpy as np

        if self._codes is None:
            return []
        of = self._code_place.values

        def first(rows: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
            # Codes of one note are in the order of its windows, and stay in it.
            places = of[rows]
            low, high = self._columns.id_low.values, self._columns.id_high.values
            return rows[np.lexsort((rows, low[places], high[places]))[:wanted]]

        rows = self._codes.near(vector, count=count, mask=self._coded, first=first)
        return self._named(np.unique(of[rows]).tolist())

    def counts(self, numbers: Sequence[int], asked: Sequence[str]) -> list[Mapping[str, int]]:
        places = [self._placed(number) for number in numbers]
        return list(self._postings.counts(places, asked))

    def fields(self, numbers: Sequence[int]) -> list[tuple[str, NoteFields]]:
        return self._columns.fields([self._placed(number) for number in numbers], seq=self._seq)

    def tokens(self, db: sqlite3.Connection, count: Count, *, tokenizer: str) -> int:
        """How many tokens all notes have. Each is counted once, when it is first asked for."""
        import numpy as np

        counted = self._tokens.setdefault((tokenizer, count), Column(np.int64))
        numbers = self._columns.number.values[len(counted) :].tolist()
        found = dict(content_tokens(db, numbers, count))
        counted.extend([found.get(number, 0) for number in numbers])
        return int(counted.values[self._mask].sum())

    def within(self, numbers: Collection[int]) -> list[int]:
        return [
            number
            for number in numbers
            if (place := self._columns.place(number)) is not None and self._mask[place]
        ]

    def _named(self, places: Sequence[int]) -> list[int]:
        numbers: list[int] = self._columns.number.values[places].tolist()
        self._places.update(zip(numbers, places, strict=True))
        return numbers

    def _placed(self, number: int) -> int:
        if number in self._places:
            return self._places[number]
        place = self._columns.place(number)
        if place is None:
            raise UsageError(f"note {number:,} is not in the index")
        return place


_: type[Whole] = Masked
