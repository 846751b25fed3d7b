"""Remember a note, and consolidate several into one.

A note to remember has three cases. It is new. It exists already, and was sighted again. Or its key
exists, and the validity of the earlier note ends where the new one begins. The case, and whether
the note is held back, are decided in the transaction that appends the entries. The log records the
decision, so no reader decides again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tallystick.memory.bare import read_off
from tallystick.memory.errors import NoteInvalid
from tallystick.memory.note import (
    PROCEDURAL_IMPORTANCE_MIN,
    WORKING_TTL_MS,
    ConsolidationState,
    MemoryType,
    NewNote,
    Note,
    NoteScope,
    Permission,
    SourceType,
    check_agent,
    check_new,
    duplicate_digest,
)
from tallystick.memory.recall.selection import EVERYTHING, Row, select_notes
from tallystick.memory.sharing import check_may, check_visible, rules_for
from tallystick.memory.store.projection import OPEN, number_of
from tallystick.memory.store.records import (
    NoteArchived,
    NoteClosed,
    NoteQuarantined,
    NoteRelated,
    NoteRemembered,
    NoteShared,
    NoteSighted,
)
from tallystick.memory.store.sqlite import LogWriter, SqliteMemory
from tallystick.memory.suspicion import Screen, Screening

# Remembering: a new note, a sighting, or a note that ends an earlier one.


BATCH_MAX = 10_000


class Remembered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of remembering a note. `content_hash` is salted: it proves the text, and hides it.

    `sighted`: the note existed already. `superseded` are the notes whose validity it ended.
    `quarantine` has the reasons why it is held back; such a note is stored, and not recalled until
    reviewed. `again`: this very request was answered before, and nothing was written now.
    """

    id: str
    seq: int
    content_hash: str
    sighted: bool = False
    superseded: tuple[str, ...] = ()
    quarantine: tuple[str, ...] = ()
    again: bool = False


def remember(
    memory: SqliteMemory,
    new: NewNote,
    *,
    origin: str | None = None,
    screening: Screening | None = None,
) -> Remembered:
    """Remember a note, and wait for the disk.

    `origin` names the request, for a caller who may have to repeat it after a crash: the second
    time returns the first answer. `screening` decides about quarantine; by default it is `Screen`.

    Raise `NoteInvalid` for a field that cannot be kept, for a `related_to` that its agent does not
    see here, and for an `origin` that is no name or that of a request of another kind.
    """
    (made,) = remember_all(memory, [new], origins=[origin], screening=screening)
    return made


def remember_all(
    memory: SqliteMemory,
    news: Sequence[NewNote],
    *,
    origins: Sequence[str | None] | None = None,
    screening: Screening | None = None,
) -> list[Remembered]:
    """Remember notes, in order and in one transaction: all of them, or with an error none.

    `origins` has a name or None for each; `screening` is as in `remember`. Raise `NoteInvalid` as
    `remember` does, for more than 10,000 notes, and for another number of origins than of notes.
    """
    if len(news) > BATCH_MAX:
        raise NoteInvalid(field="notes", why=f"at most {BATCH_MAX:,} at a time", given=len(news))
    names = [None] * len(news) if origins is None else list(origins)
    if len(names) != len(news):
        raise NoteInvalid(field="origins", why=f"{len(news)} of them", given=len(names))
    for new in news:
        check_new(new)
    for name in names:
        if name is not None:
            check_origin(name)
    if not news:
        return []
    with memory.writing() as writer:
        intake = _Intake(writer, screening or Screen())
        return [intake.take(new, name) for new, name in zip(news, names, strict=True)]


CONSOLIDATES = "consolidates"


