"""The standing index: the data of short lists, held in memory beside an open store.

A process that keeps a store open keeps one of these with it. The index follows the log: before it
answers, it reads the entries that were appended since. Its answers follow from the log alone. So an
index that is days old, a new one, and no index at all (`shortlist`) give the same.

It holds terms of notes, also of notes that were erased meanwhile, until it is built again. It is
never written to a file.

Needs the extra `memory`.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.chain import Head
from tallystick.core.errors import UsageError
from tallystick.memory.errors import MemoryCorrupt
from tallystick.memory.recall.codes import Codes
from tallystick.memory.recall.columns import Column, NoteColumns, NoteRow, StateRow
from tallystick.memory.recall.postings import Postings
from tallystick.memory.recall.scope import NoteFields
from tallystick.memory.recall.selection import Filters
from tallystick.memory.recall.shortlist import Count, NumberedScope, content_tokens
from tallystick.memory.recall.words import Bm25, Statistics
from tallystick.memory.store.projection import OPEN, decode_terms
from tallystick.memory.store.sqlite import SqliteMemory, head_row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Masked:
    """The notes of an index that one reader sees, as a short list asks about them."""

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
        # The places of the notes that were returned, so that they need not be looked up again.
        self._places: dict[int, int] = {}

    @property
    def notes(self) -> int:
        return self._notes

    @property
    def numbers(self) -> list[int]:
        """The numbers of all notes under the mask."""
        found: list[int] = self._columns.number.values[self._mask].tolist()
        return found

    def authors(self, said: frozenset[str]) -> list[str]:
        """Return the authors of notes under the mask whose names have one of these words."""
        return self._columns.authors(said, self._mask)

    def best(self, asked: Sequence[str], *, count: int, bm25: Bm25) -> tuple[list[int], Statistics]:
        """Return at most `count` notes with the best sums of `term_scores`, and the statistics.

        Only notes with one of the `rare_terms` are returned. The statistics are of the mask.
        """
        mask = None if self._notes == len(self._mask) else self._mask
        places, statistics = self._postings.best(
            asked, count=count, mask=mask, bm25=bm25, first=self._columns.first
        )
        return self._numbers_at(places), statistics

    def near(self, vector: bytes, *, count: int) -> list[int]:
        """Return the notes of the `count` nearest codes, each once, so there may be fewer.

        Return none if no model was chosen by the position, or if it was replaced since. Raise
        `UsageError` if `vector` has another length than those of the store.
        """
        import numpy as np

        if self._codes is None:
            return []
        of = self._code_place.values

        def first(rows: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
            # Sort by note id. The codes of one note keep the order of its windows.
            places = of[rows]
            low, high = self._columns.id_low.values, self._columns.id_high.values
            return rows[np.lexsort((rows, low[places], high[places]))[:wanted]]

        rows = self._codes.near(vector, count=count, mask=self._coded, first=first)
        return self._numbers_at(np.unique(of[rows]).tolist())

    def counts(self, numbers: Sequence[int], asked: Sequence[str]) -> list[Mapping[str, int]]:
        """Return for each note how often it has each term of `asked`.

        The rest is under the empty term.

        Raise `UsageError` if a note is not in the index.
        """
        places = [self._place_of(number) for number in numbers]
        return list(self._postings.counts(places, asked))

    def fields(self, numbers: Sequence[int]) -> list[tuple[str, NoteFields]]:
        """Return the id of each note, and what ranking reads of it except text and relations.

        Raise `UsageError` if a note is not in the index.
        """
        return self._columns.fields([self._place_of(number) for number in numbers], seq=self._seq)

    def tokens(self, db: sqlite3.Connection, count: Count, *, tokenizer: str) -> int:
        """Return how many tokens all notes under the mask have.

        For each tokenizer, `count` is called once for each note, until the index is built again.
        """
        import numpy as np

        counted = self._tokens.setdefault((tokenizer, count), Column(np.int64))
        numbers = self._columns.number.values[len(counted) :].tolist()
        found = dict(content_tokens(db, numbers, count))
        counted.extend([found.get(number, 0) for number in numbers])
        return int(counted.values[self._mask].sum())

    def within(self, numbers: Collection[int]) -> list[int]:
        """Return those of some notes that are under the mask."""
        return [
            number
            for number in numbers
            if (place := self._columns.find_place(number)) is not None and self._mask[place]
        ]

    def _numbers_at(self, places: Sequence[int]) -> list[int]:
        numbers: list[int] = self._columns.number.values[places].tolist()
        self._places.update(zip(numbers, places, strict=True))
        return numbers

    def _place_of(self, number: int) -> int:
        if number in self._places:
            return self._places[number]
        place = self._columns.find_place(number)
        if place is None:
            raise UsageError(f"note {number:,} is not in the index")
        return place


_: type[NumberedScope] = Masked


_BATCH = 10_000
_DEAD_MIN = 1_000
_NOTE = ", ".join(f"note.{name}" for name in NoteRow._fields)
_STATE = ", ".join(f"state.{name}" for name in StateRow._fields)
_NOTES = (
    f"SELECT {_NOTE}, {_STATE}, told.terms FROM note "
    f"JOIN state ON state.number = note.number AND state.seq_to = {OPEN} "
    "JOIN told ON told.number = note.number "
)


class _Header(msgspec.Struct):
    """The fields of an entry's header that are needed here."""

    tag: str
    note: str | None


