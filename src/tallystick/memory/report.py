"""Reports on a memory for people: a page of its notes, their status, figures, and its check."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import msgspec

from tallystick.core.chain import Head
from tallystick.core.errors import UsageError
from tallystick.memory.errors import NoteNotFound, StorageFailed
from tallystick.memory.memory import Memory
from tallystick.memory.note import REDACTED, ConsolidationState, Note, is_note_id
from tallystick.memory.recall.minilm import MODEL_DIGEST
from tallystick.memory.recall.selection import EVERYTHING, Filters, select_notes
from tallystick.memory.recall.view import view
from tallystick.memory.receipts.receipts import (
    ChainVerdict,
    all_receipts,
    receipts_up_to,
    verify_chain,
)
from tallystick.memory.store.projection import OPEN
from tallystick.memory.store.records import NoteState
from tallystick.memory.store.vectors import count_notes_without_vectors, model_of
from tallystick.memory.store.verify import VerifyReport, verify_memory

NoteStatus = Literal[
    "current",
    "held_back",
    "superseded",
    "not_yet",
    "expired",
    "archived",
    "forgotten",
    "deleted",
    "redacted",
]

_BEGINNING = re.compile(r"[0-9a-f-]{8,36}")
_SAME_BEGINNING_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A note with its state, and its status now."""

    note: Note
    state: NoteState
    standing: NoteStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Notes of a list from one offset on, and how many the list has."""

    notes: tuple[Listed, ...]
    total: int


class ModelKept(msgspec.Struct, frozen=True, kw_only=True):
    """The model whose vectors a memory has; `usable` if it is the one of this version."""

    digest: str
    dimensions: int
    usable: bool


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a memory. `notes` counts by type, then by status.

    `erased` are notes of which a position in the log is left. `scrub_due` says that bytes that were
    erased may still be in the file, because a process was reading. The next opening removes them.
    """

    memory: str
    path: str
    store: str
    notes: dict[str, dict[str, int]]
    total: int
    erased: int
    sightings: int
    embedded: int
    unembedded: int
    model: ModelKept | None
    receipts: int
    exports: int
    file_bytes: int
    scrub_due: bool
    head: Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of a check: of the log with everything that follows from it, and of receipts."""

    log: VerifyReport
    receipts: ChainVerdict
    head: Head

    @property
    def valid(self) -> bool:
        """True if both hold."""
        return self.log.valid and self.receipts.valid


def list_notes(memory: Memory, filters: Filters, *, offset: int = 0, limit: int = 50) -> Page:
    """Return a page of the notes that the memory's reader sees, the newest first.

    The first `offset` notes are passed over, and at most `limit` are returned. `total` counts all
    that pass the filters. Raise `NoteInvalid` for a filter out of range.
    """
    seen = view(memory.store, reader=memory.reader, filters=filters)
    ids = seen.ids[::-1]
    return Page(
        notes=tuple(
            Listed(
                note=seen.note(id),
                state=seen.state(id),
                standing=note_status(seen.note(id), seen.state(id), now=seen.at),
            )
            for id in ids[offset : offset + limit]
        ),
        total=len(ids),
    )


def note_status(note: Note, state: NoteState, *, now: int) -> NoteStatus:
    """Return the status of a note in a word.

    If several are true, the first of these counts: deleted, redacted, held back, archived or
    forgotten, expired, superseded, not yet valid. If none is, the note is `current`.
    """
    redacted = note.content == REDACTED and note.metadata.get("redacted") is True
    return _status(redacted, state, note.valid_from, now=now)


def _status(redacted: bool, state: NoteState, valid_from: int, *, now: int) -> NoteStatus:
    if state.deleted_at is not None:
        return "deleted"
    if redacted:
        return "redacted"
    if state.quarantine:
        return "held_back"
    match state.state:
        case ConsolidationState.ARCHIVED:
            return "archived"
        case ConsolidationState.FORGOTTEN:
            return "forgotten"
        case _:
            return _status_in_time(state, valid_from, now=now)


def _status_in_time(state: NoteState, valid_from: int, *, now: int) -> NoteStatus:
    if state.expires_at is not None and state.expires_at <= now:
        return "expired"
    if state.valid_to is not None and state.valid_to <= now:
        return "superseded"
    return "not_yet" if valid_from > now else "current"


def whole_id(memory: Memory, text: str) -> str:
    """Return the id of a note that its reader sees, from its first 8 to 36 characters.

    The owner finds erased notes too. A whole id is returned as it is, without looking for the note.
    Raise `NoteNotFound` if none matches or the text cannot begin an id, `UsageError` if several do.
    """
    if is_note_id(text):
        return text
    if not _BEGINNING.fullmatch(text):
        raise NoteNotFound(id=text)
    store = memory.store
    with store.reading() as db:
        seq = store.resolve(None)
        rows = db.execute(
            "SELECT id FROM note WHERE id >= ? AND id < ? UNION "
            "SELECT id FROM erased WHERE id >= ? AND id < ? AND ?",
            (text, f"{text}g", text, f"{text}g", memory.reader is None),
        ).fetchall()
        # Limited after the notes of others are left out: ids of one minute begin alike, so a limit
        # before that could hide the one note that this reader sees.
        visible = (
            id
            for (id,) in rows
            if memory.reader is None
            or select_notes(
                db, reader=memory.reader, filters=EVERYTHING, seq=seq, at=store.clock(), id=id
            )
        )
        found = list(itertools.islice(visible, _SAME_BEGINNING_MAX))
    if not found:
        raise NoteNotFound(id=text)
    if len(found) > 1:
        many = f"{len(found)}{' or more' if len(found) == _SAME_BEGINNING_MAX else ''}"
        raise UsageError(
            f"{text!r} matches {many} notes; type more characters of the id (tally memory ls lists "
            f"them)"
        )
    return str(found[0])


def memory_stats(memory: Memory) -> MemoryStats:
    """Return figures of the whole memory, for notes of all agents."""
    store = memory.store
    now = store.clock()
    notes: dict[str, Counter[str]] = {}
    with store.reading() as db:
        rows = db.execute(
            "SELECT memory_type, redacted, valid_from, importance, valid_to, expires_at, "
            "deleted_at, state, quarantine FROM note JOIN state USING (number) WHERE seq_to = ?",
            (OPEN,),
        )
        for kind, redacted, begin, importance, end, expires, deleted, became, signs in rows:
            state = NoteState(
                importance=importance,
                valid_to=end,
                expires_at=expires,
                deleted_at=deleted,
                state=ConsolidationState(became),
                quarantine=tuple(signs.split()),
            )
            word = _status(redacted > 0, state, begin, now=now)
            notes.setdefault(kind, Counter())[word] += 1

        def count(table: str) -> int:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

        erased, sightings = count("erased"), count("sighting")
        receipts, exports = count("receipt"), count("exported")
        (embedded,) = db.execute("SELECT count(DISTINCT number) FROM vector").fetchone()
    model = model_of(store)
    return MemoryStats(
        memory=memory.tenant,
        path=str(store.path),
        store=store.identity(),
        notes={kind: dict(sorted(notes[kind].items())) for kind in sorted(notes)},
        total=sum(each.total() for each in notes.values()),
        erased=erased,
        sightings=sightings,
        embedded=embedded,
        unembedded=count_notes_without_vectors(store),
        model=None
        if model is None
        else ModelKept(digest=model[0], dimensions=model[1], usable=model[0] == MODEL_DIGEST),
        receipts=receipts,
        exports=exports,
        file_bytes=_file_bytes(memory),
        scrub_due=store.scrub_due,
        head=store.head(),
    )


def check_memory(memory: Memory, *, head: Head | None = None) -> Checked:
    """Check the log, the projections, the vectors, and the chain of receipts with its keys.

    `head` is a head that was kept elsewhere: it must still be a part of the log. With it, the copy
    of somebody else's memory can be checked too: receipts under that head need no key. Damage is in
    the result, not raised; but raise a `StorageFailed` if not even the head of the log can be read.
    """
    log = verify_memory(memory.store, head=head)
    try:
        # A receipt that was appended after the head could be anybody's.
        genuine = receipts_up_to(memory.store, head.count) if head and log.valid else 0
        receipts = verify_chain(all_receipts(memory.store), keys=memory.keys.by_id, genuine=genuine)
    except StorageFailed as error:
        receipts = ChainVerdict(
            valid=False, total_records=0, verified_records=0, error_message=str(error)
        )
    return Checked(log=log, receipts=receipts, head=memory.store.head())


def _file_bytes(memory: Memory) -> int:
    """Return the size of the file and of SQLite's log beside it."""
    path = memory.store.path
    beside = (path, path.with_name(f"{path.name}-wal"))
    return sum(each.stat().st_size for each in beside if each.exists())