def consolidate(
    memory: SqliteMemory,
    ids: Sequence[str],
    content: str,
    *,
    actor: str | None,
    memory_type: MemoryType = MemoryType.SEMANTIC,
    created_by: str | None = None,
    screening: Screening | None = None,
) -> Remembered:
    """Remember a text that takes the place of notes, in one transaction with their end.

    The notes stay, with the state `consolidated`: they are valid until now, and the new note has
    the relation `consolidates` to each. The new note belongs to their agent. It has their tags, the
    largest of their importances, and their scope, author and organisation if all have the same. If
    it is held back for a review, the notes stay as they are.

    `actor` None is the owner of the file; others need `write` on each note. Raise `NoteInvalid` for
    fewer than two notes or more than 10,000, notes of several agents, one that is deleted,
    archived, held back or consolidated already, and a text that cannot be a note or is that of one
    of the notes. Raise
    `NoteNotFound` or `MemoryPermissionDenied` as `share` does.
    """
    asked = tuple(dict.fromkeys(ids))
    if len(asked) < _CONSOLIDATED_MIN:
        raise NoteInvalid(field="ids", why="at least two notes", given=len(asked))
    if len(asked) > BATCH_MAX:
        raise NoteInvalid(field="ids", why=f"at most {BATCH_MAX:,}", given=len(asked))
    with memory.writing() as writer:
        for id in asked:
            check_may(writer.db, id, actor=actor, needs=Permission.WRITE)
        numbers = [number_of(writer.db, id) for id in asked]
        rows = select_notes(
            writer.db,
            reader=None,
            filters=EVERYTHING,
            seq=writer.head.count,
            at=writer.at,
            among=[number for number in numbers if number is not None],
        )
        for row in rows:
            _check_consolidable(row)
        new = _consolidated(rows, content, memory_type, created_by)
        check_new(new)
        made = _Intake(writer, screening or Screen()).take(new, None)
        if made.id in asked:
            raise NoteInvalid(field="content", why="another text than that of the notes")
        if made.quarantine:
            return made
        for row in rows:
            _end_for(writer, row, by=made.id, actor=actor)
    return msgspec.structs.replace(made, superseded=tuple(row.id for row in rows))


_CONSOLIDATED_MIN = 2


def _check_consolidable(row: Row) -> None:
    state = row.state
    why = (
        "is deleted"
        if state.deleted_at is not None
        else "is held back for a review"
        if state.quarantine
        else f"is {state.state.value}"
        if state.state not in (ConsolidationState.RAW, ConsolidationState.ACTIVE)
        else ""
    )
    if why:
        raise NoteInvalid(field="ids", why=f"notes that are recalled; {row.id} {why}")


def _consolidated(
    rows: Sequence[Row], content: str, memory_type: MemoryType, created_by: str | None
) -> NewNote:
    """Return the request to remember a note in place of others. Raise `NoteInvalid` as above."""
    notes = [row.note for row in rows]
    first = notes[0]
    owners = sorted({note.agent_id for note in notes})
    if len(owners) > 1:
        raise NoteInvalid(field="ids", why="notes of one agent", given=", ".join(owners))

    def common(name: str) -> bool:
        return all(getattr(note, name) == getattr(first, name) for note in notes)

    return NewNote(
        agent_id=first.agent_id,
        content=content,
        memory_type=memory_type,
        scope=first.scope if common("scope") else NoteScope.PRIVATE,
        importance=max(row.state.importance for row in rows),
        tags=tuple(dict.fromkeys(tag for note in notes for tag in note.tags)),
        source_type=SourceType.CONSOLIDATION,
        author=first.author if common("author") else None,
        org_id=first.org_id if common("org_id") else None,
        created_by=created_by,
        as_is=True,
    )


def _end_for(writer: LogWriter, row: Row, *, by: str, actor: str | None) -> None:
    """End a note because another one takes its place, and relate the two."""
    writer.append(NoteRelated(to=row.id, relation=CONSOLIDATES, weight=1.0), note=by)
    end = max(writer.at, row.note.valid_from)
    if row.state.valid_to is None or row.state.valid_to > end:
        writer.append(NoteClosed(valid_to=end, by=by), note=row.id)
    record = NoteArchived(state=ConsolidationState.CONSOLIDATED, by=actor)
    writer.append(record, note=row.id)


