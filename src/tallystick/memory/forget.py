"""Forgetting: less important, out of sight, without its words, or without a trace of them.

| strategy      | is recalled | what was known before | bytes                         |
| decay         | yes, lower  | can be asked for      | stay                          |
| archive       | no          | can be asked for      | stay                          |
| soft_delete   | no          | can be asked for      | stay                          |
| redact        | `[REDACTED]`| says `erased`         | gone; id, owner, thread stay  |
| hard_delete   | no          | says `erased`         | gone; id and place stay       |

Each note that is forgotten is an entry of the log, all in one transaction; what cannot be forgotten
is returned with its reason, and the others are. With a key, the same transaction signs a receipt:
the next of the chain, in the log beside those of recalls. Bytes that are gone are gone from the
log, the indexes, the vectors, free pages and SQLite's own log. What was exported before is listed,
and not claimed. Recorded runs are another file's: see `tallystick.runtime.memory_erasure`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.core.errors import TallystickError
from tallystick.memory.decay import decayed_once
from tallystick.memory.erase import Done, done_under, erase_note, exports_of, redact_note
from tallystick.memory.errors import BackendUnsupported, NoteErased, NoteInvalid, NoteNotFound
from tallystick.memory.forget_which import (
    expired_ids,
    matching_ids,
    provenance_ids,
    subject_ids,
)
from tallystick.memory.forgotten import Criteria, Failure, Strategy
from tallystick.memory.log import read_entry_header
from tallystick.memory.note import (
    ConsolidationState,
    MemoryType,
    Note,
    Permission,
    check_agent,
    is_note_id,
)
from tallystick.memory.receipt_issue import issue_forget
from tallystick.memory.receipt_records import (
    ForgetReceipt,
    ForgottenNote,
    Key,
    NotForgotten,
    RunErased,
    read_receipt,
    receipt_bytes,
)
from tallystick.memory.receipts_kept import link_of
from tallystick.memory.records import NoteArchived, NoteDecayed, NoteDeleted, NotesForgotten
from tallystick.memory.remember import check_origin
from tallystick.memory.selection import EVERYTHING, Row, select_notes
from tallystick.memory.share import check_may
from tallystick.memory.sqlite import Pen, SqliteMemory

__all__ = [
    "NOTES_MAX",
    "Criteria",
    "Failure",
    "Forgettable",
    "Forgotten",
    "RunsErased",
    "Strategy",
    "forget",
    "forget_expired",
    "forget_matching",
    "forget_provenance",
    "forget_subject",
    "forgettable",
]

# As many notes are forgotten in one request: they are one transaction and have one receipt.
NOTES_MAX = 200_000


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request. There is no receipt without a key, or if nothing was forgotten.

    `scrubbed` is False if somebody was reading older pages: the bytes are gone from the log and
    still in the file until it is opened next. It is None where no bytes were to go.
    """

    forgotten: tuple[str, ...]
    errors: tuple[Failure, ...]
    receipt: ForgetReceipt | None
    scrubbed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsErased:
    """What was done to recorded runs before their notes are forgotten, for the receipt."""

    runs: tuple[RunErased, ...]
    attachments_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgettable:
    """What may be forgotten: notes as they are, ids of those that are gone, and what may not be."""

    notes: tuple[Note, ...]
    gone: tuple[str, ...]
    errors: tuple[Failure, ...]


# -- requests ----------------------------------------------------------------------------------


def forget(
    memory: SqliteMemory,
    ids: Sequence[str],
    *,
    actor: str | None,
    strategy: Strategy = Strategy.SOFT_DELETE,
    why: str = "asked",
    origin: str | None = None,
    key: Key | None = None,
    by: str = "ids",
    runs: RunsErased | None = None,
    scrub: bool = True,
) -> Forgotten:
    """Forget notes by id. `actor` None is the owner of the file; others need `write` on each.

    `why` and `by`, how they were chosen, are words that the log keeps for ever. `origin` as in
    `remember`: asked twice, it is done once. `key` signs the receipt. With `runs`, notes that are
    gone already are no failures, since there was something left to do. Without `scrub` the file is
    not written anew for erased bytes; it is when it is opened next, or by `SqliteMemory.scrub`.
    """
    if not ids:
        raise NoteInvalid(field="ids", why="say which notes, by id or by criteria")
    check_agent(why, field="why")
    check_agent(by, field="by")
    act = _Act(actor=actor, strategy=strategy, why=why, by=by, origin=origin, key=key, runs=runs)
    return _forget(memory, ids, act, scrub=scrub)


