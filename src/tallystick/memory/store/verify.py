"""Verify a memory: compute every position, hash, body, row and vector again.

The log is checked entry by entry. A body that is missing counts as `erased` if an entry says so,
and as damage if none does. Then the projections are computed again in memory and compared row by
row, and the vectors are compared with the digests in the log. If numpy is installed, the blocks of
the index are made again and compared too; without it they are not used. A log cannot show that its
end was cut off together with its head; a head that was kept elsewhere can.

Not checked: the version that made the projections, and whether the file is still to be scrubbed.
They are no content. They only say what to do when the file is opened.
"""

from __future__ import annotations

import hashlib
import sqlite3

import msgspec

from tallystick.core.chain import Head
from tallystick.memory.errors import StorageFailed
from tallystick.memory.recall.codes import has_numpy
from tallystick.memory.store.projection import PROJECTION_SCHEMA, PROJECTION_TABLES, fold
from tallystick.memory.store.records import (
    UNREADABLE,
    MemoryRecord,
    ModelChosen,
    NoteEmbedded,
    NoteErasedRecord,
    NoteRedacted,
)
from tallystick.memory.store.sqlite import (
    Entry,
    EntryHeader,
    HeadRow,
    SqliteMemory,
    check_entry,
    empty_head,
    head_row,
)


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a verification. Counting ends at the first entry that does not hold.

    `first_broken_at` is the position of that entry, or None if the log itself is not at fault.
    """

    valid: bool
    total_records: int
    verified_records: int
    erased: int
    first_broken_at: int | None = None
    error_message: str | None = None


class _Broken(Exception):
    def __init__(self, why: str, seq: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.seq = seq


def verify_memory(
    memory: SqliteMemory, *, head: Head | None = None, projections: bool = True
) -> VerifyReport:
    """Check a memory and return a report; damage is in the report, not raised.

    So is any other `StorageFailed`, such as a file that another process is writing. `head` is a
    head that was kept elsewhere: it must still be a part of the log. Without `projections`, only
    the log and the vectors are checked. A file that is opened by this is made ready as always:
    projections that do not fit the log are rebuilt before they are checked.
    """
    walk = _Walk(head)
    total = 0
    try:
        with memory.reading() as db:
            row = head_row(db, memory.path)
            total = row.head.count
            scratch = _empty_projections() if projections else None
            walk.check_log(db, row, scratch)
            walk.check_vectors(db)
            if scratch is not None:
                _compare(db, scratch)
        if projections:
            memory.check_index()
            if has_numpy():
                from tallystick.memory.recall.index import check_blocks

                check_blocks(memory)
    except _Broken as broken:
        return walk.report(total, broken.why, broken.seq)
    except StorageFailed as error:
        return walk.report(total, str(error), None)
    return walk.report(total, None, None)


class _Walk:
    """A walk along the log, with what it needs to remember of it."""

    def __init__(self, kept: Head | None) -> None:
        self._kept = kept
        self._seq = 0
        self._gone: dict[int, str | None] = {}
        self._listed: set[int] = set()
        self._vectors: dict[str, NoteEmbedded] = {}
        self._numbers: dict[str, int] = {}
        self._embedded_at: dict[int, tuple[str, int]] = {}

    def report(self, total: int, why: str | None, seq: int | None) -> VerifyReport:
        return VerifyReport(
            valid=why is None,
            total_records=total,
            verified_records=self._seq,
            erased=len(self._gone),
            first_broken_at=seq,
            error_message=why,
        )

    def check_log(
        self, db: sqlite3.Connection, row: HeadRow, scratch: sqlite3.Connection | None
    ) -> None:
        """Check every entry, fold it into `scratch` if given, and check the head.

        Raise `_Broken` at the first that does not hold.
        """
        previous, at = empty_head().hash, 0
        if self._kept is not None and self._kept.count == 0 and self._kept.hash != previous:
            raise _Broken("the log does not begin as the kept head says", 0)
        for values in db.execute("SELECT seq, header, hash, salt, body FROM log ORDER BY seq"):
            entry = _entry_of(values, self._seq + 1)
            checked = check_entry(entry, store=row.store, previous=previous, at_min=at)
            if isinstance(checked, str):
                raise _Broken(checked, entry.seq)
            header, record = checked
            self._track(header, record)
            if scratch is not None:
                _fold_entry(scratch, header, record, row.secret)
            previous, at = entry.hash, header.at
            self._seq = entry.seq
            kept = self._kept
            if kept is not None and kept.count == entry.seq and kept.hash != entry.hash:
                raise _Broken("the log is another than the kept head says", entry.seq)
        self._check_end(row, previous, at)

    def check_vectors(self, db: sqlite3.Connection) -> None:
        """Compare the stored vectors with the digests in the log.

        Raise `_Broken` if they differ.
        """
        rows = db.execute("SELECT number, window, seq, vector, tokens FROM vector")
        found: dict[int, dict[int, tuple[int, str, str | None]]] = {}
        for number, window, seq, vector, tokens in rows:
            digests = _digest(vector), None if tokens is None else _digest(tokens)
            found.setdefault(number, {})[window] = (seq, *digests)
        for id, record in self._vectors.items():
            number = self._numbers[id]
            have = found.pop(number, {})
            seq = self._embedded_at[number][1]
            recorded = zip(record.vectors, record.tokens, strict=False)
            if have != {window: (seq, *digests) for window, digests in enumerate(recorded)}:
                raise _Broken(f"the vectors of note {id} are not those of entry {seq}", seq)
        if found:
            raise _Broken(f"there are vectors of note {min(found)}, and no entry of them")

    def _track(self, header: EntryHeader, record: MemoryRecord | None) -> None:
        if header.tag == "note.remembered" and header.note is not None:
            self._numbers[header.note] = header.seq
        match record:
            case None:
                self._gone[header.seq] = header.note
            case NoteErasedRecord(entries=entries) | NoteRedacted(entries=entries):
                self._listed.update(entries)
                self._vectors.pop(header.note or "", None)
            case ModelChosen():
                self._vectors.clear()
            # A foreign log may name a note that it never remembered. Such an entry changes nothing.
            case NoteEmbedded() if header.note is not None and header.note in self._numbers:
                self._vectors[header.note] = record
                self._embedded_at[self._numbers[header.note]] = (header.note, header.seq)
            case _:
                pass

    def _check_end(self, row: HeadRow, previous: str, at: int) -> None:
        here = self._seq
        if here < row.head.count:
            why = f"it is missing: {here:,} entries are there, the head counts {row.head.count:,}"
            raise _Broken(why, here + 1)
        if row.head != Head(count=here, hash=previous) or row.at != at:
            raise _Broken("the head is another than the log's end", here)
        if self._kept is not None and self._kept.count > here:
            why = f"it is missing: {here:,} entries are there, the kept head counts "
            raise _Broken(f"{why}{self._kept.count:,}", here + 1)
        if unlisted := self._gone.keys() - self._listed:
            raise _Broken("its body is gone, and no entry erased it", min(unlisted))
        if back := self._listed - self._gone.keys():
            raise _Broken("its body is there, and an entry says that it was erased", min(back))


def _empty_projections() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", isolation_level=None)
    for statement in PROJECTION_SCHEMA:
        made.execute(statement)
    made.execute("BEGIN")
    return made


def _fold_entry(
    scratch: sqlite3.Connection, header: EntryHeader, record: MemoryRecord | None, secret: bytes
) -> None:
    try:
        fold(scratch, header, record, secret=secret)
    except (sqlite3.Error, *UNREADABLE) as error:
        raise _Broken(f"it cannot follow from the entries before: {error}", header.seq) from error


def _compare(db: sqlite3.Connection, scratch: sqlite3.Connection) -> None:
    for table, order in PROJECTION_TABLES.items():
        # Types are compared too: what is a number here and a text there sorts elsewhere.
        question = f"SELECT * FROM {table} ORDER BY {order}"
        ours, theirs = db.execute(question), scratch.execute(question)
        while True:
            one, other = ours.fetchmany(500), theirs.fetchmany(500)
            if [*map(_typed_values, one)] != [*map(_typed_values, other)]:
                raise _Broken(
                    f"the table `{table}` is not what follows from the log; SqliteMemory.rebuild() "
                    "builds it again"
                )
            if not one:
                break


def _typed_values(row: tuple[object, ...]) -> tuple[tuple[type, object], ...]:
    return tuple((type(value), value) for value in row)


def _entry_of(values: tuple[object, ...], seq: int) -> Entry:
    place, header, hash, salt, body = values
    if place != seq:
        raise _Broken("it is missing", seq)
    if (
        isinstance(header, bytes)
        and isinstance(hash, bytes)
        and isinstance(salt, bytes | None)
        and isinstance(body, bytes | None)
    ):
        return Entry(seq=seq, header=header, hash=hash.hex(), salt=salt, body=body)
    raise _Broken("a column of it is no bytes", seq)


def _digest(data: object) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else repr(data).encode()).hexdigest()
