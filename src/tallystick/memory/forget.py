"""Forgetting: less important, out of sight, without its words, or without a trace of them.

| strategy      | is recalled | what was known before | bytes                         |
| decay         | yes, lower  | can be asked for      | stay                          |
| archive       | no          | can be asked for      | stay                          |
| soft_delete   | no          | can be asked for      | stay                          |
| redact        | `[REDACTED]`| says `erased`         | gone; id, owner, thread stay  |
| hard_delete   | no          | says `erased`         | gone; id and place stay       |

Each note that is forgotten is an entry of the log, in one transaction; what cannot be forgotten is
returned with its reason, and the others are. What was asked for is proven by a receipt, which can
be checked against the log later. Bytes that are gone are gone from the log, the indexes, the
vectors, free pages and SQLite's own log. What was exported before is listed, and not claimed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from tallystick.core.errors import TallystickError
from tallystick.memory.decay import decayed_once, effective_importance
from tallystick.memory.erase import Done, done_under, erase_note, exports_of, redact_note
from tallystick.memory.errors import BackendUnsupported, NoteErased, NoteInvalid, NoteNotFound
from tallystick.memory.forgotten import (
    Criteria,
    DeleteReceipt,
    Failure,
    Forgotten,
    Strategy,
    check_receipt,
)
from tallystick.memory.note import (
    SUBJECT_TAG,
    ConsolidationState,
    MemoryType,
    Permission,
    check_agent,
)
from tallystick.memory.projection_schema import OPEN
from tallystick.memory.records import NoteArchived, NoteDecayed, NoteDeleted
from tallystick.memory.remember import check_origin
from tallystick.memory.selection import EVERYTHING, Row, select_notes
from tallystick.memory.share import check_may
from tallystick.memory.sqlite import Pen, SqliteMemory

__all__ = [
    "Criteria",
    "DeleteReceipt",
    "Failure",
    "Forgotten",
    "Strategy",
    "check_receipt",
    "decay_pass",
    "forget",
    "forget_expired",
    "forget_matching",
    "forget_provenance",
    "forget_subject",
]

_HOUR_MS = 3_600_000


_REMOVES_BYTES = (Strategy.HARD_DELETE, Strategy.REDACT)


# -- requests ----------------------------------------------------------------------------------


def forget(
    memory: SqliteMemory,
    ids: Sequence[str],
    *,
    actor: str | None,
    strategy: Strategy = Strategy.SOFT_DELETE,
    why: str = "asked",
    origin: str | None = None,
    scrub: bool = True,
) -> Forgotten:
    """Forget notes by id. `actor` None is the owner of the file; others need `write` on each.

    `why` is one word that the log keeps for ever. `origin` as in `remember`: asked twice, it is
    done once. Without `scrub` the file is not written anew for erased bytes; it is when it is
    opened next, or by `SqliteMemory.scrub`.
    """
    if not ids:
        raise NoteInvalid(field="ids", why="say which notes, by id or by criteria")
    check_agent(why, field="why")
    return _forget(memory, ids, actor, strategy, why=why, origin=origin, scrub=scrub)


def forget_matching(
    memory: SqliteMemory,
    criteria: Criteria,
    *,
    actor: str | None,
    strategy: Strategy = Strategy.SOFT_DELETE,
    scrub: bool = True,
) -> Forgotten:
    """Forget every living note that meets the criteria: the actor's own, or with None anybody's."""
    if criteria == Criteria():
        raise NoteInvalid(field="criteria", why="none is given, and this would forget everything")
    with memory.reading() as db:
        seq = memory.resolve(None)
        ids = _matching(db, criteria, seq=seq, owner=actor, now=memory.clock())
    return _forget(memory, ids, actor, strategy, why="criteria", origin=None, scrub=scrub)


def forget_subject(
    memory: SqliteMemory,
    subject: str,
    *,
    actor: str | None,
    strategy: Strategy = Strategy.REDACT,
    scrub: bool = True,
) -> Forgotten:
    """Forget what is about somebody: every note with the tag `subject:<id>`, deleted ones too."""
    if not subject.strip():
        raise NoteInvalid(field="subject", why="it is blank")
    with memory.reading() as db:
        rows = db.execute(
            "SELECT id FROM note JOIN tag USING (number) WHERE tag = ? ORDER BY number",
            (f"{SUBJECT_TAG}{subject}",),
        ).fetchall()
    ids = [id for (id,) in rows]
    return _forget(memory, ids, actor, strategy, why="subject", origin=None, scrub=scrub)


def forget_provenance(
    memory: SqliteMemory,
    *,
    principal: str | None = None,
    session_id: str | None = None,
    actor: str | None,
    strategy: Strategy = Strategy.SOFT_DELETE,
    scrub: bool = True,
) -> Forgotten:
    """Forget everything that a principal wrote down, or that a session did, or both together."""
    chosen = {"created_by": principal, "session_id": session_id}
    given = {name: value for name, value in chosen.items() if value is not None}
    if not given:
        raise NoteInvalid(field="principal", why="say whose notes: a principal, a session or both")
    where = " AND ".join(f"{name} = :{name}" for name in given)
    with memory.reading() as db:
        ids = [id for (id,) in db.execute(f"SELECT id FROM note WHERE {where}", given)]
    return _forget(memory, ids, actor, strategy, why="provenance", origin=None, scrub=scrub)


def forget_expired(memory: SqliteMemory, *, scrub: bool = True) -> Forgotten:
    """Erase every note whose time is over."""
    with memory.reading() as db:
        rows = db.execute(
            "SELECT id FROM note JOIN state USING (number) WHERE seq_to = ? AND expires_at <= ?",
            (OPEN, memory.clock()),
        ).fetchall()
    ids = [id for (id,) in rows]
    return _forget(memory, ids, None, Strategy.HARD_DELETE, why="expired", origin=None, scrub=scrub)


def decay_pass(
    memory: SqliteMemory, *, archive_below: float = 0.2, forget_below: float = 0.05
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Archive notes that hardly matter any more, and mark as forgotten those that do not.

    Returns the ids of both. Procedural notes do not decay.
    """
    if not 0.0 <= forget_below <= archive_below <= 1.0:
        raise NoteInvalid(field="forget_below", why="from 0 to `archive_below`, which is up to 1")
    archived: list[str] = []
    forgotten: list[str] = []
    with memory.writing() as pen:
        counts = dict(pen.db.execute("SELECT number, count(*) FROM access GROUP BY number"))
        for row in _living(pen.db, pen.head.count, pen.at):
            if row.note.memory_type is MemoryType.PROCEDURAL:
                continue
            left = effective_importance(
                row.state.importance,
                hours=(pen.at - row.note.created_at) / _HOUR_MS,
                access_count=counts.get(row.number, 0),
                rate=row.note.decay_rate,
                function=row.note.decay_function,
            )
            if left < archive_below:
                gone = left < forget_below
                state = ConsolidationState.FORGOTTEN if gone else ConsolidationState.ARCHIVED
                pen.append(NoteArchived(state=state), note=row.note.id)
                (forgotten if gone else archived).append(row.note.id)
    return tuple(archived), tuple(forgotten)