def forget_matching(
    memory: SqliteMemory,
    criteria: Criteria,
    *,
    actor: str | None,
    strategy: Strategy = Strategy.SOFT_DELETE,
    key: Key | None = None,
    scrub: bool = True,
) -> Forgotten:
    """Forget every living note that meets the criteria: the actor's own, or with None anybody's."""
    ids = matching_ids(memory, criteria, owner=actor)
    act = _Act(actor=actor, strategy=strategy, why="criteria", by="criteria", key=key)
    return _forget(memory, ids, act, scrub=scrub)


def forget_subject(
    memory: SqliteMemory,
    subject: str,
    *,
    actor: str | None,
    strategy: Strategy = Strategy.REDACT,
    key: Key | None = None,
    scrub: bool = True,
) -> Forgotten:
    """Forget what is about somebody: every note with the tag `subject:<id>`, deleted ones too."""
    act = _Act(actor=actor, strategy=strategy, why="subject", by="subject", key=key)
    return _forget(memory, subject_ids(memory, subject), act, scrub=scrub)


def forget_provenance(
    memory: SqliteMemory,
    *,
    principal: str | None = None,
    session_id: str | None = None,
    actor: str | None,
    strategy: Strategy = Strategy.SOFT_DELETE,
    key: Key | None = None,
    scrub: bool = True,
) -> Forgotten:
    """Forget everything that a principal wrote down, or that a session did, or both together."""
    ids = provenance_ids(memory, principal=principal, session_id=session_id)
    act = _Act(actor=actor, strategy=strategy, why="provenance", by="provenance", key=key)
    return _forget(memory, ids, act, scrub=scrub)


def forget_expired(
    memory: SqliteMemory, *, key: Key | None = None, scrub: bool = True
) -> Forgotten:
    """Erase every note whose time is over."""
    act = _Act(actor=None, strategy=Strategy.HARD_DELETE, why="expired", by="expired", key=key)
    return _forget(memory, expired_ids(memory), act, scrub=scrub)


def forgettable(
    memory: SqliteMemory, ids: Sequence[str], *, actor: str | None, strategy: Strategy
) -> Forgettable:
    """Look at what `forget` would do, and do nothing."""
    _check(actor, strategy, None)
    notes: list[Note] = []
    gone: list[str] = []
    errors: list[Failure] = []
    with memory.reading() as db:
        seq, at = memory.resolve(None), memory.clock()
        for id in dict.fromkeys(ids):
            try:
                row = _found(db, id, actor, seq=seq, at=at)
                if not strategy.erases:
                    _marked(row, strategy, at=at, by=actor)
                notes.append(row.note)
            except NoteErased:
                gone.append(id)
            except TallystickError as error:
                errors.append(Failure(id=id, code=error.code, message=str(error)))
    return Forgettable(notes=tuple(notes), gone=tuple(gone), errors=tuple(errors))


# -- inside ------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Act:
    """One request to forget, note by note."""

    actor: str | None
    strategy: Strategy
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

    def one(self, pen: Pen, id: str) -> None:
        try:
            row = _found(pen.db, id, self.actor, seq=pen.head.count, at=pen.at)
        except NoteErased as error:
            if self.runs is None:
                raise
            self.forgotten.append(_gone(pen, error))
            return
        named = ForgottenNote(id=id, seq=row.body_seq, content_hash=row.content_hash)
        match self.strategy:
            case Strategy.HARD_DELETE:
                gone = erase_note(pen, row, why=self.why, by=self.actor, origin=self.origin)
                self.entries.extend(gone)
            case Strategy.REDACT:
                gone = redact_note(pen, row, by=self.actor, origin=self.origin)
                self.entries.extend(gone)
            case _:
                record = _marked(row, self.strategy, at=pen.at, by=self.actor)
                pen.append(record, note=id, origin=self.origin)
        self.forgotten.append(named)

    def receipt(self, pen: Pen) -> ForgetReceipt | None:
        """Sign what was done, and put it into the log."""
        if self.key is None or not self.forgotten:
            return None
        given = issue_forget(
            key=self.key,
            link=link_of(pen.db),
            forget_id=pen.new_id(),
            store=pen.store,
            agent_id=self.actor or "",
            strategy=self.strategy,
            asked={"by": self.by, "why": self.why},
            forgotten=self.forgotten,
            # What is no id may be a text that somebody wants to be forgotten.
            errors=[
                NotForgotten(id=each.id, why=each.code)
                for each in self.errors
                if is_note_id(each.id)
            ],
            entries=sorted(self.entries),
            exports=exports_of(pen.db, self.ids) if self.strategy.erases else (),
            runs=None if self.runs is None else self.runs.runs,
            attachments_left=0 if self.runs is None else self.runs.attachments_left,
            ts=pen.at,
        )
        text = receipt_bytes(given).decode()
        pen.append(NotesForgotten(receipt=text), origin=self.origin)
        return given


