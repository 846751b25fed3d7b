"""The ledger in one SQLite file, for many runs, threads and processes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from tallystick.core.chain import GENESIS, Draft, Head, Sealed, is_of_fork
from tallystick.core.errors import LedgerCorrupt, LedgerLocked, LedgerUnavailable
from tallystick.ledger import acts, columns, custody
from tallystick.ledger.facts import (
    copy_facts,
    row_after_entries,
    select_rows,
    tagged_drafts,
    tagged_entry,
)
from tallystick.ledger.file import FORMAT, LEDGER
from tallystick.ledger.port import (
    EVERY_RUN,
    Also,
    ExportHeader,
    RunFilter,
    RunRow,
    TransferLedger,
)
from tallystick.ledger.writer import Work, Writer, writer_of
from tallystick.storage.owner import FileOwners, Owners
from tallystick.storage.sqlite_connection import SqliteConnection
from tallystick.storage.sqlite_errors import integrity_faults
from tallystick.storage.sqlite_file import checkpointed

if TYPE_CHECKING:
    from tallystick.ledger.scopes import Scopes

# The file of a SQLite ledger: read on one connection, written on another.
#
# WAL, so readers never wait and a commit is one append. `synchronous` is chosen per transaction:
# NORMAL leaves the commit with the operating system, where it survives the death of this process;
# FULL waits for the disk, and since the log is one file it carries every commit before it.
#
# Each object reads on a connection of its own, so a reader never waits for the disk. All objects of
# a process on one file write on one connection, that of its writer.


def _unavailable(path: Path, error: OSError) -> LedgerUnavailable:
    return LedgerUnavailable(where=str(path), why=error.strerror or str(error))


class LedgerFile:
    """A ledger's file, shared by threads.

    Opened when it is first used, and created if it is missing. Errors of SQLite and of the system
    are raised as those of the ledger, such as `LedgerLocked`. A thread that would wait for itself
    gets `UsageError`.
    """

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        self._reader = SqliteConnection(path, LEDGER, busy_seconds=busy_seconds, query_only=True)
        self._writer: Writer | None = None

    @property
    def where(self) -> str:
        """The name of the file in error messages."""
        return str(self.path)

    def owners(self) -> Owners:
        """Return the processes that own reservations in this file, from the folder beside it."""
        folder = self.path.with_name(f"{self.path.name}-owners")
        return FileOwners(folder, failed=_unavailable)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that sees what is committed. Never waits for a writer.

        It is in no transaction: two statements may see two states. Threads take turns with it, so
        leave the block soon.
        """
        with self._translate_errors(), self._reader.held() as db:
            yield db

    @contextlib.contextmanager
    def writing(self, *, forced: bool) -> Iterator[sqlite3.Connection]:
        """Run one transaction: all of it, or nothing. Exiting waits for the commit.

        With `forced`, it waits until the commit is on the disk. An error inside undoes it, and is
        raised.
        """
        with (
            self._translate_errors(),
            self._open_writer().transaction(forced=forced, busy_seconds=self._busy_seconds) as db,
        ):
            yield db

    def submit(self, work: Work, *, forced: bool, bytes: int) -> Future[None]:
        """Queue work of a size for a transaction of the writer's thread, shared with other work.

        Return its future, which gets the error if there is one. Waits while the queue is full.
        """
        with self._translate_errors():
            return self._open_writer().submit(
                work, forced=forced, bytes=bytes, path=self.path, busy_seconds=self._busy_seconds
            )

    def write(self, work: Work, *, forced: bool, bytes: int) -> None:
        """Submit work and wait for it. Raise the error that it failed with.

        Raise `UsageError` in the writer's thread, and in a transaction of this thread.
        """
        with self._translate_errors():
            writer = self._open_writer()
            writer.check_not_mine()
            future = writer.submit(
                work, forced=forced, bytes=bytes, path=self.path, busy_seconds=self._busy_seconds
            )
        # Outside of the block above: the writer has translated this error already.
        future.result()

    def sweep(self) -> None:
        """Remove deleted content from the write-ahead log too.

        If a reader still needs it after the busy time, the content stays in the log, without an
        error.
        """
        with (
            self._translate_errors(),
            self._open_writer().alone(busy_seconds=self._busy_seconds) as db,
        ):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def rewrite(self) -> tuple[int, int]:
        """Shrink the file to its content (VACUUM). Return its size in bytes before and after.

        The sizes include the log. Raise `LedgerLocked` if others read or write for too long.
        """
        with (
            self._translate_errors(),
            self._open_writer().alone(busy_seconds=self._busy_seconds) as db,
        ):
            before = self._size()
            self._checkpoint(db)
            db.execute("VACUUM")
            # VACUUM wrote the new pages to the log; the file itself is still as large as before.
            self._checkpoint(db)
            return before, self._size()

    def close(self) -> None:
        """Wait for what was submitted, and close the file. The next use opens it again.

        Raise `UsageError` in a thread that would wait for itself.
        """
        writer = self._writer
        if writer is not None:
            writer.check_not_mine()
            self._writer = None
            writer.leave(self)
        self._reader.close()

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        if not checkpointed(db):
            raise LedgerLocked(where=str(self.path), waited_seconds=self._busy_seconds)

    def _size(self) -> int:
        log = self.path.with_name(f"{self.path.name}-wal")
        return sum(each.stat().st_size for each in (self.path, log) if each.exists())

    def _open_writer(self) -> Writer:
        # No lock is needed: `writer_of` returns the same writer to two threads that race here.
        writer = self._writer
        if writer is None:
            self._writer = writer = writer_of(self.path, self, busy_seconds=self._busy_seconds)
        return writer

    def _translate_errors(self) -> contextlib.AbstractContextManager[None]:
        return LEDGER.translated(self.path, waited_seconds=self._busy_seconds)


