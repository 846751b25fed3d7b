"""Forget notes: choose them, lower their importance, hide them, or erase their bytes.

| strategy      | is recalled | what was known before | bytes                         |
| decay         | yes, lower  | can be asked for      | stay                          |
| archive       | no          | can be asked for      | stay                          |
| soft_delete   | no          | can be asked for      | stay                          |
| redact        | `[REDACTED]`| says `erased`         | gone; id, owner, thread stay  |
| hard_delete   | no          | says `erased`         | gone; id and position stay    |

Each note that is forgotten is an entry of the log, all in one transaction. A note that cannot be
forgotten is returned with the reason, and the others are forgotten. With a key, the same
transaction signs a receipt: the next of the chain, in the log beside those of recalls. Erased bytes
are gone from the log, the indexes, the vectors, free pages and SQLite's own log. Earlier exports
are listed, and nothing is claimed of them. Recorded runs are another file's: see
`tallystick.upkeep.erasure`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.core.errors import TallystickError
from tallystick.memory.errors import BackendUnsupported, NoteErased, NoteInvalid, NoteNotFound
from tallystick.memory.note import (
    REDACTED,
    SUBJECT_TAG,
    ConsolidationState,
    MemoryType,
    Note,
    Permission,
    check_agent,
    is_note_id,
    kept_at,
    worth_of,
)
from tallystick.memory.recall.selection import EVERYTHING, Row, select_notes
from tallystick.memory.receipts.receipt import (
    ForgetReceipt,
    ForgottenNote,
    Key,
    NotForgotten,
    RunErased,
    read_receipt,
    receipt_bytes,
)
from tallystick.memory.receipts.receipts import chain_end, issue_forget
from tallystick.memory.remember import check_origin
from tallystick.memory.sharing import check_may
from tallystick.memory.store.projection import OPEN
from tallystick.memory.store.records import (
    Criteria,
    Failure,
    ForgetStrategy,
    NoteArchived,
    NoteDecayed,
    NoteDeleted,
    NoteErasedRecord,
    NoteRedacted,
    NotesExported,
    NotesForgetting,
    NotesForgotten,
    decode_memory_record,
)
from tallystick.memory.store.sqlite import EntryHeader, LogWriter, SqliteMemory, read_entry_header

# The amount by which forgetting by decay lowers the importance, unless the note has its own rate.
DECAY_STEP = 0.1


def importance_after_decay(importance: float, *, rate: float | None) -> float:
    """Return the importance after one forgetting by decay: less by the note's rate, at least 0.

    The rate is 0.1 by default.
    """
    return max(0.0, importance - (DECAY_STEP if rate is None else rate))


# Choosing the notes: by criteria, subject, provenance or time.


_HOUR_MS = 3_600_000
_decode_header = msgspec.json.Decoder(EntryHeader).decode


def matching_ids(memory: SqliteMemory, criteria: Criteria, *, owner: str | None) -> list[str]:
    """Return the ids of all living notes that meet every criterion; one of the tags is enough.

    With `owner`, only its notes count. Raise `NoteInvalid` if no criterion is given.
    """
    if criteria == Criteria():
        raise NoteInvalid(field="criteria", why="none is given, and this would forget everything")
    age, low = criteria.max_age_hours, criteria.min_importance_below
    now = memory.clock()
    oldest = None if age is None else now - age * _HOUR_MS
    with memory.reading() as db:
        rows = living_rows(db, memory.resolve(None), now)
    return [
        row.note.id
        for row in rows
        if (owner is None or row.note.agent_id == owner)
        and (oldest is None or kept_at(row.note) < oldest)
        and (low is None or row.state.importance < low)
        and criteria.memory_type in (None, row.note.memory_type)
        and (not criteria.tags or not criteria.tags.isdisjoint(row.note.tags))
        and criteria.agent_id in (None, row.note.agent_id)
        and criteria.thread_id in (None, row.note.thread_id)
    ]


def subject_ids(memory: SqliteMemory, subject: str) -> list[str]:
    """Return the ids of all notes with the tag `subject:<id>`, deleted ones too.

    Raise `NoteInvalid` if the subject is blank.
    """
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
    """Return the ids of all notes that a principal wrote, or that were written in a session.

    Deleted ones are among them. If both are given, both must match. Raise `NoteInvalid` if neither
    is.
    """
    chosen = {"created_by": principal, "session_id": session_id}
    given = {name: value for name, value in chosen.items() if value is not None}
    if not given:
        raise NoteInvalid(field="principal", why="say whose notes: a principal, a session or both")
    where = " AND ".join(f"{name} = :{name}" for name in given)
    with memory.reading() as db:
        return [id for (id,) in db.execute(f"SELECT id FROM note WHERE {where}", given)]


def expired_ids(memory: SqliteMemory, *, owner: str | None = None) -> list[str]:
    """Return the ids of all notes whose time is over by the memory's clock, deleted ones too.

    With `owner`, only its notes count.
    """
    with memory.reading() as db:
        rows = db.execute(
            "SELECT id FROM note JOIN state USING (number) "
            "WHERE seq_to = :open AND expires_at <= :now AND (:owner IS NULL OR agent_id = :owner)",
            {"open": OPEN, "now": memory.clock(), "owner": owner},
        ).fetchall()
    return [id for (id,) in rows]


def ids_with_content(memory: SqliteMemory, says: Callable[[bytes], bool]) -> list[str]:
    """Return the ids of all notes with an entry in the log whose body satisfies `says`.

    It is called once for each entry that has a body; those of erased notes have none.
    """
    found: dict[str, None] = {}
    for entry in memory.entries():
        if entry.body is not None and says(entry.body):
            note = _decode_header(entry.header).note
            found.update({} if note is None else {note: None})
    return list(found)


def living_rows(db: sqlite3.Connection, seq: int, at: int) -> list[Row]:
    """Return the rows of all agents' notes that are neither deleted, archived nor forgotten."""
    rows = select_notes(db, reader=None, filters=EVERYTHING, seq=seq, at=at)
    away = (ConsolidationState.ARCHIVED, ConsolidationState.FORGOTTEN)
    return [row for row in rows if row.state.deleted_at is None and row.state.state not in away]