# -- inside ------------------------------------------------------------------------------------


def _forget(
    memory: SqliteMemory,
    ids: Iterable[str],
    actor: str | None,
    strategy: Strategy,
    *,
    why: str,
    origin: str | None,
    scrub: bool,
) -> Forgotten:
    if strategy is Strategy.CONSOLIDATE:
        raise BackendUnsupported(
            backend="sqlite", capability="consolidate", detail="it needs a summary; remember one"
        )
    if actor is not None:
        check_agent(actor, field="actor")
    if origin is not None:
        check_origin(origin)
    act = _Act(actor=actor, strategy=strategy, why=why, origin=origin)
    with memory.writing() as pen:
        if origin is not None and (before := done_under(pen.db, origin)) is not None:
            return _answered(memory, before, strategy)
        first = pen.head.count + 1
        for id in dict.fromkeys(ids):
            try:
                act.one(pen, id)
            except TallystickError as error:
                act.errors.append(Failure(id=id, code=error.code, message=str(error)))
        head, at = pen.head, pen.at
        exports = exports_of(pen.db, act.forgotten) if strategy in _REMOVES_BYTES else ()
    scrubbed: bool | None = None
    if act.entries:
        scrubbed = memory.scrub() if scrub else False
    receipt = None
    if act.forgotten:
        receipt = DeleteReceipt(
            store=memory.identity(),
            strategy=strategy,
            ids=tuple(act.forgotten),
            seq_from=first,
            seq_to=head.count,
            hash=head.hash,
            at=at,
            entries=tuple(sorted(act.entries)),
            exports=exports,
            scrubbed=scrubbed,
        )
    return Forgotten(forgotten=tuple(act.forgotten), errors=tuple(act.errors), receipt=receipt)