_decode_header = msgspec.json.Decoder(_Header).decode


class StandingIndex:
    """The index of one store. It is built when it is first asked, and follows the log from then on.

    It is used under the store's own lock for reading, and needs none of its own.
    """

    def __init__(self, memory: SqliteMemory) -> None:
        self.memory = memory
        self._store = ""
        self._clear()

    @contextmanager
    def at(self, *, reader: str | None, filters: Filters, seq: int, at: int) -> Iterator[Masked]:
        """Yield the notes that a reader sees as of a position and a moment.

        They are valid inside the block only. The index follows the log first; raise `MemoryCorrupt`
        as `follow` does.
        """
        with self.memory.reading():
            self.follow()
            mask = self._notes.mask(reader=reader, filters=filters, seq=seq, at=at)
            near = self._codes is not None and self._model_seq <= seq
            codes = self._codes if near else None
            coded = self._coded_mask(mask, seq) if near else None
            yield Masked(
                self._notes, self._postings, mask, seq, codes, self._code_place, coded, self._tokens
            )

    def follow(self) -> int:
        """Read the entries appended since the last call. Return the position of the last one read.

        Build the index again if the file holds another log now, or if too many of its notes are
        dead: more than 1,000, and more than half. Raise `MemoryCorrupt` if a header cannot be read.
        After any error the index is empty, and the next call builds it again.
        """
        with self.memory.reading() as db:
            row = head_row(db, self.memory.path)
            if row.store != self._store or not self._log_continues(db, row.head.count):
                self._clear()
                self._store = row.store
            if row.head.count > self._seq:
                self._read(db, row.head)
            if self._dead > max(_DEAD_MIN, len(self._notes) // 2):
                # This also removes the terms of erased notes.
                self._clear()
                self._read(db, row.head)
            return self._seq

    # -- following -----------------------------------------------------------------------------

    def _clear(self) -> None:
        self._seq, self._hash = 0, b""
        self._notes = NoteColumns()
        self._postings = Postings()
        self._dead = 0
        # The number of tokens of each note, by tokenizer.
        self._tokens: dict[tuple[str, Count], Column[np.int64]] = {}
        self._forget_codes(None)

    def _forget_codes(self, model: tuple[int, int] | None) -> None:
        import numpy as np

        self._model_seq, self._dimensions = model or (0, 0)
        self._codes = None if model is None else Codes(dimensions=self._dimensions)
        # For each code, the place of its note, and the position from which it exists.
        self._code_place, self._code_seq = Column(np.int64), Column(np.int64)
        self._code_seq_newest = 0
        # True while every note has one code, at the same place: then the mask needs no lookup.
        self._aligned = True

    def _log_continues(self, db: sqlite3.Connection, count: int) -> bool:
        """Return True if the log still has the entry that was read last, or none was read yet."""
        if not self._seq:
            return True
        if count < self._seq:
            return False
        row = db.execute("SELECT hash FROM log WHERE seq = ?", (self._seq,)).fetchone()
        return row is not None and row[0] == self._hash

    def _read(self, db: sqlite3.Connection, head: Head) -> None:
        try:
            self._read_after(db)
        except BaseException:
            # A part of the entries was read, and which part is unknown.
            self._clear()
            raise
        self._seq, self._hash = head.count, bytes.fromhex(head.hash)

    def _read_after(self, db: sqlite3.Connection) -> None:
        """Read the entries after the position that the index has reached.

        Raise `MemoryCorrupt` if one cannot be read; a part of them may be in the index then.
        """
        touched = self._changed_numbers(db)
        model = db.execute("SELECT seq, dimensions FROM model ORDER BY seq DESC LIMIT 1").fetchone()
        others = model is not None and model[0] != self._model_seq
        if others:
            # Vectors of another model were deleted when this one was chosen.
            self._forget_codes((model[0], model[1]))
        self._read_notes(db)
        for number in touched:
            self._update_note(db, number)
        self._read_vectors(db, "number > ?", 0 if others else self._seq)
        if not others:
            for number in touched:
                self._read_vectors(db, "number = ? AND seq > ?", number, self._seq)

    def _changed_numbers(self, db: sqlite3.Connection) -> list[int]:
        """Return the numbers of earlier notes that new entries are about.

        Raise `MemoryCorrupt` if the header of one cannot be read.
        """
        if not self._seq:
            return []
        ids: dict[str, None] = {}
        for (header,) in db.execute("SELECT header FROM log WHERE seq > ?", (self._seq,)):
            try:
                said = _decode_header(header)
            except msgspec.MsgspecError as error:
                why = "an entry's header cannot be read"
                raise MemoryCorrupt(where=str(self.memory.path), why=why) from error
            if said.note is not None and said.tag != "note.remembered":
                ids[said.note] = None
        numbers: set[int] = set()
        for id in ids:
            for table in ("note", "erased"):
                found = db.execute(f"SELECT number FROM {table} WHERE id = ?", (id,)).fetchone()
                numbers.update(found or ())
        return sorted(number for number in numbers if number <= self._seq)

    def _read_notes(self, db: sqlite3.Connection) -> None:
        after = self._seq
        while True:
            rows = db.execute(
                f"{_NOTES} WHERE note.number > ? ORDER BY note.number LIMIT {_BATCH}", (after,)
            ).fetchall()
            if not rows:
                break
            self._add(rows)
            after = rows[-1][0]
        past = db.execute(
            f"SELECT state.number, {_STATE} FROM state WHERE number > ? AND seq_to < {OPEN}",
            (self._seq,),
        )
        while some := past.fetchmany(_BATCH):
            self._add_replaced_states(some)
        for tag, number in db.execute("SELECT tag, number FROM tag WHERE number > ?", (self._seq,)):
            self._tag(number, tag)
        shares: dict[int, list[tuple[str, int, int]]] = {}
        for number, *span in db.execute(
            "SELECT number, agent_id, seq_from, seq_to FROM share WHERE number > ?", (self._seq,)
        ):
            shares.setdefault(number, []).append((span[0], span[1], span[2]))
        for number, spans in shares.items():
            self._notes.set_shares(number, spans)

    def _add(self, rows: Sequence[tuple[object, ...]], *, again: bool = False) -> None:
        end = len(NoteRow._fields)
        notes = [(NoteRow(*row[:end]), StateRow(*row[end:-1])) for row in rows]  # type: ignore[arg-type]
        self._notes.add(notes, again=again)
        for row in rows:
            self._postings.add(Counter(decode_terms(str(row[-1]))))

    def _add_replaced_states(self, rows: Sequence[tuple[int, ...]]) -> None:
        found = [(self._notes.find_place(row[0]), StateRow(*row[1:])) for row in rows]  # type: ignore[arg-type]
        kept = [(place, state) for place, state in found if place is not None]
        self._notes.add_replaced_states([place for place, _ in kept], [state for _, state in kept])

    def _tag(self, number: int, tag: str) -> None:
        place = self._notes.find_place(number)
        if place is not None:
            self._notes.add_tag(place, tag)

    def _update_note(self, db: sqlite3.Connection, number: int) -> None:
        """Update a note that new entries are about: its state, shares, tags and place.

        If it was erased, or has other content now, it is dropped at its place. With other content
        it is added again.
        """
        place = self._notes.find_place(number)
        row = db.execute(f"{_NOTES} WHERE note.number = ?", (number,)).fetchone()
        if place is not None and (row is None or _body(row) != self._body_at(place)):
            self._notes.drop(place)
            self._dead += 1
            place = None
        if row is None:
            self._notes.set_shares(number, ())
            return
        known = 0 if place is None else int(self._notes.seq_from.values[place])
        if place is None:
            self._add([row], again=True)
            for (tag,) in db.execute("SELECT tag FROM tag WHERE number = ?", (number,)):
                self._tag(number, tag)
        else:
            self._notes.set_state(place, StateRow(*row[len(NoteRow._fields) : -1]))
        past = db.execute(
            f"SELECT state.number, {_STATE} FROM state "
            f"WHERE number = ? AND seq_from >= ? AND seq_to < {OPEN}",
            (number, known),
        )
        self._add_replaced_states(past.fetchall())
        shares = db.execute(
            "SELECT agent_id, seq_from, seq_to FROM share WHERE number = ?", (number,)
        )
        self._notes.set_shares(number, shares.fetchall())

    def _body_at(self, place: int) -> int:
        return int(self._notes.body_seq.values[place])

    def _read_vectors(self, db: sqlite3.Connection, which: str, *values: int) -> None:
        if self._codes is None:
            return
        size = 2 * self._dimensions
        rows = db.execute(
            f"SELECT number, seq, vector FROM vector WHERE {which} ORDER BY number, window", values
        )
        while some := rows.fetchmany(_BATCH):
            places = [self._notes.find_place(number) for number, _, _ in some]
            # The store does not check vectors. One of another length cannot be compared.
            kept = [
                (place, seq, vector)
                for place, (_, seq, vector) in zip(places, some, strict=True)
                if place is not None and len(vector) == size
            ]
            before = len(self._codes)
            self._aligned = self._aligned and all(
                place == at for at, (place, _, _) in enumerate(kept, before)
            )
            self._codes.add(b"".join(vector for _, _, vector in kept))
            self._code_place.extend([place for place, _, _ in kept])
            self._code_seq.extend([seq for _, seq, _ in kept])
            newest = max((seq for _, seq, _ in kept), default=0)
            self._code_seq_newest = max(self._code_seq_newest, newest)

    def _coded_mask(self, mask: NDArray[np.bool_], seq: int) -> NDArray[np.bool_]:
        """Return the mask over codes: those of notes under `mask` that existed as of `seq`."""
        count = len(self._code_place)
        coded = mask[:count] if self._aligned else mask.take(self._code_place.values)
        return coded & (self._code_seq.values <= seq) if seq < self._code_seq_newest else coded


def _body(row: tuple[object, ...]) -> object:
    return row[len(NoteRow._fields) + StateRow._fields.index("body_seq")]