# The rows of a ledger's file: values are checked as they are read. A row with a value that is never
# written is damaged, and raises `LedgerCorrupt`.


_BASE = f"SELECT {columns.BASE} FROM run"
_ROW = f"SELECT {columns.BASE}, {', '.join(columns.COLUMNS)} FROM"
_COLUMNS = "entry.seq, entry.header, entry.hash, body.seq, salt, body"
_WITH_BODY = "LEFT JOIN body ON body.run = entry.run AND body.seq = entry.seq"
_ENTRIES = f"""
    SELECT {_COLUMNS} FROM entry {_WITH_BODY}
    WHERE entry.run = ? AND entry.seq >= ? ORDER BY entry.seq
"""
# A row gets the next rowid as it is written, and one process writes at a time. So rowids are in the
# order of the commits. Rewriting the file (VACUUM) keeps that order.
_ORDER = "SELECT rowid, seq FROM entry WHERE run = ? AND seq >= ? ORDER BY seq LIMIT ?"
_PUT = f"""
    REPLACE INTO run ({columns.BASE}, {", ".join(columns.COLUMNS)})
    VALUES ({", ".join("?" * (len(columns.COLUMNS) + 7))})
"""
_ROW_TYPES = (str, int, int, bytes, int, int, int)

_FoundEntry = tuple[int, bytes, bytes, int | None, bytes | None, bytes | None]