class _Act:
    """One request to forget, note by note."""

    def __init__(
        self, *, actor: str | None, strategy: Strategy, why: str, origin: str | None
    ) -> None:
        self._actor = actor
        self._strategy = strategy
        self._why = why
        self._origin = origin
        self.forgotten: list[str] = []
        self.errors: list[Failure] = []
        self.entries: list[int] = []

    def one(self, pen: Pen, id: str) -> None:
        row = _found(pen, id, self._actor)
        check_may(pen.db, id, actor=self._actor, needs=Permission.WRITE)
        match self._strategy:
            case Strategy.HARD_DELETE:
                gone = erase_note(pen, row, why=self._why, by=self._actor, origin=self._origin)
                self.entries.extend(gone)
            case Strategy.REDACT:
                gone = redact_note(pen, row, by=self._actor, origin=self._origin)
                self.entries.extend(gone)
            case _:
                record = _marked(row, self._strategy, at=pen.at, by=self._actor)
                pen.append(record, note=id, origin=self._origin)
        self.forgotten.append(id)


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


def _found(pen: Pen, id: str, actor: str | None) -> Row:
    seq = pen.head.count
    rows = select_notes(pen.db, reader=actor, filters=EVERYTHING, seq=seq, at=pen.at, id=id)
    if rows:
        return rows[0]
    gone = pen.db.execute("SELECT seq FROM erased WHERE id = ?", (id,)).fetchone()
    if gone is not None and actor is None:
        raise NoteErased(id=id, seq=gone[0])
    raise NoteNotFound(id=id)


def _living(db: sqlite3.Connection, seq: int, at: int) -> list[Row]:
    rows = select_notes(db, reader=None, filters=EVERYTHING, seq=seq, at=at)
    away = (ConsolidationState.ARCHIVED, ConsolidationState.FORGOTTEN)
    return [row for row in rows if row.state.deleted_at is None and row.state.state not in away]


def _matching(
    db: sqlite3.Connection, criteria: Criteria, *, seq: int, owner: str | None, now: int
) -> list[str]:
    """The ids of living notes that meet all criteria."""
    age, low = criteria.max_age_hours, criteria.min_importance_below
    oldest = None if age is None else now - age * _HOUR_MS
    return [
        row.note.id
        for row in _living(db, seq, now)
        if (owner is None or row.note.agent_id == owner)
        and (oldest is None or row.note.created_at < oldest)
        and (low is None or row.state.importance < low)
        and criteria.memory_type in (None, row.note.memory_type)
        and (not criteria.tags or not criteria.tags.isdisjoint(row.note.tags))
        and criteria.agent_id in (None, row.note.agent_id)
        and criteria.thread_id in (None, row.note.thread_id)
    ]


def _answered(memory: SqliteMemory, before: Done, strategy: Strategy) -> Forgotten:
    """What was answered when this was asked for the first time, as far as the log has it."""
    receipt = DeleteReceipt(
        store=before.store,
        strategy=strategy,
        ids=before.ids,
        seq_from=before.seq_from,
        seq_to=before.seq_to,
        hash=before.hash,
        at=before.at,
        entries=before.entries,
        scrubbed=not memory.scrub_due if before.entries else None,
    )
    return Forgotten(forgotten=before.ids, errors=(), receipt=receipt)
