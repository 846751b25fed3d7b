"""A view: the notes that one reader sees, as of a position in the log and a moment in time.

A view has two clocks. `seq` is the position: what was known. `at` is the time that decides what has
expired and what is valid. A view at a position is always the same, whatever is appended later. Only
erasure removes notes from it, and then `erased` names them.

A view is the scope that ranking ranks: notes that a reader may not see have no part in any
statistic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tallystick.memory.errors import NoteErased, NoteNotFound
from tallystick.memory.note import Note, check_agent, check_time
from tallystick.memory.recall.scope import NoteFields, Scope
from tallystick.memory.recall.selection import (
    EVERYTHING,
    NOW,
    Filters,
    Row,
    Seen,
    check_filters,
    erased_at,
    in_batches,
    read_details,
    select_notes,
)
from tallystick.memory.store.projection import decode_terms
from tallystick.memory.store.records import NoteState
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import model_at, tokens_at, vectors_of


@dataclass(frozen=True)
class View:
    """The notes of one reader, made by `view`.

    `ids` are in the order in which they were remembered. `model` is the digest of the model that
    was chosen at that position, None if none was. A method that takes an id raises `KeyError` for a
    note that is not in the view.
    """

    seq: int
    at: int
    reader: str | None
    filters: Filters
    ids: tuple[str, ...]
    model: str | None
    _rows: Mapping[str, Row] = field(repr=False)
    _memory: SqliteMemory = field(repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, id: object) -> bool:
        return id in self._rows

    # -- what ranking reads --------------------------------------------------------------------

    def fields(self, id: str) -> NoteFields:
        """Return what ranking reads of a note."""
        row = self._rows[id]
        note = row.note
        return NoteFields(
            text=note.content,
            author=note.author or "",
            session=note.thread_id or "",
            position=note.position,
            created_at=note.created_at,
            importance=row.state.importance,
            related=self._related.get(id, ()),
        )

    def counts(self, id: str) -> Mapping[str, int]:
        """Return the terms of a note, and how often each is in it; none if it was erased since."""
        return Counter(decode_terms(self._terms[self._rows[id].number]))

    def vectors(self, id: str) -> tuple[bytes, ...]:
        """Return one vector for each window of a note, in order.

        Return none if it was not embedded by then, or if the model was replaced since.
        """
        return self._vectors.get(self._rows[id].number, ())

    def tokens(self, id: str) -> bytes | None:
        """Return the token vectors of all windows of a note, one after the other.

        Return None if it was not embedded by then, if a window has no token vectors, or if the
        model was replaced since.
        """
        with self._memory.reading() as db:
            return tokens_at(db, self.seq, self._rows[id].number)

    def text(self, id: str) -> str:
        """Return what a note says."""
        return self.note(id).content

    # -- what others read ----------------------------------------------------------------------

    def note(self, id: str) -> Note:
        """Return the content of a note."""
        return self._rows[id].note

    def state(self, id: str) -> NoteState:
        """Return the state of a note."""
        return self._rows[id].state

    def content_hash(self, id: str) -> str:
        """Return the salted digest by which the log binds the content of a note."""
        return self._rows[id].content_hash

    def content_seq(self, id: str) -> int:
        """Return the position of the entry that has the content of a note."""
        return self._rows[id].body_seq

    def seen(self, id: str) -> Seen:
        """Return a note with its state and its counts, as of this view."""
        with self._memory.reading() as db:
            return read_details(db, self._rows[id], self.seq)

    def relations(self) -> list[tuple[str, str, str, float]]:
        """Return the relations between notes of this view: from, relation, to, weight.

        One that was recorded several times is there as often.
        """
        ids = {self._rows[id].number: id for id in self.ids}
        with self._memory.reading() as db:
            select = (
                "SELECT number, relation, target, weight FROM relation "
                f"WHERE seq_from <= {int(self.seq)} AND number"
            )
            order = "number, relation, target, seq_from"
            rows = list(in_batches(db, select, self._numbers, order=order))
        return [
            (ids[number], relation, target, weight)
            for number, relation, target, weight in rows
            if target in self._rows
        ]

    @cached_property
    def erased(self) -> tuple[str, ...]:
        """The ids of notes that existed at `seq` and were erased or redacted since.

        They are of the whole file: which of them this reader saw was erased with them.
        """
        with self._memory.reading() as db:
            return erased_at(db, self.seq)

    # These are read on first use. Entries never change, so reading later gives the same; only notes
    # that are erased meanwhile are missing then.

    @cached_property
    def _related(self) -> Mapping[str, tuple[str, ...]]:
        related: dict[str, dict[str, None]] = {}
        for source, _, target, _ in self.relations():
            related.setdefault(source, {})[target] = None
            related.setdefault(target, {})[source] = None
        return {id: tuple(sorted(others)) for id, others in related.items()}

    @cached_property
    def _terms(self) -> Mapping[int, str]:
        with self._memory.reading() as db:
            select = "SELECT number, terms FROM told WHERE number"
            found = dict(in_batches(db, select, self._numbers))
        return {number: found.get(number, "") for number in self._numbers}

    @cached_property
    def _vectors(self) -> Mapping[int, tuple[bytes, ...]]:
        with self._memory.reading() as db:
            return vectors_of(db, self.seq, self._numbers)

    @cached_property
    def _numbers(self) -> frozenset[int]:
        return frozenset(row.number for row in self._rows.values())


def view(
    memory: SqliteMemory,
    *,
    reader: str | None,
    filters: Filters = NOW,
    as_of: int | None = None,
    at: int | None = None,
    among: Collection[int] | None = None,
) -> View:
    """Return the view of a reader. `reader` None is the owner of the file, who sees every note.

    `as_of` is a position in the log (`SqliteMemory.seq_at` finds that of a time), `at` a time in
    milliseconds; the defaults are the head and the clock's time. `among` are numbers of notes, such
    as the candidates of an index: no others are read. Raise `NoteInvalid` for a value that is out
    of range.
    """
    with memory.reading() as db:
        seq, moment = check_viewpoint(memory, reader=reader, filters=filters, as_of=as_of, at=at)
        found = select_notes(db, reader=reader, filters=filters, seq=seq, at=moment, among=among)
        model = model_at(db, seq)
    rows = {row.id: row for row in found}
    return View(
        seq=seq,
        at=moment,
        reader=reader,
        filters=filters,
        ids=tuple(rows),
        model=None if model is None else model[0],
        _rows=rows,
        _memory=memory,
    )


def check_viewpoint(
    memory: SqliteMemory,
    *,
    reader: str | None,
    filters: Filters,
    as_of: int | None,
    at: int | None,
) -> tuple[int, int]:
    """Return the position and the time of a view.

    Raise `NoteInvalid` if an argument is out of range.
    """
    check_filters(filters)
    if reader is not None:
        check_agent(reader, field="reader")
    check_time("at", at)
    return memory.resolve(as_of), memory.clock() if at is None else at


def find_note(
    memory: SqliteMemory, id: str, *, reader: str | None, as_of: int | None = None
) -> Seen:
    """Return one note as of a position, whatever its state is: deleted, archived or in quarantine.

    Raise `NoteErased` to the owner of the file if it was erased or redacted since. Raise
    `NoteNotFound` if there is no such note at that position, or none that the reader may see.
    Raise `NoteInvalid` if the log has no such position.
    """
    with memory.reading() as db:
        seq = memory.resolve(as_of)
        found = select_notes(db, reader=reader, filters=EVERYTHING, seq=seq, at=0, id=id)
        if found:
            return read_details(db, found[0], seq)
        row = db.execute("SELECT number, seq FROM erased WHERE id = ?", (id,)).fetchone()
        if row is None:
            row = db.execute(
                "SELECT number, redacted FROM note WHERE id = ? AND redacted > ?", (id, seq)
            ).fetchone()
        if row is not None and row[0] <= seq and reader is None:
            raise NoteErased(id=id, seq=row[1])
    raise NoteNotFound(id=id)


_: type[Scope] = View