class Rows:
    """Reads the rows of one file. Raises `LedgerCorrupt` for a damaged row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns = False

    def row(self, db: sqlite3.Connection, run: str) -> RunRow | None:
        """Return the row of a run, with its facts; None if it is not in the file."""
        if self._have_columns(db):
            found = db.execute(f"{_ROW} run WHERE id = ?", (run,)).fetchone()
            return None if found is None else self._as_row(found)
        row = self.row_without_facts(db, run)
        return None if row is None else columns.with_facts(db, row)

    def row_without_facts(self, db: sqlite3.Connection, run: str) -> RunRow | None:
        """Return the row of a run without its facts, which is all that an append needs.

        Return None if the run is not in the file.
        """
        found = db.execute(f"{_BASE} WHERE id = ?", (run,)).fetchone()
        return None if found is None else self._as_base(found)

    def rows(
        self,
        db: sqlite3.Connection,
        which: RunFilter = EVERY_RUN,
        *,
        after: str = "",
        skip: int = 0,
        most: int | None = None,
        newest_first: bool = False,
    ) -> list[RunRow]:
        """Return rows as `Ledger.runs` does."""
        if self._have_columns(db):
            asked, values = columns.selection_sql(
                which, after=after, skip=skip, most=most, newest_first=newest_first
            )
            return [self._as_row(found) for found in db.execute(f"{_ROW} {asked}", values)]
        # Facts are read lazily, run by run: most selections end before the last run.
        every = db.execute(f"{_BASE} ORDER BY id{' DESC' if newest_first else ''}").fetchall()
        rows = (columns.with_facts(db, self._as_base(found)) for found in every)
        return select_rows(
            rows, which, after=after, skip=skip, most=most, newest_first=newest_first
        )

    def _have_columns(self, db: sqlite3.Connection) -> bool:
        """Return True if the file has the columns; that answer is kept: they are never removed."""
        if not self._columns:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            self._columns = version == FORMAT
        return self._columns

    def entries(
        self, db: sqlite3.Connection, run: str, start: int
    ) -> Generator[Sealed, None, None]:
        """Yield the entries from a position on. Close it before the connection is released.

        Raise `LedgerCorrupt` at a gap, a lost body or a damaged entry. The end of the table is no
        gap.
        """
        cursor = db.execute(_ENTRIES, (run, start))
        try:
            for seq, found in enumerate(cursor, start):
                yield self._as_entry(found, run, seq)
        finally:
            cursor.close()

    def hash_at(self, db: sqlite3.Connection, run: str, seq: int) -> str | None:
        """Return the hash of the entry at a position; None if it is missing or damaged."""
        found = db.execute("SELECT hash FROM entry WHERE run = ? AND seq = ?", (run, seq))
        row = found.fetchone()
        return row[0].hex() if row is not None and type(row[0]) is bytes else None

    def header_at(self, db: sqlite3.Connection, run: str, seq: int) -> bytes:
        """Return the header of the entry at a position; empty if it is missing or damaged."""
        found = db.execute("SELECT header FROM entry WHERE run = ? AND seq = ?", (run, seq))
        row = found.fetchone()
        return row[0] if row is not None and type(row[0]) is bytes else b""

    def forks_of(self, db: sqlite3.Connection, run: str) -> list[str]:
        """Return the ids of the forks of a run, and of runs claimed as forks without an entry yet.

        A run whose first entry cannot be read is left out.
        """
        index = "INDEXED BY run_unwritten" if self._have_columns(db) else ""
        begun = db.execute(
            f"SELECT id, hash FROM run {index} WHERE count = 0 AND hash <> ?", (GENESIS,)
        )
        found = {
            fork
            for fork, root in begun.fetchall()
            if db.execute("SELECT 1 FROM entry WHERE run = ? AND hash = ?", (run, root)).fetchone()
        }
        found.update(each.run for each in self.rows(db, RunFilter(grown_from=run)))
        return sorted(found)

    def _as_entry(self, found: _FoundEntry, run: str, seq: int) -> Sealed:
        place, header, entry_hash, body_place, salt, body = found
        if place != seq:
            raise self._corrupt(f"run {run} has no entry {seq}")
        if body_place is None:
            raise self._corrupt(f"entry {seq} of run {run} has lost its body")
        if type(header) is not bytes or type(entry_hash) is not bytes:
            raise self._corrupt(f"entry {seq} of run {run} is not made of bytes")
        if type(salt) is not type(body) or not isinstance(body, bytes | None):
            raise self._corrupt(f"the body of entry {seq} of run {run} is not made of bytes")
        return Sealed(header=header, hash=entry_hash.hex(), salt=salt, body=body)

    def _as_base(self, found: tuple[Any, ...]) -> RunRow:
        if tuple(map(type, found)) != _ROW_TYPES:
            raise self._corrupt(
                f"the row of run {found[0]!r} holds a value that is never written there"
            )
        return columns.base_row(found)

    def _as_row(self, found: tuple[Any, ...]) -> RunRow:
        base = len(_ROW_TYPES)
        row = columns.with_columns(self._as_base(found[:base]), found[base:])
        if row is None:
            raise self._corrupt(
                f"the row of run {found[0]!r} holds a value that is never written there"
            )
        return row

    def _corrupt(self, why: str) -> LedgerCorrupt:
        return LedgerCorrupt(where=str(self._path), why=why)


def insert_entries(db: sqlite3.Connection, run: str, places: Sequence[tuple[int, Sealed]]) -> None:
    """Add entries at their positions."""
    db.executemany(
        "INSERT INTO entry VALUES (?, ?, ?, ?)",
        [(run, seq, entry.header, bytes.fromhex(entry.hash)) for seq, entry in places],
    )
    db.executemany(
        "INSERT INTO body VALUES (?, ?, ?, ?)",
        [(run, seq, entry.salt, entry.body) for seq, entry in places],
    )


def put_row(db: sqlite3.Connection, row: RunRow) -> None:
    """Write the row of a run, replacing the old one."""
    base = (
        row.run,
        row.created_at,
        row.head.count,
        bytes.fromhex(row.head.hash),
        row.fence,
        row.moved,
        row.imported,
    )
    db.execute(_PUT, (*base, *columns.values_of(row)))


def update_head(db: sqlite3.Connection, row: RunRow) -> None:
    """Update the head in the row of a run, and nothing else."""
    db.execute(
        "UPDATE run SET count = ?, hash = ? WHERE id = ?",
        (row.head.count, bytes.fromhex(row.head.hash), row.run),
    )


def erase_bodies(db: sqlite3.Connection, run: str, seqs: Sequence[int]) -> None:
    """Remove the bodies and salts of entries. Positions that are not there are ignored."""
    db.executemany(
        "UPDATE body SET salt = NULL, body = NULL WHERE run = ? AND seq = ?",
        [(run, seq) for seq in seqs],
    )


def delete_run(db: sqlite3.Connection, run: str) -> None:
    """Delete the row, the entries and the bodies of a run."""
    db.execute("DELETE FROM body WHERE run = ?", (run,))
    db.execute("DELETE FROM entry WHERE run = ?", (run,))
    db.execute("DELETE FROM run WHERE id = ?", (run,))


# The ledger in one SQLite file, for many runs, threads and processes.


_BUSY_SECONDS = 10.0
# A reader takes this many entries at once, or this many bytes of bodies, and holds no lock between
# two batches.
_BATCH_ENTRIES = 512
_BATCH_BYTES = 1 << 20


class SqliteLedger:
    """A ledger that is kept in a file, private to the user: file 0600, directory 0700.

    The file is created by the first use. A writer waits `busy_seconds` for another process, then
    raises `LedgerLocked`.
    """

    def __init__(
        self,
        path: Path,
        *,
        salts: custody.Salts = os.urandom,
        busy_seconds: float = _BUSY_SECONDS,
    ) -> None:
        self._file = LedgerFile(path, busy_seconds=busy_seconds)
        self._rows = Rows(path)
        self._salts = salts

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def file(self) -> LedgerFile:
        """The file itself, for stores that keep their tables in it."""
        return self._file

    @property
    def lock_folder(self) -> Path:
        # The real path, so that processes that opened it by different links share its locks.
        path = Path(os.path.realpath(self.path))
        return path.with_name(f"{path.name}-runs")

    def shared_scopes(self) -> Scopes:
        # Imported here: most readers of a ledger need no budgets, and the import takes time.
        from tallystick.ledger.scopes import SharedScopes

        return SharedScopes(self._file)

    def close(self) -> None:
        """Wait for what was submitted and close the file.

        If the ledger is used again, it opens it again. Raise `UsageError` in a thread that would
        wait for itself, such as in a callback of a future.
        """
        self._file.close()

    def claim(
        self,
        run: str,
        *,
        create: bool,
        grown_from: str | None = None,
        owner: str | None = None,
    ) -> int:
        with self._file.writing(forced=False) as db:
            found = self._rows.row(db, run)
            row = custody.row_after_claim(
                found, run, create=create, grown_from=grown_from, owner=owner
            )
            acts.prepare(db)
            put_row(db, row)
            if create:
                acts.add(db, row, "created")
        return row.fence

    def acts_by_run(self) -> dict[str, list[acts.Act]] | None:
        """Return the acts of each run that has any; None for a ledger from before there were acts.

        Raise `LedgerCorrupt` if a row of their table is damaged.
        """
        try:
            with self._file.reading() as db:
                return acts.all_acts(db)
        except acts.BadAct as error:
            raise LedgerCorrupt(where=str(self.path), why=str(error)) from error

    def damage(self) -> list[str]:
        """Return the first 20 faults that SQLite finds in the file, its tables and its indexes.

        The list is empty if there are none.
        """
        with self._file.reading() as db:
            return integrity_faults(db)

    def submit(
        self,
        run: str,
        drafts: Sequence[Draft],
        *,
        expected: Head,
        fence: int,
        forced: bool,
        also: Also | None = None,
    ) -> tuple[Head, Future[None]]:
        """Queue an append; see `Ledger.submit`. Waits while the queue of the writer is full."""
        work, size, head = self._append(run, drafts, expected=expected, fence=fence, also=also)
        return head, self._file.submit(work, forced=forced, bytes=size)

    def append(
        self,
        run: str,
        drafts: Sequence[Draft],
        *,
        expected: Head,
        fence: int,
        forced: bool,
        also: Also | None = None,
    ) -> Head:
        work, size, head = self._append(run, drafts, expected=expected, fence=fence, also=also)
        self._file.write(work, forced=forced, bytes=size)
        return head

    def read(self, run: str, *, start: int = 0, stop: int | None = None) -> Iterator[Sealed]:
        with self._file.reading() as db:
            custody.require_row(self._rows.row(db, run), run)
        return self._entries(run, start, sys.maxsize if stop is None else stop)

    def order(self, starts: Mapping[str, int], *, most: int) -> Sequence[tuple[str, int]]:
        found: list[tuple[int, str, int]] = []
        with self._file.reading() as db:
            # One state for all of them: an entry of one run may follow from one of another.
            db.execute("BEGIN")
            try:
                for run, start in starts.items():
                    rows = db.execute(_ORDER, (run, start, most))
                    found += [(place, run, seq) for place, seq in rows]
            finally:
                db.execute("COMMIT")
        return [(run, seq) for _, run, seq in sorted(found)[:most]]

    def runs(
        self,
        which: RunFilter = EVERY_RUN,
        *,
        after: str = "",
        skip: int = 0,
        most: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[RunRow]:
        with self._file.reading() as db:
            return self._rows.rows(
                db, which, after=after, skip=skip, most=most, newest_first=newest_first
            )

    def row(self, run: str) -> RunRow | None:
        with self._file.reading() as db:
            return self._rows.row(db, run)

    def forks_of(self, run: str) -> Sequence[str]:
        with self._file.reading() as db:
            return self._rows.forks_of(db, run)

    def remove(self, run: str, *, also: Also | None = None) -> None:
        with self._file.writing(forced=True) as db:
            custody.require_row(self._rows.row(db, run), run)
            custody.check_removable(run, self._rows.forks_of(db, run))
            acts.prepare(db)
            acts.remove(db, run)
            delete_run(db, run)
            if also is not None:
                also(db)
        self._file.sweep()

    def release(self, run: str) -> RunRow:
        with self._file.writing(forced=True) as db:
            found = self._rows.row(db, run)
            row = custody.row_after_release(found, run)
            acts.prepare(db)
            put_row(db, row)
            # A run that was released before is unchanged, so there is no act to record.
            if row != found:
                acts.add(db, row, "released")
        return row

    def adopt(
        self, header: ExportHeader, entries: Iterator[Sealed], *, also: Also | None = None
    ) -> None:
        with self._file.writing(forced=True) as db:
            acts.prepare(db)
            known = custody.known_head(self._rows.row(db, header.run), header)
            for ancestor in header.ancestors:
                here = custody.shared_head(
                    self._rows.row(db, ancestor.run),
                    ancestor,
                    run=header.run,
                    hash_at=partial(self._rows.hash_at, db),
                )
                shared = islice(entries, ancestor.count)
                fresh = custody.new_entries(shared, known=here, of=ancestor.run, run=header.run)
                self._insert_imported(db, custody.shared_row(ancestor), fresh, "shared", here)
            if known is not None:
                fresh = custody.new_entries(entries, known=known, of=header.run, run=header.run)
                kind: acts.Custody = "adopted" if header.moved else "copied"
                self._insert_imported(db, custody.imported_row(header), fresh, kind, known)
            if also is not None:
                also(db)

    def _insert_imported(
        self,
        db: sqlite3.Connection,
        row: RunRow,
        fresh: Iterator[tuple[int, Sealed]],
        kind: acts.Custody,
        here: Head | None,
    ) -> None:
        """Add the entries of an imported run, and its row unless `here` is None.

        `here` is the head of the part that is here already; None means that all of it is, and then
        `fresh` is read but yields nothing.
        """
        erased = []
        seen = []
        before = self._rows.row(db, row.run)
        for seq, entry in fresh:
            insert_entries(db, row.run, [(seq, entry)])
            seen.append(tagged_entry(entry))
            if entry.body is None:
                erased.append(seq)
        if here is not None:
            put_row(db, row_after_entries(row if before is None else copy_facts(before, row), seen))
            acts.add(db, row, kind)
            acts.add_erased(db, row, erased)

    def erase(self, run: str, seqs: Sequence[int]) -> None:
        with self._file.writing(forced=True) as db:
            row = custody.require_row(self._rows.row(db, run), run)
            fork = is_of_fork(self._rows.header_at(db, run, 0))
            custody.check_erasable(row, seqs, fork=fork)
            acts.prepare(db)
            # If the chain ends in a `run.pruned` record, that records the erasure.
            if not acts.is_pruned_entry(self._rows.header_at(db, run, row.head.count - 1)):
                acts.add_erased(db, row, seqs)
            erase_bodies(db, run, seqs)
            put_row(db, msgspec.structs.replace(row, erased=True))
        self._file.sweep()

    def free_bytes(self) -> int:
        """Return the bytes of the file that are in unused pages."""
        with self._file.reading() as db:
            (free,) = db.execute("PRAGMA freelist_count").fetchone()
            (size,) = db.execute("PRAGMA page_size").fetchone()
        return int(free * size)

    def reclaim(self) -> tuple[int, int]:
        """Shrink the file by the room of erased and removed content. Return bytes before and after.

        The rest is written again in one SQLite transaction (VACUUM). If the process is killed, the
        file is as before or as after, and nothing is lost. Meanwhile it needs up to twice the room
        again, beside the file and where SQLite keeps temporary files, and nothing else can write.
        Raise `LedgerLocked` if others read or write for too long; call it again then.
        """
        return self._file.rewrite()

    def _append(
        self, run: str, drafts: Sequence[Draft], *, expected: Head, fence: int, also: Also | None
    ) -> tuple[Work, int, Head]:
        """Return the work of an append, its size in bytes, and the head after it.

        The work raises the errors of `row_after_append`. Raise `InvalidLimit` for a body that is
        too large.
        """
        entries, head = custody.seal_all(run, drafts, head=expected, salts=self._salts)
        telling = tagged_drafts(drafts)

        def work(db: sqlite3.Connection) -> None:
            # Most entries carry no fact of the row: then only the two columns of its head change.
            whole = bool(telling) or not drafts
            found = self._rows.row(db, run) if whole else self._rows.row_without_facts(db, run)
            row = custody.row_after_append(found, run, expected=expected, fence=fence, head=head)
            insert_entries(db, run, list(enumerate(entries, start=expected.count)))
            if whole:
                # Even if the row is unchanged: SQLite would not force a commit without a change.
                put_row(db, row_after_entries(row, telling))
            else:
                update_head(db, row)
            if also is not None:
                also(db)

        size = sum(len(entry.header) + len(entry.body or b"") for entry in entries)
        return work, size, head

    def _entries(self, run: str, seq: int, stop: int) -> Iterator[Sealed]:
        """Yield the entries from `seq` to before `stop`, or to the last one.

        They are read in batches, so that a slow reader holds neither a lock nor much memory.
        """
        while seq < stop and (batch := self._batch(run, seq, min(stop - seq, _BATCH_ENTRIES))):
            yield from batch
            seq += len(batch)

    def _batch(self, run: str, start: int, most: int = _BATCH_ENTRIES) -> list[Sealed]:
        batch: list[Sealed] = []
        room = _BATCH_BYTES
        with (
            self._file.reading() as db,
            contextlib.closing(self._rows.entries(db, run, start)) as entries,
        ):
            try:
                for entry in entries:
                    batch.append(entry)
                    room -= len(entry.body or b"")
                    if room <= 0 or len(batch) == most:
                        break
            except (LedgerCorrupt, sqlite3.DatabaseError):
                # Return the good entries before the damaged one; the next call raises for it.
                if not batch:
                    raise
        return batch


_: type[TransferLedger] = SqliteLedger
