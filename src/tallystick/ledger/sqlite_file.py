"""The file under a SQLite ledger: made private, opened once, written in transactions.

SQLite's own errors are translated here and nowhere else, each into one line that says what to do.

WAL, so readers never wait and a commit is one append. `synchronous` is chosen per transaction:
NORMAL leaves the commit with the operating system, where it survives the death of this process;
FULL waits for the disk, and since the log is one file it carries every commit before it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tallystick.core.errors import (
    LedgerCorrupt,
    LedgerError,
    LedgerFormatUnknown,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
    LedgerUnavailable,
    NotALedger,
)

__all__ = ["APPLICATION_ID", "FORMAT", "LedgerFile"]

FORMAT = 1
# "TLLY": tells a ledger from every other SQLite file, whose `user_version` may well be 1 too.
APPLICATION_ID = 0x544C4C59
_PAUSE_SECONDS = 0.01
_SCHEMA = (
    """CREATE TABLE run (
        id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, count INTEGER NOT NULL,
        hash BLOB NOT NULL, fence INTEGER NOT NULL, moved INTEGER NOT NULL,
        imported INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE entry (
        run TEXT NOT NULL, seq INTEGER NOT NULL, header BLOB NOT NULL, hash BLOB NOT NULL,
        PRIMARY KEY (run, seq)
    ) WITHOUT ROWID""",
    # Salt and body are NULL once they were erased. A row that is missing is damage, not erasure. It
    # has a rowid, since bodies are large: in the tree of their key they cost 25 % more to read.
    """CREATE TABLE body (
        run TEXT NOT NULL, seq INTEGER NOT NULL, salt BLOB, body BLOB, PRIMARY KEY (run, seq)
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)


class LedgerFile:
    """One connection, shared by threads under a lock. Opened when it is first used."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._forcing: bool | None = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Look at what is committed. Waits for no writer of another process."""
        with self._guard, self._translated():
            yield self._connected()

    @contextlib.contextmanager
    def writing(self, *, forced: bool) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing. Ends when the commit is as strong as asked."""
        with self._guard, self._translated():
            db = self._connected()
            if self._forcing is not forced:
                # Not allowed inside a transaction, so it cannot be part of one.
                db.execute(f"PRAGMA synchronous = {'FULL' if forced else 'NORMAL'}")
                self._forcing = forced
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def sweep(self) -> None:
        """Take what was removed out of the log too, as far as no reader still needs it."""
        with self.reading() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                self._forcing = None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Made by us first, so that it never exists with wider rights. One that is there is not
        # opened: closing it would drop the locks that another connection of this process has on it.
        with contextlib.suppress(FileExistsError):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(self.path, flags, 0o600))
        db = sqlite3.connect(
            self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        # Looked at before anything is set: what is not ours stays as it is. In a transaction,
        # or the answers could come from before and after another process made the tables.
        db.execute("BEGIN")
        fresh = not self._recognized(db)
        db.execute("COMMIT")
        self._write_ahead(db)
        # What is deleted is overwritten: an erased body is not left in a free page.
        db.execute("PRAGMA secure_delete = ON").fetchall()
        if fresh:
            db.execute("BEGIN IMMEDIATE")
            if not self._recognized(db):
                for statement in _SCHEMA:
                    db.execute(statement)
            db.execute("COMMIT")

    def _write_ahead(self, db: sqlite3.Connection) -> None:
        """Choose the log. When several processes make one file, SQLite does not wait here."""
        give_up = time.monotonic() + self._busy_seconds
        while True:
            try:
                db.execute("PRAGMA journal_mode = WAL").fetchall()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    def _recognized(self, db: sqlite3.Connection) -> bool:
        """Whether the file is a ledger, False if it is empty. Anything else is refused."""
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if application == APPLICATION_ID:
            if version != FORMAT:
                raise LedgerFormatUnknown(path=str(self.path), found=version, known=FORMAT)
            return True
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application or version or tables:
            raise NotALedger(path=str(self.path))
        return False

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._of_sqlite(error) from error
        except UnicodeDecodeError as error:
            # SQLite quotes the damaged schema in its message, which then is no text.
            raise LedgerCorrupt(path=str(self.path), why="it holds no readable text") from error
        except OSError as error:
            raise self._of_system(error) from error

    def _of_sqlite(self, error: sqlite3.Error) -> LedgerError:
        path = str(self.path)
        match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return LedgerLocked(path=path, waited_seconds=self._busy_seconds)
            case sqlite3.SQLITE_FULL:
                return LedgerFull(path=path)
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return LedgerReadOnly(path=path)
            case sqlite3.SQLITE_NOTADB:
                return NotALedger(path=path)
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
                return LedgerUnavailable(path=path, why=str(error))
            case _:
                # Our statements are fixed: what SQLite cannot make of them lies in the file.
                return LedgerCorrupt(path=path, why=str(error))

    def _of_system(self, error: OSError) -> LedgerError:
        path = str(self.path)
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                return LedgerFull(path=path)
            case errno.EACCES | errno.EPERM | errno.EROFS:
                return LedgerReadOnly(path=path)
            case errno.EEXIST | errno.ENOTDIR:
                return LedgerUnavailable(path=path, why="what should be a directory is none")
            case _:
                return LedgerUnavailable(path=path, why=error.strerror or str(error))
