"""Select the notes that a reader sees as of a position in the log and a moment in time."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tallystick.memory.errors import NoteInvalid
from tallystick.memory.note import ConsolidationState, MemoryType, Note, NoteScope, check_time
from tallystick.memory.store.records import (
    NoteRedacted,
    NoteRemembered,
    NoteState,
    decode_memory_record,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Conditions on notes. An omitted one lets all pass; of `tags`, one is enough.

    `after` and `before` limit `created_at`: from `after` on, and earlier than `before`. With
    `current`, only notes pass that are valid at the moment of the recall.
    """

    memory_types: frozenset[MemoryType] = frozenset()
    scopes: frozenset[NoteScope] = frozenset()
    tags: frozenset[str] = frozenset()
    min_importance: float | None = None
    org_id: str | None = None
    thread_id: str | None = None
    author: str | None = None
    key: str | None = None
    after: int | None = None
    before: int | None = None
    current: bool = True
    quarantined: bool = False
    archived: bool = False
    deleted: bool = False
    expired: bool = False


NOW = Filters()
EVERYTHING = Filters(current=False, quarantined=True, archived=True, deleted=True, expired=True)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A note as of one position: its content, its state, and counts of its sightings and recalls.

    `content_hash` is the salted digest by which the log binds the text, at position `content_seq`.
    """

    note: Note
    state: NoteState
    number: int
    content_seq: int
    content_hash: str
    sightings: int
    access_count: int
    last_accessed_at: int | None
    updated_seq: int


@dataclass(slots=True)
class Row:
    """A note as of one position.

    Its content is decoded on first use: most rows are only counted.
    """

    number: int
    id: str
    body_seq: int
    seq_from: int
    state: NoteState
    _body: bytes
    _header: bytes
    _note: Note | None = None

    @property
    def note(self) -> Note:
        """The content of the note."""
        if self._note is None:
            record = decode_memory_record(self._body)
            assert isinstance(record, NoteRemembered | NoteRedacted)
            self._note = record.note
        return self._note

    @property
    def content_hash(self) -> str:
        """The salted digest by which the log binds the content."""
        return _decode_digest(self._header).body_sha256


_COLUMNS = (
    "note.number, note.id, body_seq, seq_from, log.body, log.header, state.importance, "
    "state.valid_to, state.expires_at, deleted_at, state.state, quarantine"
)
_VISIBLE = (
    "(agent_id = :reader OR scope IN ('public', 'global') OR EXISTS ("
    "SELECT 1 FROM share WHERE share.number = note.number AND share.agent_id = :reader "
    "AND share.seq_from <= :seq AND :seq < share.seq_to))"
)


_BATCH = 1_000
_STATES = {state.value: state for state in ConsolidationState}


class _HeaderDigest(msgspec.Struct):
    body_sha256: str


_decode_digest = msgspec.json.Decoder(_HeaderDigest).decode


def select_notes(
    db: sqlite3.Connection,
    *,
    reader: str | None,
    filters: Filters,
    seq: int,
    at: int,
    id: str | None = None,
    among: Collection[int] | None = None,
) -> list[Row]:
    """Return the notes that a reader sees as of position `seq` and time `at`, by number.

    `reader` None is the owner, who sees every note. `id` and `among` limit the notes that are read,
    by id or by number. Nothing is checked: a position beyond the log is the head.
    """
    where, given = _where(reader, filters, seq, at)
    if id is not None:
        where, given = f"{where} AND note.id = :id", {**given, "id": id}
    select = (
        f"SELECT {_COLUMNS} FROM note JOIN state USING (number) JOIN log ON log.seq = body_seq "
        f"WHERE {where}"
    )
    if among is None:
        return [_row_of(row) for row in db.execute(f"{select} ORDER BY note.number", given)]
    some = in_batches(db, f"{select} AND note.number", among, given, order="note.number")
    return [_row_of(row) for row in some]


def scope_numbers(
    db: sqlite3.Connection,
    *,
    reader: str | None,
    filters: Filters,
    seq: int,
    at: int,
) -> list[int]:
    """Return the numbers of the notes that `select_notes` returns, in no order."""
    where, given = _where(reader, filters, seq, at)
    rows = db.execute(
        f"SELECT note.number FROM note JOIN state USING (number) WHERE {where}", given
    )
    return [number for (number,) in rows]


def _where(
    reader: str | None, filters: Filters, seq: int, at: int
) -> tuple[str, dict[str, object]]:
    where, values = _conditions(filters)
    if reader is not None:
        where.append(_VISIBLE)
    return " AND ".join(where), {**values, "seq": seq, "at": at, "reader": reader}


def _conditions(filters: Filters) -> tuple[list[str], dict[str, object]]:
    """Return the SQL conditions of the filters, and the values that they name."""
    where = ["state.seq_from <= :seq", ":seq < state.seq_to"]
    values: dict[str, object] = {}
    for condition, asked in (
        ("deleted_at IS NULL", not filters.deleted),
        ("(state.expires_at IS NULL OR state.expires_at > :at)", not filters.expired),
        ("quarantine = ''", not filters.quarantined),
        ("state.state NOT IN ('archived', 'forgotten')", not filters.archived),
        (
            "valid_from <= :at AND (state.valid_to IS NULL OR :at < state.valid_to)",
            filters.current,
        ),
    ):
        if asked:
            where.append(condition)
    for column, chosen in (("memory_type", filters.memory_types), ("scope", filters.scopes)):
        if chosen:
            where.append(f"{column} IN ({_bind_names(values, column, sorted(chosen))})")
    if filters.tags:
        names = _bind_names(values, "tag", sorted(filters.tags))
        where.append(
            f"EXISTS (SELECT 1 FROM tag WHERE tag.number = note.number AND tag IN ({names}))"
        )
    for condition, name, value in (
        ("state.importance >= :importance", "importance", filters.min_importance),
        ("org_id = :org_id", "org_id", filters.org_id),
        ("thread_id = :thread_id", "thread_id", filters.thread_id),
        ("author = :author", "author", filters.author),
        ("key = :key", "key", filters.key),
        ("created_at >= :after", "after", filters.after),
        ("created_at < :before", "before", filters.before),
    ):
        if value is not None:
            where.append(condition)
            values[name] = value
    return where, values


def _bind_names(values: dict[str, object], name: str, chosen: list[str]) -> str:
    keys = [f"{name}{number}" for number in range(len(chosen))]
    values.update(zip(keys, map(str, chosen), strict=True))
    return ", ".join(f":{key}" for key in keys)


def _row_of(row: tuple[Any, ...]) -> Row:
    number, id, body_seq, seq_from, body, header, *state = row
    importance, valid_to, expires_at, deleted_at, became, quarantine = state
    return Row(
        number,
        id,
        body_seq,
        seq_from,
        NoteState(
            importance=importance,
            valid_to=valid_to,
            expires_at=expires_at,
            deleted_at=deleted_at,
            state=_STATES[became],
            quarantine=tuple(quarantine.split()),
        ),
        body,
        header,
    )


def read_details(db: sqlite3.Connection, row: Row, seq: int) -> Seen:
    """Return a note with its sightings and recalls up to a position."""
    (sightings,) = db.execute(
        "SELECT count(*) FROM sighting WHERE number = ? AND seq <= ?", (row.number, seq)
    ).fetchone()
    accesses, last = db.execute(
        "SELECT count(*), max(at) FROM access WHERE number = ? AND seq <= ?", (row.number, seq)
    ).fetchone()
    return Seen(
        note=row.note,
        state=row.state,
        number=row.number,
        content_seq=row.body_seq,
        content_hash=row.content_hash,
        sightings=sightings,
        access_count=accesses,
        last_accessed_at=last,
        updated_seq=row.seq_from,
    )


def in_batches(
    db: sqlite3.Connection,
    select: str,
    numbers: Collection[int],
    given: Mapping[str, object] | None = None,
    *,
    order: str = "",
    group: str = "",
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of some notes, batch after batch of ascending numbers.

    `select` ends with the name of the column that has the number; it gets an `IN (...)` appended.
    `order` holds within one batch only: start it with the number to order all rows. `group` is the
    name of a column to group by, with the number in it.
    """
    wanted = sorted(set(numbers))
    for at in range(0, len(wanted), _BATCH):
        # The numbers are written into the statement, since SQLite limits how many values can be
        # bound. `int` makes sure that they are numbers.
        listed = ",".join(map(str, map(int, wanted[at : at + _BATCH])))
        ordered = f" ORDER BY {order}" if order else ""
        grouped = f" GROUP BY {group}" if group else ""
        yield from db.execute(f"{select} IN ({listed}){grouped}{ordered}", given or {})


def erased_at(db: sqlite3.Connection, seq: int) -> tuple[str, ...]:
    """Return the ids of notes that existed at a position and were erased or redacted after it."""
    rows = db.execute(
        "SELECT number, id FROM erased WHERE number <= :seq AND :seq < seq UNION ALL "
        "SELECT number, id FROM note WHERE number <= :seq AND :seq < redacted ORDER BY 1",
        {"seq": seq},
    )
    return tuple(id for _, id in rows)


def check_filters(filters: Filters) -> None:
    """Raise `NoteInvalid` if a time or `min_importance` is out of its range."""
    for name in ("after", "before"):
        check_time(name, getattr(filters, name))
    low = filters.min_importance
    if low is not None and not 0.0 <= low <= 1.0:
        raise NoteInvalid(field="min_importance", why="from 0 to 1", given=low)