# A pass over all notes, which archives those that hardly matter any more.


def decay_pass(
    memory: SqliteMemory,
    *,
    archive_below: float = 0.2,
    forget_below: float = 0.05,
    owner: str | None = None,
    dry_run: bool = False,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Archive living notes with an importance below `archive_below`, in one transaction.

    Below `forget_below`, mark them forgotten instead. With `owner`, only its notes count. With
    `dry_run`, nothing is changed. Return the archived ids, then the forgotten.

    The importance is `worth_of` now; the stored one stays. Procedural notes do not decay. Raise
    `NoteInvalid` unless 0 <= `forget_below` <= `archive_below` <= 1.
    """
    if not 0.0 <= forget_below <= archive_below <= 1.0:
        raise NoteInvalid(field="forget_below", why="from 0 to `archive_below`, which is up to 1")
    if dry_run:
        with memory.reading() as db:
            faded = _faded(db, memory.resolve(None), memory.clock(), archive_below, owner)
    else:
        with memory.writing() as writer:
            faded = _faded(writer.db, writer.head.count, writer.at, archive_below, owner)
            for id, left in faded:
                gone = left < forget_below
                state = ConsolidationState.FORGOTTEN if gone else ConsolidationState.ARCHIVED
                writer.append(NoteArchived(state=state, by=owner), note=id)
    forgotten = tuple(id for id, left in faded if left < forget_below)
    return tuple(id for id, left in faded if left >= forget_below), forgotten


def _faded(
    db: sqlite3.Connection, seq: int, at: int, below: float, owner: str | None
) -> list[tuple[str, float]]:
    """Return the living notes that matter less than `below`, with what is left of each."""
    counts = dict(db.execute("SELECT number, count(*) FROM access GROUP BY number"))
    found = []
    for row in living_rows(db, seq, at):
        if row.note.memory_type is MemoryType.PROCEDURAL or owner not in (None, row.note.agent_id):
            continue
        used = counts.get(row.number, 0)
        left = worth_of(row.note, row.state.importance, now=at, access_count=used)
        if left < below:
            found.append((row.id, left))
    return found


# The announcement of an erasure, with the runs that are erased too.


def begin_forgetting(memory: SqliteMemory, ids: Sequence[str], *, runs: Sequence[str]) -> None:
    """Record which runs are about to be erased with notes.

    The record is on disk when this returns.
    """
    with memory.writing() as writer:
        writer.append(NotesForgetting(ids=tuple(ids), runs=tuple(runs), at=writer.at))


def announced_runs(memory: SqliteMemory, ids: Collection[str]) -> frozenset[str]:
    """Return the runs that were to be erased with one of these notes, whether or not they were.

    Raise one of `UNREADABLE` for an entry that cannot be read.
    """
    found: set[str] = set()
    with memory.reading() as db:
        for (body,) in db.execute("SELECT body FROM forgetting JOIN log USING (seq)"):
            record = None if body is None else decode_memory_record(body)
            if isinstance(record, NotesForgetting) and not set(record.ids).isdisjoint(ids):
                found.update(record.runs)
    return frozenset(found)


# Erasure: remove a note's bytes from log, projections and vectors, in one transaction.
#
# The entry about it lists every position that is empty now, so an empty position that no entry
# lists is damage. Of the note, only this entry and the headers are left, and they have none of its
# content.


# The first records of a request to remember, whose origins name no forgetting.
_REMEMBERING = frozenset({"note.remembered", "note.sighted"})
# Records with content of a note. The others are about its state, and outlive a redaction.
_TELLING = frozenset({"note.remembered", "note.redacted", "note.sighted", "note.embedded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAct:
    """The log's account of an act that was done under an origin. `receipt` is canonical JSON."""

    ids: tuple[str, ...]
    erased: bool
    receipt: str | None


def erase_note(
    writer: LogWriter, row: Row, *, why: str, by: str | None, origin: str | None
) -> tuple[int, ...]:
    """Erase everything of a note except its id and the headers of its entries.

    Append the entry that lists the emptied positions, and return them. The caller's transaction
    holds it all.
    """
    places = entries_of(writer.db, row.number)
    seqs = tuple(seq for seq, _ in places)
    writer.append(NoteErasedRecord(entries=seqs, why=why, by=by), note=row.note.id, origin=origin)
    _erase_content(writer, row.number, seqs)
    return seqs


def redact_note(
    writer: LogWriter, row: Row, *, by: str | None, origin: str | None
) -> tuple[int, ...]:
    """Erase the content of a note, its vectors, author, key, source and subject tags.

    Its owner, thread and other tags stay. Append the entry with what is left of it, and return the
    emptied positions. The caller's transaction holds it all.
    """
    left = msgspec.structs.replace(
        row.note,
        content=REDACTED,
        tags=tuple(tag for tag in row.note.tags if not tag.startswith(SUBJECT_TAG)),
        metadata={"redacted": True},
        # These can reveal as much as the text.
        author=None,
        key=None,
        source_id=None,
    )
    seqs = tuple(seq for seq, tag in entries_of(writer.db, row.number) if tag in _TELLING)
    record = NoteRedacted(note=left, state=row.state, entries=seqs, by=by)
    writer.append(record, note=row.note.id, origin=origin)
    _erase_content(writer, row.number, seqs)
    return seqs


def entries_of(db: sqlite3.Connection, number: int) -> list[tuple[int, str]]:
    """Return the positions in the log of all entries about a note, each with its tag."""
    rows = db.execute(
        "SELECT seq, header FROM log WHERE seq = :number "
        "UNION ALL SELECT log.seq, header FROM later JOIN log USING (seq) WHERE number = :number "
        "ORDER BY 1",
        {"number": number},
    )
    return [(seq, _decode_header(header).tag) for seq, header in rows]


def exports_of(db: sqlite3.Connection, ids: Collection[str]) -> tuple[tuple[int, str], ...]:
    """Return position and label of each export that had one of these notes, or may have had.

    An export of more than 10,000 notes does not name them, so it may have had any.
    """
    wanted = set(ids)
    found: list[tuple[int, str]] = []
    for seq, body in db.execute("SELECT seq, body FROM exported JOIN log USING (seq) ORDER BY seq"):
        record = decode_memory_record(body)
        if isinstance(record, NotesExported):
            named = record.ids is None or not wanted.isdisjoint(record.ids)
            found.extend([(seq, record.label)] if named and wanted else [])
    return tuple(found)


def find_act(db: sqlite3.Connection, origin: str) -> EarlierAct | None:
    """Return what was forgotten under an origin, or None if nothing was.

    Raise `NoteInvalid` for the origin of a request to remember, and one of `UNREADABLE` for an
    entry that cannot be read.
    """
    row = db.execute("SELECT seq FROM origin WHERE origin = ?", (origin,)).fetchone()
    if row is None:
        return None
    ids: list[str] = []
    erased = False
    receipt = None
    for header_bytes, body in db.execute(
        "SELECT header, body FROM log WHERE seq >= ? ORDER BY seq", (row[0],)
    ):
        header = _decode_header(header_bytes)
        if header.origin != origin:
            break
        if header.tag in _REMEMBERING:
            # Its note would be returned as forgotten.
            raise NoteInvalid(field="origin", why="the origin of a request to forget", given=origin)
        ids.extend([header.note] if header.note is not None else [])
        record = None if body is None else decode_memory_record(body)
        erased = erased or isinstance(record, NoteErasedRecord | NoteRedacted)
        receipt = record.receipt if isinstance(record, NotesForgotten) else receipt
    return EarlierAct(ids=tuple(ids), erased=erased, receipt=receipt)


def _erase_content(writer: LogWriter, number: int, seqs: Collection[int]) -> None:
    writer.erase_bodies(list(seqs))
    writer.db.execute("DELETE FROM vector WHERE number = ?", (number,))


# Forgetting notes by any strategy.


# The most notes of one request: they are one transaction and have one receipt.
NOTES_MAX = 200_000


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a request. There is no receipt without a key, or if nothing was forgotten.

    `scrubbed` is False if the bytes are gone from the log and still in the file, until it is opened
    next: a process was reading older pages, or the caller asked not to scrub. It is None if no
    bytes were to go.
    """

    forgotten: tuple[str, ...]
    errors: tuple[Failure, ...]
    receipt: ForgetReceipt | None
    scrubbed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsErased:
    """The recorded runs that were erased before their notes are forgotten, for the receipt."""

    runs: tuple[RunErased, ...]
    attachments_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgettable:
    """The notes that may be forgotten, the ids of those that are gone, and those that may not."""

    notes: tuple[Note, ...]
    gone: tuple[str, ...]
    errors: tuple[Failure, ...]


# -- requests ----------------------------------------------------------------------------------


def forget(
    memory: SqliteMemory,
    ids: Sequence[str],
    *,
    actor: str | None,
    strategy: ForgetStrategy = ForgetStrategy.SOFT_DELETE,
    why: str = "asked",
    origin: str | None = None,
    key: Key | None = None,
    by: str = "ids",
    runs: RunsErased | None = None,
    scrub: bool = True,
) -> Forgotten:
    """Forget notes by id. `actor` None is the owner of the file; others need `write` on each note.

    `why` and `by`, how they were chosen, are words that the log keeps for ever. `origin` is as in
    `remember`: a repeated request returns the first answer. `key` signs the receipt. With `runs`,
    notes that are gone already are no failures, since their runs were left to erase. Without
    `scrub` the file is not rewritten for erased bytes; that happens when it is opened next, or by
    `SqliteMemory.scrub`.

    A note that cannot be forgotten is in `errors` of the result, and the others are forgotten. The
    first answer to a repeated request comes without its errors. Raise `NoteInvalid` if there are no
    ids, more than 200,000, a word that the log cannot keep, or the origin of a request to remember.
    Raise `BackendUnsupported` for `consolidate`, and `HmacInit` if the key is too short; then
    nothing is forgotten.
    """
    if not ids:
        raise NoteInvalid(field="ids", why="say which notes, by id or by criteria")
    check_agent(why, field="why")
    check_agent(by, field="by")
    act = _Act(actor=actor, strategy=strategy, why=why, by=by, origin=origin, key=key, runs=runs)
    return _forget(memory, ids, act, scrub=scrub)


def preview_forget(
    memory: SqliteMemory, ids: Sequence[str], *, actor: str | None, strategy: ForgetStrategy
) -> Forgettable:
    """Return which notes `forget` would forget, which are erased already, and which it may not.

    Nothing is changed. Erased notes are `gone` for the owner of the file, and not found for others.
    Raise `BackendUnsupported` for `consolidate`, `NoteInvalid` for an actor that is no name.
    """
    _check(actor, strategy, None)
    notes: list[Note] = []
    gone: list[str] = []
    errors: list[Failure] = []
    with memory.reading() as db:
        seq, at = memory.resolve(None), memory.clock()
        for id in dict.fromkeys(ids):
            try:
                row = _find_row(db, id, actor, seq=seq, at=at)
                if not strategy.erases:
                    _mark_record(row, strategy, at=at, by=actor)
                notes.append(row.note)
            except NoteErased:
                gone.append(id)
            except TallystickError as error:
                errors.append(Failure(id=id, code=error.code, message=str(error)))
    return Forgettable(notes=tuple(notes), gone=tuple(gone), errors=tuple(errors))


# -- inside ------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Act:
    """One request to forget, and what it has done so far, note by note."""

    actor: str | None
    strategy: ForgetStrategy
    why: str
    by: str
    origin: str | None = None
    key: Key | None = None
    runs: RunsErased | None = None
    forgotten: list[ForgottenNote] = field(default_factory=list)
    errors: list[Failure] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(each.id for each in self.forgotten)

    def forget_note(self, writer: LogWriter, id: str) -> None:
        """Forget one note, and add it to `forgotten`.

        With `runs`, one that is erased already is added too. Raise the error of `_find_row` or
        `_mark_record` if it cannot be forgotten.
        """
        try:
            row = _find_row(writer.db, id, self.actor, seq=writer.head.count, at=writer.at)
        except NoteErased as error:
            if self.runs is None:
                raise
            self.forgotten.append(_erased_note(writer, error))
            return
        named = ForgottenNote(id=id, seq=row.body_seq, content_hash=row.content_hash)
        match self.strategy:
            case ForgetStrategy.HARD_DELETE:
                gone = erase_note(writer, row, why=self.why, by=self.actor, origin=self.origin)
                self.entries.extend(gone)
            case ForgetStrategy.REDACT:
                gone = redact_note(writer, row, by=self.actor, origin=self.origin)
                self.entries.extend(gone)
            case _:
                record = _mark_record(row, self.strategy, at=writer.at, by=self.actor)
                writer.append(record, note=id, origin=self.origin)
        self.forgotten.append(named)

    def issue_receipt(self, writer: LogWriter) -> ForgetReceipt | None:
        """Sign what was done, and append the receipt to the log.

        Return None if there is no key, or if nothing was forgotten. Raise `HmacInit` if the key is
        too short.
        """
        if self.key is None or not self.forgotten:
            return None
        given = issue_forget(
            key=self.key,
            link=chain_end(writer.db),
            forget_id=writer.new_id(),
            store=writer.store,
            agent_id=self.actor or "",
            strategy=self.strategy,
            asked={"by": self.by, "why": self.why},
            forgotten=self.forgotten,
            # A wrong id may be a text that is to be forgotten, and the receipt is kept for ever:
            # leave it out.
            errors=[
                NotForgotten(id=each.id, why=each.code)
                for each in self.errors
                if is_note_id(each.id)
            ],
            entries=sorted(self.entries),
            exports=exports_of(writer.db, self.ids) if self.strategy.erases else (),
            runs=None if self.runs is None else self.runs.runs,
            attachments_left=0 if self.runs is None else self.runs.attachments_left,
            ts=writer.at,
        )
        text = receipt_bytes(given).decode()
        writer.append(NotesForgotten(receipt=text), origin=self.origin)
        return given


def _forget(memory: SqliteMemory, ids: Iterable[str], act: _Act, *, scrub: bool) -> Forgotten:
    _check(act.actor, act.strategy, act.origin)
    asked = tuple(dict.fromkeys(ids))
    if len(asked) > NOTES_MAX:
        raise NoteInvalid(field="ids", why=f"at most {NOTES_MAX:,} in one request")
    with memory.writing() as writer:
        before = None if act.origin is None else find_act(writer.db, act.origin)
        if before is None:
            for id in asked:
                try:
                    act.forget_note(writer, id)
                except TallystickError as error:
                    act.errors.append(Failure(id=id, code=error.code, message=str(error)))
            receipt = act.issue_receipt(writer)
    if before is not None:
        return _first_answer(memory, before)
    scrubbed: bool | None = None
    # After the transaction, because SQLite cannot rewrite a file inside of one.
    # Also if an earlier erasure was interrupted before it was scrubbed.
    if act.entries or (act.strategy.erases and memory.scrub_due):
        scrubbed = memory.scrub() if scrub else False
    return Forgotten(
        forgotten=act.ids, errors=tuple(act.errors), receipt=receipt, scrubbed=scrubbed
    )


def _check(actor: str | None, strategy: ForgetStrategy, origin: str | None) -> None:
    if strategy is ForgetStrategy.CONSOLIDATE:
        raise BackendUnsupported(
            backend="sqlite",
            capability="consolidate",
            detail="it needs the text that takes the notes' place: tally memory consolidate",
        )
    if actor is not None:
        check_agent(actor, field="actor")
    if origin is not None:
        check_origin(origin)


def _mark_record(
    row: Row, strategy: ForgetStrategy, *, at: int, by: str | None
) -> NoteDeleted | NoteArchived | NoteDecayed:
    """Return the record that marks a note, without erasing anything of it.

    Raise `NoteNotFound` if it is deleted already, and `NoteInvalid` for the decay of a procedural
    note.
    """
    if strategy is ForgetStrategy.SOFT_DELETE:
        if row.state.deleted_at is not None:
            raise NoteNotFound(id=row.note.id)
        return NoteDeleted(at=at, by=by)
    if strategy is ForgetStrategy.ARCHIVE:
        return NoteArchived(state=ConsolidationState.ARCHIVED, by=by)
    if row.note.memory_type is MemoryType.PROCEDURAL:
        raise NoteInvalid(field="memory_type", why="procedural notes do not decay")
    left = importance_after_decay(row.state.importance, rate=row.note.decay_rate)
    return NoteDecayed(importance=left, by=by)


def _find_row(db: sqlite3.Connection, id: str, actor: str | None, *, seq: int, at: int) -> Row:
    """Return the row of a note that the actor may forget.

    Raise `NoteErased` to the owner of the file if it was erased, `MemoryPermissionDenied` to an
    actor who sees it and may not write it, and `NoteNotFound` if there is none that the actor sees.
    """
    rows = select_notes(db, reader=actor, filters=EVERYTHING, seq=seq, at=at, id=id)
    if rows:
        check_may(db, id, actor=actor, needs=Permission.WRITE)
        return rows[0]
    gone = db.execute("SELECT seq FROM erased WHERE id = ?", (id,)).fetchone()
    if gone is not None and actor is None:
        raise NoteErased(id=id, seq=gone[0])
    raise NoteNotFound(id=id)


def _erased_note(writer: LogWriter, error: NoteErased) -> ForgottenNote:
    """Return what the log still has of an erased note: its position and its salted digest.

    Raise `error`, if even that cannot be read.
    """
    number, data = writer.db.execute(
        "SELECT number, header FROM erased JOIN log ON log.seq = number WHERE id = ?", (error.id,)
    ).fetchone()
    header = read_entry_header(data, store=writer.store, seq=number)
    if isinstance(header, str):
        raise error
    return ForgottenNote(id=error.id, seq=number, content_hash=header.body_sha256)


def _first_answer(memory: SqliteMemory, before: EarlierAct) -> Forgotten:
    """Return the first answer to a repeated request, as far as the log has it.

    Its errors are not there. Raise `ReceiptUnreadable` if its receipt cannot be read.
    """
    receipt = None if before.receipt is None else read_receipt(before.receipt.encode())
    return Forgotten(
        forgotten=before.ids,
        errors=(),
        receipt=receipt if isinstance(receipt, ForgetReceipt) else None,
        scrubbed=not memory.scrub_due if before.erased else None,
    )
