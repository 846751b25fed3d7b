"""The ledger in one SQLite file, for many runs, threads and processes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Generator, Iterator, Sequence
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
    noted,
    selected,
    tagged_drafts,
    tagged_entry,
    with_facts_of,
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

# The file under a SQLite ledger: read on one connection, written on another.
#
# WAL, so readers never wait and a commit is one append. `synchronous` is chosen per transaction:
# NORMAL leaves the commit with the operating system, where it survives the death of this process;
# FULL waits for the disk, and since the log is one file it carries every commit before it.
#
# Each object reads on a connection of its own, so that nobody who reads waits for the disk. All
# objects of a process on one file write on one connection, that of its writer.


def _unavailable(path: Path, error: OSError) -> LedgerUnavailable:
    return LedgerUnavailable(where=str(path), why=error.strerror or str(error))


class LedgerFile:
    """A ledger's file, shared by threads. Opened when it is first used."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        self._reader = SqliteConnection(path, LEDGER, busy_seconds=busy_seconds, query_only=True)
        self._writer: Writer | None = None

    @property
    def where(self) -> str:
        """What errors call it."""
        return str(self.path)

    def owners(self) -> Owners:
        """Return the owners of what is held in this file, beside it."""
        folder = self.path.with_name(f"{self.path.name}-owners")
        return FileOwners(folder, failed=_unavailable)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Look at what is committed. Waits for no writer, here or in another process."""
        with self._translated(), self._reader.held() as db:
            yield db

    @contextlib.contextmanager
    def writing(self, *, forced: bool) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing. Ends when the commit is as strong as asked."""
        with (
            self._translated(),
            self._written().transaction(forced=forced, busy_seconds=self._busy_seconds) as db,
        ):
            yield db

    def submit(self, work: Work, *, forced: bool, bytes: int) -> Future[None]:
        """Have work done in a transaction of the writer's thread, with that of others."""
        with self._translated():
            return self._written().submit(
                work, forced=forced, bytes=bytes, path=self.path, busy_seconds=self._busy_seconds
            )

    def write(self, work: Work, *, forced: bool, bytes: int) -> None:
        """Submit, and wait for it. Raises what it failed with."""
        with self._translated():
            writer = self._written()
            writer.check_not_mine()
            future = writer.submit(
                work, forced=forced, bytes=bytes, path=self.path, busy_seconds=self._busy_seconds
            )
        # What it failed with was translated where it failed.
        future.result()

    def sweep(self) -> None:
        """Take what was removed out of the log too, as far as no reader still needs it."""
        with self._translated(), self._written().alone(busy_seconds=self._busy_seconds) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def rewrite(self) -> tuple[int, int]:
        """Make the file as small as what it holds. Raises `LedgerLocked` if it cannot be done now.

        Returns its bytes, those of its log included, before and after.
        """
        with self._translated(), self._written().alone(busy_seconds=self._busy_seconds) as db:
            before = self._size()
            self._checkpointed(db)
            db.execute("VACUUM")
            # The new pages are in the log until nobody needs the old ones.
            self._checkpointed(db)
            return before, self._size()

    def close(self) -> None:
        """Wait for what was submitted, and let go of the file."""
        writer = self._writer
        if writer is not None:
            writer.check_not_mine()
            self._writer = None
            writer.leave(self)
        self._reader.close()

    def _checkpointed(self, db: sqlite3.Connection) -> None:
        if not checkpointed(db):
            raise LedgerLocked(where=str(self.path), waited_seconds=self._busy_seconds)

    def _size(self) -> int:
        log = self.path.with_name(f"{self.path.name}-wal")
        return sum(each.stat().st_size for each in (self.path, log) if each.exists())

    def _written(self) -> Writer:
        # Two threads that come here together get the same one.
        writer = self._writer
        if writer is None:
            self._writer = writer = writer_of(self.path, self, busy_seconds=self._busy_seconds)
        return writer

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return LEDGER.translated(self.path, waited_seconds=self._busy_seconds)