def _forget(memory: SqliteMemory, ids: Iterable[str], act: _Act, *, scrub: bool) -> Forgotten:
    _check(act.actor, act.strategy, act.origin)
    asked = tuple(dict.fromkeys(ids))
    if len(asked) > NOTES_MAX:
        raise NoteInvalid(field="ids", why=f"at most {NOTES_MAX:,} in one request")
    with memory.writing() as pen:
        before = None if act.origin is None else done_under(pen.db, act.origin)
        if before is None:
            for id in asked:
                try:
                    act.one(pen, id)
                except TallystickError as error:
                    act.errors.append(Failure(id=id, code=error.code, message=str(error)))
            receipt = act.receipt(pen)
    if before is not None:
        return _answered(memory, before)
    scrubbed: bool | None = None
    # Also where an earlier erasure was cut off before it came to this.
    if act.entries or (act.strategy.erases and memory.scrub_due):
        scrubbed = memory.scrub() if scrub else False
    return Forgotten(
        forgotten=act.ids, errors=tuple(act.errors), receipt=receipt, scrubbed=scrubbed
    )


def _check(actor: str | None, strategy: Strategy, origin: str | None) -> None:
    if strategy is Strategy.CONSOLIDATE:
        raise BackendUnsupported(
            backend="sqlite", capability="consolidate", detail="it needs a summary; remember one"
        )
    if actor is not None:
        check_agent(actor, field="actor")
    if origin is not None:
        check_origin(origin)


def _marked(
    row: Row, strategy: Strategy, *, at: int, by: str | None
) -> NoteDeleted | NoteArchived | NoteDecayed:
    if strategy is Strategy.SOFT_DELETE:
        if row.state.deleted_at is not None:
            raise NoteNotFound(id=row.note.id)
        return NoteDeleted(at=at, by=by)
    if strategy is Strategy.ARCHIVE:
        return NoteArchived(state=ConsolidationState.ARCHIVED, by=by)
    if row.note.memory_type is MemoryType.PROCEDURAL:
        raise NoteInvalid(field="memory_type", why="procedural notes do not decay")
    left = decayed_once(row.state.importance, rate=row.note.decay_rate)
    return NoteDecayed(importance=left, by=by)


def _found(db: sqlite3.Connection, id: str, actor: str | None, *, seq: int, at: int) -> Row:
    """A note that the actor may forget."""
    rows = select_notes(db, reader=actor, filters=EVERYTHING, seq=seq, at=at, id=id)
    if rows:
        check_may(db, id, actor=actor, needs=Permission.WRITE)
        return rows[0]
    gone = db.execute("SELECT seq FROM erased WHERE id = ?", (id,)).fetchone()
    if gone is not None and actor is None:
        raise NoteErased(id=id, seq=gone[0])
    raise NoteNotFound(id=id)


def _gone(pen: Pen, error: NoteErased) -> ForgottenNote:
    """What the log still has of a note that was erased: where it stood, and what binds it."""
    number, data = pen.db.execute(
        "SELECT number, header FROM erased JOIN log ON log.seq = number WHERE id = ?", (error.id,)
    ).fetchone()
    header = read_entry_header(data, store=pen.store, seq=number)
    if isinstance(header, str):
        raise error
    return ForgottenNote(id=error.id, seq=number, content_hash=header.body_sha256)


def _answered(memory: SqliteMemory, before: Done) -> Forgotten:
    """What was answered when this was asked for the first time, as far as the log has it."""
    receipt = None if before.receipt is None else read_receipt(before.receipt.encode())
    return Forgotten(
        forgotten=before.ids,
        errors=(),
        receipt=receipt if isinstance(receipt, ForgetReceipt) else None,
        scrubbed=not memory.scrub_due if before.erased else None,
    )
