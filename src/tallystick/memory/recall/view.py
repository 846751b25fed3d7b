"""A view: the notes that one reader sees, as of a place in the log and a moment of the world.

Two clocks, and both are said: `seq` is what was known, `at` is when it is asked for (what has
expired, what is so). A view at a place is the same for ever, whatever is appended later. Only
erasure takes from it, and then it says which notes it no longer has.

A view is the scope that ranking ranks: what a reader may not see has no part in any statistic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    seen_at,
    select_notes,
)
from tallystick.memory.store.projection import unspelled
from tallystick.memory.store.records import NoteState
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import model_at, tokens_at, vectors_of


@dataclass(frozen=True)
class View:
    """Made by `view`. `ids` are in the order in which the notes were remembered.

    `model` is the one whose vectors there were.
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
        return Counter(unspelled(self._terms[self._rows[id].number]))

    def vectors(self, id: str) -> tuple[bytes, ...]:
        """One for each window of the note; none if it had not been embedded by then."""
        return self._vectors.get(self._rows[id].number, ())

    def tokens(self, id: str) -> bytes | None:
        """The token vectors of all windows, one after the other."""
        with self._memory.reading() as db:
            return tokens_at(db, self.seq, self._rows[id].number)

    # -- what others read ----------------------------------------------------------------------

    def note(self, id: str) -> Note:
        return self._rows[id].note

    def state(self, id: str) -> NoteState:
        return self._rows[id].state

    def content_hash(self, id: str) -> str:
        """The salted digest by which the log binds what the note says."""
        return self._rows[id].content_hash

    def content_seq(self, id: str) -> int:
        """The place of the entry that has what the note says."""
        return self._rows[id].body_seq

    def seen(self, id: str) -> Seen:
        """Everything there is to know of a note, as of this view."""
        with self._memory.reading() as db:
            return seen_at(db, self._rows[id], self.seq)

    def accesses(self) -> dict[str, int]:
        """How often each note of the view had been recalled."""
        with self._memory.reading() as db:
            rows = db.execute(
                "SELECT number, count(*) FROM access WHERE seq <= ? GROUP BY number", (self.seq,)
            )
            counts = dict(rows.fetchall())
        return {id: counts.get(self._rows[id].number, 0) for id in self.ids}

    def relations(self) -> list[tuple[str, str, str, float]]:
        """Relations between notes of this view: from, relation, to, weight."""
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

    def only(self, ids: Iterable[str]) -> View:
        """The same view of fewer notes, such as the candidates of an index."""
        kept = set(ids)
        rows = {id: self._rows[id] for id in self.ids if id in kept}
        return replace(self, ids=tuple(rows), _rows=rows)

    @cached_property
    def erased(self) -> tuple[str, ...]:
        """Notes that stood here at `seq` and cannot be shown any more.

        Whether this reader would have seen them went with them.
        """
        with self._memory.reading() as db:
            return erased_at(db, self.seq)

    # Read when they are first asked for. Entries are never changed, so this may be later than the
    # view was made; only what is erased meanwhile is missing then.

    @cached_property
    def _related(self) -> Mapping[str, tuple[str, ...]]:
        tied: dict[str, dict[str, None]] = {}
        for source, _, target, _ in self.relations():
            tied.setdefault(source, {})[target] = None
            tied.setdefault(target, {})[source] = None
        return {id: tuple(sorted(others)) for id, others in tied.items()}

    @cached_property
    def _terms(self) -> Mapping[int, str]:
        with self._memory.reading() as db:
            told = "SELECT number, terms FROM told WHERE number"
            found = dict(in_batches(db, told, self._numbers))
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
    """What a reader sees. `reader` None is the owner of the file, who sees everything.

    `as_of` is a place in the log (`SqliteMemory.seq_at` finds that of a time), `at` a moment in
    milliseconds: the head and the clock's now, unless they are given. `among` are numbers of
    notes, such as the candidates of an index: no others are looked at.
    """
    with memory.reading() as db:
        seq, moment = checked_look(memory, reader=reader, filters=filters, as_of=as_of, at=at)
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


def checked_look(
    memory: SqliteMemory,
    *,
    reader: str | None,
    filters: Filters,
    as_of: int | None,
    at: int | None,
) -> tuple[int, int]:
    """The place and the moment to look from. Raises `NoteInvalid` for what is none."""
    check_filters(filters)
    if reader is not None:
        check_agent(reader, field="reader")
    check_time("at", at)
    return memory.resolve(as_of), memory.clock() if at is None else at


def look(memory: SqliteMemory, id: str, *, reader: str | None, as_of: int | None = None) -> Seen:
    """One note as it stood, whatever became of it. Raises `NoteNotFound` or `NoteErased`."""
    with memory.reading() as db:
        seq = memory.resolve(as_of)
        found = select_notes(db, reader=reader, filters=EVERYTHING, seq=seq, at=0, id=id)
        if found:
            return seen_at(db, found[0], seq)
        row = db.execute("SELECT number, seq FROM erased WHERE id = ?", (id,)).fetchone()
        if row is None:
            row = db.execute(
                "SELECT number, redacted FROM note WHERE id = ? AND redacted > ?", (id, seq)
            ).fetchone()
        if row is not None and row[0] <= seq and reader is None:
            raise NoteErased(id=id, seq=row[1])
    raise NoteNotFound(id=id)


_: type[Scope] = View