# The rows of a ledger's file: what they hold is checked as it is read.
#
# A row that holds what we never write is damage, and said to be: `LedgerCorrupt`.


_BASE = f"SELECT {columns.BASE} FROM run"
_ROW = f"SELECT {columns.BASE}, {', '.join(columns.COLUMNS)} FROM"
_COLUMNS = "entry.seq, entry.header, entry.hash, body.seq, salt, body"
_WITH_BODY = "LEFT JOIN body ON body.run = entry.run AND body.seq = entry.seq"
_ENTRIES = f"""
    SELECT {_COLUMNS} FROM entry {_WITH_BODY}
    WHERE entry.run = ? AND entry.seq >= ? ORDER BY entry.seq
"""
_PUT = f"""
    REPLACE INTO run ({columns.BASE}, {", ".join(columns.COLUMNS)})
    VALUES ({", ".join("?" * (len(columns.COLUMNS) + 7))})
"""
_ROW_TYPES = (str, int, int, bytes, int, int, int)

_FoundEntry = tuple[int, bytes, bytes, int | None, bytes | None, bytes | None]


class Rows:
    """Reads the rows of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns = False

    def row(self, db: sqlite3.Connection, run: str) -> RunRow | None:
        if self._have_columns(db):
            found = db.execute(f"{_ROW} run WHERE id = ?", (run,)).fetchone()
            return None if found is None else self._as_row(found)
        row = self.standing(db, run)
        return None if row is None else columns.with_facts(db, row)

    def standing(self, db: sqlite3.Connection, run: str) -> RunRow | None:
        """Return the row of a run without what its records say: all that an append needs."""
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
        if self._have_columns(db):
            asked, values = columns.question(
                which, after=after, skip=skip, most=most, newest_first=newest_first
            )
            return [self._as_row(found) for found in db.execute(f"{_ROW} {asked}", values)]
        # Run by run, as far as it takes: most questions end before the last run.
        every = db.execute(f"{_BASE} ORDER BY id{' DESC' if newest_first else ''}").fetchall()
        rows = (columns.with_facts(db, self._as_base(found)) for found in every)
        return selected(rows, which, after=after, skip=skip, most=most, newest_first=newest_first)

    def _have_columns(self, db: sqlite3.Connection) -> bool:
        """Return whether the file has the columns. One that has them keeps them."""
        if not self._columns:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            self._columns = version == FORMAT
        return self._columns

    def entries(
        self, db: sqlite3.Connection, run: str, start: int
    ) -> Generator[Sealed, None, None]:
        """The entries from a place on. To be closed before the connection is let go of."""
        cursor = db.execute(_ENTRIES, (run, start))
        try:
            for seq, found in enumerate(cursor, start):
                yield self._as_entry(found, run, seq)
        finally:
            cursor.close()

    def hash_at(self, db: sqlite3.Connection, run: str, seq: int) -> str | None:
        """The hash of the entry at a place."""
        found = db.execute("SELECT hash FROM entry WHERE run = ? AND seq = ?", (run, seq))
        row = found.fetchone()
        return row[0].hex() if row is not None and type(row[0]) is bytes else None

    def header_at(self, db: sqlite3.Connection, run: str, seq: int) -> bytes:
        """The header of the entry at a place, nothing if there is none."""
        found = db.execute("SELECT header FROM entry WHERE run = ? AND seq = ?", (run, seq))
        row = found.fetchone()
        return row[0] if row is not None and type(row[0]) is bytes else b""

    def forks_of(self, db: sqlite3.Connection, run: str) -> list[str]:
        """The runs that grew from a run, or are about to. What cannot be read says nothing."""
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
            raise self._corrupt(f"the row of run {found[0]!r} holds what no row does")
        return columns.base_row(found)

    def _as_row(self, found: tuple[Any, ...]) -> RunRow:
        base = len(_ROW_TYPES)
        row = columns.with_columns(self._as_base(found[:base]), found[base:])
        if row is None:
            raise self._corrupt(f"the row of run {found[0]!r} holds what no row does")
        return row

    def _corrupt(self, why: str) -> LedgerCorrupt:
        return LedgerCorrupt(where=str(self._path), why=why)


def insert(db: sqlite3.Connection, run: str, places: Sequence[tuple[int, Sealed]]) -> None:
    """Add entries at their places."""
    db.executemany(
        "INSERT INTO entry VALUES (?, ?, ?, ?)",
        [(run, seq, entry.header, bytes.fromhex(entry.hash)) for seq, entry in places],
    )
    db.executemany(
        "INSERT INTO body VALUES (?, ?, ?, ?)",
        [(run, seq, entry.salt, entry.body) for seq, entry in places],
    )


def put(db: sqlite3.Connection, row: RunRow) -> None:
    """Set the row of a run."""
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


def put_head(db: sqlite3.Connection, row: RunRow) -> None:
    """Set where the chain of a run stands, and nothing else of its row."""
    db.execute(
        "UPDATE run SET count = ?, hash = ? WHERE id = ?",
        (row.head.count, bytes.fromhex(row.head.hash), row.run),
    )


def without_bodies(db: sqlite3.Connection, run: str, seqs: Sequence[int]) -> None:
    """Remove the bodies of entries."""
    db.executemany(
        "UPDATE body SET salt = NULL, body = NULL WHERE run = ? AND seq = ?",
        [(run, seq) for seq in seqs],
    )


def remove(db: sqlite3.Connection, run: str) -> None:
    """Remove all of a run."""
    db.execute("DELETE FROM body WHERE run = ?", (run,))
    db.execute("DELETE FROM entry WHERE run = ?", (run,))
    db.execute("DELETE FROM run WHERE id = ?", (run,))


# The ledger in one SQLite file, for many runs, threads and processes.


_BUSY_SECONDS = 10.0
_BATCH_ENTRIES = 512
_BATCH_BYTES = 1 << 20


class SqliteLedger:
    """Keeps runs across processes. Made private to the user: file 0600, directory 0700.

    A writer waits `busy_seconds` for another process, then raises `LedgerLocked`.
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
        # Whichever name the ledger was opened by: those who share it share its locks.
        path = Path(os.path.realpath(self.path))
        return path.with_name(f"{path.name}-runs")

    def shared_scopes(self) -> Scopes:
        # Not every reader of a ledger has to do with money.
        from tallystick.ledger.scopes import SharedScopes

        return SharedScopes(self._file)

    def close(self) -> None:
        """Let go of the file. Used again, the ledger opens it again."""
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
            row = custody.claimed(found, run, create=create, grown_from=grown_from, owner=owner)
            acts.prepare(db)
            put(db, row)
            if create:
                acts.add(db, row, "created")
        return row.fence

    def acts_by_run(self) -> dict[str, list[acts.Act]] | None:
        """Return what was done to each run beside its chain; None of a ledger from before that."""
        try:
            with self._file.reading() as db:
                return acts.all_acts(db)
        except acts.BadAct as error:
            raise LedgerCorrupt(where=str(self.path), why=str(error)) from error

    def damage(self) -> list[str]:
        """Return what SQLite finds wrong with the file, its tables and its indexes."""
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
        """Waits while the writer has too much to do: see `ledger/writer.py`."""
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
            custody.required(self._rows.row(db, run), run)
        return self._entries(run, start, sys.maxsize if stop is None else stop)

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
            custody.required(self._rows.row(db, run), run)
            custody.check_removable(run, self._rows.forks_of(db, run))
            acts.prepare(db)
            acts.remove(db, run)
            remove(db, run)
            if also is not None:
                also(db)
        self._file.sweep()

    def release(self, run: str) -> RunRow:
        with self._file.writing(forced=True) as db:
            found = self._rows.row(db, run)
            row = custody.released(found, run)
            acts.prepare(db)
            put(db, row)
            # Given away already, it stays as it is: that is no act.
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
                fresh = custody.without_known(shared, known=here, of=ancestor.run, run=header.run)
                self._take(db, custody.shared_row(ancestor), fresh, "shared", here)
            if known is not None:
                fresh = custody.without_known(entries, known=known, of=header.run, run=header.run)
                kind: acts.Custody = "adopted" if header.moved else "copied"
                self._take(db, custody.adopted(header), fresh, kind, known)
            if also is not None:
                also(db)

    def _take(
        self,
        db: sqlite3.Connection,
        row: RunRow,
        fresh: Iterator[tuple[int, Sealed]],
        kind: acts.Custody,
        here: Head | None,
    ) -> None:
        """Add the entries of a run that arrives. There is nothing to do if `here` is None."""
        erased = []
        seen = []
        before = self._rows.row(db, row.run)
        for seq, entry in fresh:
            insert(db, row.run, [(seq, entry)])
            seen.append(tagged_entry(entry))
            if entry.body is None:
                erased.append(seq)
        if here is not None:
            put(db, noted(row if before is None else with_facts_of(before, row), seen))
            acts.add(db, row, kind)
            acts.add_erased(db, row, erased)

    def erase(self, run: str, seqs: Sequence[int]) -> None:
        with self._file.writing(forced=True) as db:
            row = custody.required(self._rows.row(db, run), run)
            fork = is_of_fork(self._rows.header_at(db, run, 0))
            custody.check_erasable(row, seqs, fork=fork)
            acts.prepare(db)
            # A chain that ends by saying that it was pruned needs no other record of it.
            if not acts.says_pruned(self._rows.header_at(db, run, row.head.count - 1)):
                acts.add_erased(db, row, seqs)
            without_bodies(db, run, seqs)
            put(db, msgspec.structs.replace(row, erased=True))
        self._file.sweep()

    def free_bytes(self) -> int:
        """Return how much of the file holds nothing."""
        with self._file.reading() as db:
            (free,) = db.execute("PRAGMA freelist_count").fetchone()
            (size,) = db.execute("PRAGMA page_size").fetchone()
        return int(free * size)

    def reclaim(self) -> tuple[int, int]:
        """Give back the room of what was erased or removed. Returns the bytes before and after.

        Everything that is left is written anew, in one transaction of SQLite's (VACUUM): killed at
        any moment, the file is as it was or as it becomes, and nothing is lost. While it goes on it
        takes as much room again twice, beside the file and where SQLite keeps temporary files, and
        nobody writes. Raises `LedgerLocked` if others read or write for too long; asked again, it
        does the rest.
        """
        return self._file.rewrite()

    def _append(
        self, run: str, drafts: Sequence[Draft], *, expected: Head, fence: int, also: Also | None
    ) -> tuple[Work, int, Head]:
        """What an append does in its transaction, how many bytes it is, and the head after it."""
        entries, head = custody.seal_all(run, drafts, head=expected, salts=self._salts)
        telling = tagged_drafts(drafts)

        def work(db: sqlite3.Connection) -> None:
            # Most entries say nothing that the row does, and change two figures of it.
            whole = bool(telling) or not drafts
            found = self._rows.row(db, run) if whole else self._rows.standing(db, run)
            row = custody.appended(found, run, expected=expected, fence=fence, head=head)
            insert(db, run, list(enumerate(entries, start=expected.count)))
            if whole:
                # Also when it is the same: a commit that changes nothing would not be forced.
                put(db, noted(row, telling))
            else:
                put_head(db, row)
            if also is not None:
                also(db)

        size = sum(len(entry.header) + len(entry.body or b"") for entry in entries)
        return work, size, head

    def _entries(self, run: str, seq: int, stop: int) -> Iterator[Sealed]:
        """Batch by batch, so that whoever reads slowly keeps neither lock nor memory."""
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
                # What comes before it is still to be had; the next call begins with it.
                if not batch:
                    raise
        return batch


_: type[TransferLedger] = SqliteLedger
