"""Which notes a request to forget is about: by criteria, subject, provenance, or by their time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import msgspec

from tallystick.memory.errors import NoteInvalid
from tallystick.memory.forgotten import Criteria
from tallystick.memory.log import EntryHeader
from tallystick.memory.note import SUBJECT_TAG, ConsolidationState
from tallystick.memory.projection_schema import OPEN
from tallystick.memory.selection import EVERYTHING, Row, select_notes
from tallystick.memory.sqlite import SqliteMemory

__all__ = ["expired_ids", "living", "matching_ids", "provenance_ids", "saying_ids", "subject_ids"]

_HOUR_MS = 3_600_000
_header = msgspec.json.Decoder(EntryHeader).decode


def matching_ids(memory: SqliteMemory, criteria: Criteria, *, owner: str | None) -> list[str]:
    """Every living note that meets the criteria: those of `owner`, or with None anybody's."""
    if criteria == Criteria():
        raise NoteInvalid(field="criteria", why="none is given, and this would forget everything")
    age, low = criteria.max_age_hours, criteria.min_importance_below
    now = memory.clock()
    oldest = None if age is None else now - age * _HOUR_MS
    with memory.reading() as db:
        rows = living(db, memory.resolve(None), now)
    return [
        row.note.id
        for row in rows
        if (owner is None or row.note.agent_id == owner)
        and (oldest is None or row.note.created_at < oldest)
        and (low is None or row.state.importance < low)
        and criteria.memory_type in (None, row.note.memory_type)
        and (not criteria.tags or not criteria.tags.isdisjoint(row.note.tags))
        and criteria.agent_id in (None, row.note.agent_id)
        and criteria.thread_id in (None, row.note.thread_id)
    ]


def subject_ids(memory: SqliteMemory, subject: str) -> list[str]:
    """Every note with the tag `subject:<id>`, deleted ones too."""
    if not subject.strip():
        raise NoteInvalid(field="subject", why="it is blank")
    with memory.reading() as db:
        rows = db.execute(
            "SELECT id FROM note JOIN tag USING (number) WHERE tag = ? ORDER BY number",
            (f"{SUBJECT_TAG}{subject}",),
        ).fetchall()
    return [id for (id,) in rows]


def provenance_ids(
    memory: SqliteMemory, *, principal: str | None, session_id: str | None
) -> list[str]:
    """Everything that a principal wrote down, or that a session did, or both together."""
    chosen = {"created_by": principal, "session_id": session_id}
    given = {name: value for name, value in chosen.items() if value is not None}
    if not given:
        raise NoteInvalid(field="principal", why="say whose notes: a principal, a session or both")
    where = " AND ".join(f"{name} = :{name}" for name in given)
    with memory.reading() as db:
        return [id for (id,) in db.execute(f"SELECT id FROM note WHERE {where}", given)]


def expired_ids(memory: SqliteMemory) -> list[str]:
    """Every note whose time is over."""
    with memory.reading() as db:
        rows = db.execute(
            "SELECT id FROM note JOIN state USING (number) WHERE seq_to = ? AND expires_at <= ?",
            (OPEN, memory.clock()),
        ).fetchall()
    return [id for (id,) in rows]


def saying_ids(memory: SqliteMemory, says: Callable[[bytes], bool]) -> list[str]:
    """Every note of which an entry of the log, as its bytes, says something."""
    found: dict[str, None] = {}
    for entry in memory.entries():
        if entry.body is not None and says(entry.body):
            note = _header(entry.header).note
            found.update({} if note is None else {note: None})
    return list(found)


def living(db: sqlite3.Connection, seq: int, at: int) -> list[Row]:
    """Every note that is neither deleted nor put away."""
    rows = select_notes(db, reader=None, filters=EVERYTHING, seq=seq, at=at)
    away = (ConsolidationState.ARCHIVED, ConsolidationState.FORGOTTEN)
    return [row for row in rows if row.state.deleted_at is None and row.state.state not in away]
