"""Erasure: a note's bytes taken out of log, projections and vectors, in one transaction.

The entry that says so lists every place that is empty now, so an empty place that nobody lists is
damage. It is the only thing left of the note, with the headers, which say nothing of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from tallystick.memory.log import EntryHeader
from tallystick.memory.note import REDACTED, SUBJECT_TAG
from tallystick.memory.records import (
    NoteErasedRecord,
    NoteRedacted,
    NotesExported,
    NotesForgotten,
    decode_memory_record,
)
from tallystick.memory.selection import Row
from tallystick.memory.sqlite import Pen

__all__ = ["Done", "done_under", "entries_of", "erase_note", "exports_of", "redact_note"]

# What says something of a note. The others say what was thought of it, and outlive a redaction.
_TELLING = frozenset({"note.remembered", "note.redacted", "note.sighted", "note.embedded"})

_header = msgspec.json.Decoder(EntryHeader).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What the log has of an act that was done under an origin. `receipt` is canonical JSON."""

    ids: tuple[str, ...]
    erased: bool
    receipt: str | None


def erase_note(
    pen: Pen, row: Row, *, why: str, by: str | None, origin: str | None
) -> tuple[int, ...]:
    """Leave nothing of a note but its id and its places. Returns those."""
    places = entries_of(pen.db, row.number)
    seqs = tuple(seq for seq, _ in places)
    pen.append(NoteErasedRecord(entries=seqs, why=why, by=by), note=row.note.id, origin=origin)
    _empty(pen, row.number, seqs)
    return seqs


def redact_note(pen: Pen, row: Row, *, by: str | None, origin: str | None) -> tuple[int, ...]:
    """Leave of a note who it belonged to and where it stood. Returns the places that are empty."""
    left = msgspec.structs.replace(
        row.note,
        content=REDACTED,
        tags=tuple(tag for tag in row.note.tags if not tag.startswith(SUBJECT_TAG)),
        metadata={"redacted": True},
        # These can say as much as the text.
        author=None,
        key=None,
        source_id=None,
    )
    seqs = tuple(seq for seq, tag in entries_of(pen.db, row.number) if tag in _TELLING)
    record = NoteRedacted(note=left, state=row.state, entries=seqs, by=by)
    pen.append(record, note=row.note.id, origin=origin)
    _empty(pen, row.number, seqs)
    return seqs


def entries_of(db: sqlite3.Connection, number: int) -> list[tuple[int, str]]:
    """The places in the log of everything about a note, each with its tag."""
    rows = db.execute(
        "SELECT seq, header FROM log WHERE seq = :number "
        "UNION ALL SELECT log.seq, header FROM later JOIN log USING (seq) WHERE number = :number "
        "ORDER BY 1",
        {"number": number},
    )
    return [(seq, _header(header).tag) for seq, header in rows]


def exports_of(db: sqlite3.Connection, ids: Collection[str]) -> tuple[tuple[int, str], ...]:
    """The exports that had one of these notes, or may have had, by place and name."""
    wanted = set(ids)
    found: list[tuple[int, str]] = []
    for seq, body in db.execute("SELECT seq, body FROM exported JOIN log USING (seq) ORDER BY seq"):
        record = decode_memory_record(body)
        if isinstance(record, NotesExported):
            named = record.ids is None or not wanted.isdisjoint(record.ids)
            found.extend([(seq, record.label)] if named and wanted else [])
    return tuple(found)


def done_under(db: sqlite3.Connection, origin: str) -> Done | None:
    """What was done under an origin, None if nothing was."""
    row = db.execute("SELECT seq FROM origin WHERE origin = ?", (origin,)).fetchone()
    if row is None:
        return None
    ids: list[str] = []
    erased = False
    receipt = None
    for header_bytes, body in db.execute(
        "SELECT header, body FROM log WHERE seq >= ? ORDER BY seq", (row[0],)
    ):
        header = _header(header_bytes)
        if header.origin != origin:
            break
        ids.extend([header.note] if header.note is not None else [])
        record = None if body is None else decode_memory_record(body)
        erased = erased or isinstance(record, NoteErasedRecord | NoteRedacted)
        receipt = record.receipt if isinstance(record, NotesForgotten) else receipt
    return Done(ids=tuple(ids), erased=erased, receipt=receipt)


def _empty(pen: Pen, number: int, seqs: Collection[int]) -> None:
    pen.empty(list(seqs))
    pen.db.execute("DELETE FROM vector WHERE number = ?", (number,))