def check_origin(origin: str) -> None:
    """Raise `NoteInvalid` if `origin` cannot name a request.

    An origin is never erased, so it must not have any content of a note. It has 1 to 128
    characters: letters and digits of ASCII, `-`, `_`, `.`, `:` and `/`.
    """
    check_agent(origin.replace(":", "-").replace("/", "-"), field="origin")


@dataclass(frozen=True, slots=True)
class _Living:
    """A note that can be sighted: not deleted, archived or expired."""

    id: str
    body_seq: int
    importance: float
    expires_at: int | None
    quarantine: str


class _Intake:
    """The notes that one transaction remembers, one after the other."""

    def __init__(self, writer: LogWriter, screening: Screening) -> None:
        self._writer = writer
        self._db = writer.db
        self._screening = screening
        self._positions: dict[str, int] = {}

    def take(self, new: NewNote, origin: str | None) -> Remembered:
        """Remember one note: answer a repeated request, sight a duplicate, or append a new note.

        A new note that is not held back ends earlier ones of its key. Raise `NoteInvalid` for a
        `related_to` that its agent does not see, or a `valid_to` before it begins.
        """
        # Answer a repeated request first: a note that it relates to may be gone by now.
        if origin is not None and (before := self._earlier_answer(origin)) is not None:
            return before
        now = self._writer.at
        for id in new.related_to:
            check_visible(self._db, id, new.agent_id, field="related_to")
        digest_of_new = duplicate_digest(new, secret=self._writer.secret)
        new, fields_read = self._with_fields_read_off(new, now)
        same = self._find_duplicate(new, digest_of_new, now)
        if same is not None:
            return self._sight(new, same, origin)
        note = self._note(new, now, fields_read)
        superseded, valid_to = supersession(self._db, note)
        if valid_to != note.valid_to:
            note = msgspec.structs.replace(note, valid_to=valid_to)
        reasons, score = self._screening.look(self._db, note, now=now)
        if reasons:
            superseded = []  # A note in quarantine ends no other note until it is released.
        record = NoteRemembered(note=note)
        seq, digest = self._writer.append(record, note=note.id, origin=origin, same=digest_of_new)
        for id, end in superseded:
            self._writer.append(NoteClosed(valid_to=end, by=note.id), note=id)
        if reasons:
            self._writer.append(NoteQuarantined(reasons=reasons, score=score), note=note.id)
        for rule in rules_for(self._db, owner=note.agent_id, tags=note.tags):
            shared = NoteShared(
                agent_id=rule.agent_id, permission=rule.permission, by=rule.by, rule=rule.seq
            )
            self._writer.append(shared, note=note.id)
        return Remembered(
            id=note.id,
            seq=seq,
            content_hash=digest,
            superseded=tuple(id for id, _ in superseded),
            quarantine=reasons,
        )

    def _earlier_answer(self, origin: str) -> Remembered | None:
        row = self._db.execute(
            "SELECT log.seq, log.header FROM origin JOIN log USING (seq) WHERE origin.origin = ?",
            (origin,),
        ).fetchone()
        if row is None:
            return None
        seq, bound = int(row[0]), msgspec.json.decode(row[1], type=_HeaderFields)
        if bound.note is None or bound.tag not in ("note.remembered", "note.sighted"):
            raise NoteInvalid(
                field="origin", why="the origin of a request to remember", given=origin
            )
        sighted = bound.tag == "note.sighted"
        superseded, last = ((), seq) if sighted else self._consequences(seq, bound.note)
        number = self._number(bound.note)
        return Remembered(
            id=bound.note,
            seq=seq,
            content_hash=bound.body_sha256
            if number is None
            else self._header_at(number).body_sha256,
            sighted=sighted,
            superseded=superseded,
            quarantine=self._quarantine_at(number, last),
            again=True,
        )

    def _consequences(self, seq: int, id: str) -> tuple[tuple[str, ...], int]:
        """Return the notes that ended because of the note at `seq`, and the last position written.

        Headers say so, which outlive bodies: nothing else is written directly after a new note.
        """
        ended: list[str] = []
        for (header,) in self._db.execute(
            "SELECT header FROM log WHERE seq > ? ORDER BY seq", (seq,)
        ):
            bound = msgspec.json.decode(header, type=_HeaderFields)
            if bound.tag == "note.closed" and bound.note is not None:
                ended.append(bound.note)
            elif bound.tag != "note.quarantined" or bound.note != id:
                break
            seq += 1
        return tuple(ended), seq

    def _number(self, id: str) -> int | None:
        """Return the number of a note, also of one that was erased; None for an unknown id."""
        row = self._db.execute(
            "SELECT number FROM note WHERE id = ? UNION SELECT number FROM erased WHERE id = ?",
            (id, id),
        ).fetchone()
        return None if row is None else int(row[0])

    def _quarantine_at(self, number: int | None, seq: int) -> tuple[str, ...]:
        """Return why a note was held back as of a position.

        Nothing is known of one that was erased.
        """
        row = self._db.execute(
            "SELECT quarantine FROM state WHERE number = ? AND seq_to > ? "
            "ORDER BY seq_from LIMIT 1",
            (number, seq),
        ).fetchone()
        return () if row is None else tuple(row[0].split())

    def _header_at(self, seq: int) -> _HeaderFields:
        (header,) = self._db.execute("SELECT header FROM log WHERE seq = ?", (seq,)).fetchone()
        return msgspec.json.decode(header, type=_HeaderFields)

    def _find_duplicate(self, new: NewNote, digest_of_new: bytes, now: int) -> _Living | None:
        """Return the living note that says the same and is valid when the new one begins.

        Return None if there is none.
        """
        rows = self._db.execute(
            "SELECT id, body_seq, importance, expires_at, quarantine, valid_from, valid_to "
            "FROM note JOIN state USING (number) WHERE same = ? AND seq_to = ? "
            "AND deleted_at IS NULL AND state NOT IN ('archived', 'forgotten') "
            "AND (expires_at IS NULL OR expires_at > ?)",
            (digest_of_new, OPEN, now),
        ).fetchall()
        at = _valid_from(new, now)
        # The latest first, if several notes say the same.
        for *living, valid_from, valid_to in sorted(rows, key=_by_place, reverse=True):
            covers = valid_from <= at and (valid_to is None or at < valid_to)
            if covers and (new.valid_to is None or new.valid_to == valid_to):
                return _Living(*living)
        return None

    def _sight(self, new: NewNote, same: _Living, origin: str | None) -> Remembered:
        expires = _expiry(new, self._writer.at)
        kept = same.expires_at
        record = NoteSighted(
            at=_created_at(new, self._writer.at),
            importance=max(same.importance, _importance(new)),
            expires_at=None if expires is None or kept is None else max(expires, kept),
            thread_id=new.thread_id,
            position=new.position,
            session_id=new.session_id,
            created_by=new.created_by,
        )
        seq, _ = self._writer.append(record, note=same.id, origin=origin)
        return Remembered(
            id=same.id,
            seq=seq,
            content_hash=self._header_at(same.body_seq).body_sha256,
            sighted=True,
            quarantine=tuple(same.quarantine.split()),
        )

    def _with_fields_read_off(self, new: NewNote, now: int) -> tuple[NewNote, tuple[str, ...]]:
        """Return the request with author and time as its text says them, and the fields' names.

        What the caller said stays, and with `as_is` everything.
        """
        if new.as_is or (new.author is not None and new.created_at is not None):
            return new, ()
        found = read_off(
            new.content, now=now, known=lambda name: self._has_author(new.agent_id, name)
        )
        fields: dict[str, Any] = {}
        if new.author is None and found.author is not None:
            fields["author"] = found.author
        # A note that the caller says was over by then is of another time.
        over = new.valid_to is not None and found.at is not None and found.at > new.valid_to
        if new.created_at is None and found.at is not None and not over:
            fields["created_at"] = found.at
        return (msgspec.structs.replace(new, **fields) if fields else new), tuple(fields)

    def _has_author(self, agent_id: str, author: str) -> bool:
        found = self._db.execute(
            "SELECT 1 FROM note WHERE agent_id = ? AND author = ? LIMIT 1", (agent_id, author)
        ).fetchone()
        return found is not None

    def _note(self, new: NewNote, now: int, fields_read: tuple[str, ...] = ()) -> Note:
        if new.valid_to is not None and new.valid_to < _valid_from(new, now):
            raise NoteInvalid(field="valid_to", why="at or after `valid_from`", given=new.valid_to)
        return Note(
            id=self._writer.new_id(),
            agent_id=new.agent_id,
            content=new.content,
            created_at=_created_at(new, now),
            valid_from=_valid_from(new, now),
            memory_type=new.memory_type,
            scope=new.scope,
            importance=_importance(new),
            tags=tuple(dict.fromkeys(new.tags)),
            metadata=new.metadata,
            source_type=new.source_type,
            source_id=new.source_id,
            org_id=new.org_id,
            thread_id=new.thread_id,
            position=self._position(new),
            author=new.author,
            created_by=new.created_by,
            session_id=new.session_id,
            key=new.key,
            related_to=tuple(dict.fromkeys(new.related_to)),
            valid_to=new.valid_to,
            expires_at=_expiry(new, now),
            decay_rate=new.decay_rate,
            decay_function=new.decay_function,
            read_off=fields_read,
        )

    def _position(self, new: NewNote) -> int | None:
        """Return the place in the thread: the one given, or the next one.

        Without a thread and a place it is None.
        """
        if new.thread_id is None:
            return new.position
        last = self._positions.get(new.thread_id)
        if last is None:
            (found,) = self._db.execute(
                "SELECT max(position) FROM note WHERE thread_id = ?", (new.thread_id,)
            ).fetchone()
            last = -1 if found is None else int(found)
        position = last + 1 if new.position is None else new.position
        self._positions[new.thread_id] = max(last, position)
        return position


