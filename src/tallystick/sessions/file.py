"""The file of the book of sessions: SQLite, private, one transaction at a time.

A connection lives for one transaction. Sessions are looked up by the run and not by the turn, so
that opening costs nothing worth keeping; and no connection crosses a fork or waits in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from tallystick.core.errors import NotASessionBook, SessionFormatUnknown, StoreError
from tallystick.ledger.connection import integrity_faults
from tallystick.storage import system
from tallystick.storage.directories import make_private

FORMAT = 1
# "TLSB": tells a book of sessions from every other SQLite file.
APPLICATION_ID = 0x544C5342
_BUSY_SECONDS = 10.0
_PAUSE_SECONDS = 0.01
_SCHEMA = (
    """CREATE TABLE session (
        id TEXT PRIMARY KEY, backend TEXT NOT NULL, state TEXT NOT NULL,
        created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        extension_count INTEGER NOT NULL, recursion_depth INTEGER NOT NULL,
        token_budget INTEGER, time_budget_ms INTEGER, vm_instance_id TEXT,
        current_snapshot_id TEXT, generation INTEGER NOT NULL, kept BLOB NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE variable (
        session TEXT NOT NULL REFERENCES session (id) ON DELETE CASCADE,
        key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (session, key)
    ) WITHOUT ROWID""",
    """CREATE TABLE snapshot (
        session TEXT NOT NULL REFERENCES session (id) ON DELETE CASCADE,
        id TEXT NOT NULL, name TEXT NOT NULL, created_at INTEGER NOT NULL,
        backend TEXT NOT NULL, kept BLOB NOT NULL,
        PRIMARY KEY (session, id), UNIQUE (session, name)
    ) WITHOUT ROWID""",
    """CREATE TABLE run (
        session TEXT NOT NULL REFERENCES session (id) ON DELETE CASCADE,
        place INTEGER NOT NULL, run TEXT NOT NULL, begun_at INTEGER NOT NULL,
        generation INTEGER NOT NULL, ended INTEGER NOT NULL, tokens INTEGER NOT NULL,
        wall_ms INTEGER NOT NULL, PRIMARY KEY (session, place), UNIQUE (session, run)
    ) WITHOUT ROWID""",
    "CREATE TABLE counted (created INTEGER NOT NULL)",
    "INSERT INTO counted VALUES (0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)


class SessionFile:
    """Opens the file for a transaction. Several processes may, each in its turn."""

    def __init__(self, path: Path, *, busy_seconds: float = _BUSY_SECONDS) -> None:
        self.path = path
        self._busy_seconds = busy_seconds

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Look, at one moment."""
        with self._opened("BEGIN") as db:
            yield db

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Change something. It is on the disk at the end, or nothing is."""
        with self._opened("BEGIN IMMEDIATE") as db:
            yield db

    def scrub(self) -> bool:
        """Write the file anew and empty its log. False if somebody still reads what was there."""
        with self._translated(), contextlib.closing(self._connected()) as db:
            self._prepare(db)
            try:
                db.execute("VACUUM")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL):
                    raise
                return False
            (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy

    def damage(self) -> list[str]:
        """Return what SQLite finds wrong with the file, its tables and its indexes."""
        with self.reading() as db:
            return integrity_faults(db)

    @contextlib.contextmanager
    def _opened(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._translated(), contextlib.closing(self._connected()) as db:
            self._prepare(db)
            db.execute(begin)
            try:
                yield db
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _connected(self) -> sqlite3.Connection:
        _make(self.path)
        db = sqlite3.connect(
            self.path.absolute(),
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        db.row_factory = sqlite3.Row
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        # Looked at before anything is set: what is not ours stays as it is.
        db.execute("BEGIN")
        fresh = not self._recognized(db)
        db.execute("COMMIT")
        self._write_ahead(db)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA trusted_schema = OFF")
        # What is deleted is overwritten: variables may be somebody's words.
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
        """Whether the file is a book of sessions, False if it is empty. All else is refused."""
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if application == APPLICATION_ID:
            if version != FORMAT:
                raise SessionFormatUnknown(path=str(self.path), found=version, known=FORMAT)
            return True
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application or version or tables:
            raise NotASessionBook(path=str(self.path))
        return False

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF
            if code == sqlite3.SQLITE_NOTADB:
                raise NotASessionBook(path=str(self.path)) from error
            raise StoreError(f"{self.path}: {_why(code, error)}") from error
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror or error}") from error


def _why(code: int, error: sqlite3.Error) -> str:
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "another process was writing it for too long; try again when it is done"
        case sqlite3.SQLITE_FULL:
            return "the disk is full; free some space, then go on"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return "it cannot be written; make it and its directory writable for this user"
        case _:
            return f"it cannot be used: {error}"


def _make(path: Path) -> None:
    """See to it that there is a file, private to the user."""
    system.require_posix("a session in a file")
    if not path.parent.is_dir():
        make_private(path.parent)
    # Made by us first, so that it never exists with wider rights.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | system.CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