def supersession(db: sqlite3.Connection, note: Note) -> tuple[list[tuple[str, int]], int | None]:
    """Return the notes that end when this one begins, with that time, and when this one ends.

    This one ends where the next one begins, or at its own `valid_to` if that is earlier; None if
    there is neither. Without a key it ends no other. Notes of one owner with one key follow each
    other in the time of the world, in whatever order they were learned. Deleted notes, and notes
    that are held back, do not count.
    """
    if note.key is None:
        return [], note.valid_to
    rows = db.execute(
        "SELECT id, valid_from, valid_to FROM note JOIN state USING (number) "
        "WHERE agent_id = ? AND key = ? AND seq_to = ? AND deleted_at IS NULL "
        "AND quarantine = ''",
        (note.agent_id, note.key, OPEN),
    ).fetchall()
    ended: list[tuple[str, int]] = []
    valid_to = note.valid_to
    for id, begin, end in rows:
        if begin <= note.valid_from and (end is None or end > note.valid_from):
            ended.append((id, note.valid_from))
        elif begin > note.valid_from and (valid_to is None or valid_to > begin):
            valid_to = begin
    return ended, valid_to


class _HeaderFields(msgspec.Struct):
    """The fields of a header that are needed here."""

    tag: str
    note: str | None
    body_sha256: str


def _by_place(row: tuple[Any, ...]) -> int:
    return int(row[1])


def _created_at(new: NewNote, now: int) -> int:
    return now if new.created_at is None else new.created_at


def _valid_from(new: NewNote, now: int) -> int:
    return _created_at(new, now) if new.valid_from is None else new.valid_from


def _importance(new: NewNote) -> float:
    if new.memory_type is MemoryType.PROCEDURAL:
        return max(PROCEDURAL_IMPORTANCE_MIN, float(new.importance))
    return float(new.importance)


def _expiry(new: NewNote, now: int) -> int | None:
    if new.expires_at is not None:
        return new.expires_at
    if new.ttl_ms is not None:
        return now + new.ttl_ms
    return now + WORKING_TTL_MS if new.memory_type is MemoryType.WORKING else None
