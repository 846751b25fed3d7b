"""The file of the book of sessions: its tables, how it is recognised, and its errors.

A connection lives for one transaction. Sessions are looked up by the run and not by the turn, so
that opening costs nothing worth keeping, and nothing waits in a thread to be closed.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tallystick.core.errors import NotASessionBook, SessionFormatUnknown, StoreError
from tallystick.storage.sqlite_connection import FileKind
from tallystick.storage.sqlite_errors import code_of, integrity_faults
from tallystick.storage.sqlite_file import SqliteFile

FORMAT = 1
# "TLSB": tells a book of sessions from every other SQLite file.
APPLICATION_ID = 0x544C5342
_BUSY_SECONDS = 10.0
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
)


class _Errors:
    """The errors of a book: those of stores, and one for a file that is no book."""

    def of(self, error: BaseException, path: Path, *, waited_seconds: float) -> BaseException:
        match error:
            case sqlite3.Error() if (code_of(error) or 0) & 0xFF == sqlite3.SQLITE_NOTADB:
                return self.foreign(path=str(path))
            case sqlite3.Error():
                return self.unavailable(path=str(path), why=_why(error, path))
            case OSError():
                return self.unavailable(path=str(path), why=error.strerror or str(error))
            case _:
                return error

    def foreign(self, *, path: str) -> Exception:
        return NotASessionBook(path=path)

    def unavailable(self, *, path: str, why: str) -> Exception:
        return StoreError(f"{path}: {why}")


def _why(error: sqlite3.Error, path: Path) -> str:
    match (code_of(error) or 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "another process was writing it for too long; try again when it is done"
        case sqlite3.SQLITE_FULL:
            return "the disk is full; free some space, then go on"
        case sqlite3.SQLITE_CANTOPEN if path.is_dir():
            return "Is a directory"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return "it cannot be written; make it and its directory writable for this user"
        case _:
            return f"it cannot be used: {error}"


def _newer(path: str, version: int) -> SessionFormatUnknown:
    return SessionFormatUnknown(path=path, found=version, known=FORMAT)


def _prepare(db: sqlite3.Connection) -> None:
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA trusted_schema = OFF")


_BOOK = FileKind(
    name="a session in a file",
    application_id=APPLICATION_ID,
    versions=(FORMAT,),
    schema=_SCHEMA,
    errors=_Errors(),
    newer=_newer,
    prepare=_prepare,
)


class SessionFile(SqliteFile):
    """Opens the file for a transaction. Several processes may, each in its turn."""

    def __init__(self, path: Path, *, busy_seconds: float = _BUSY_SECONDS) -> None:
        super().__init__(path, _BOOK, busy_seconds=busy_seconds, kept=False)

    def scrub(self) -> bool:
        """Write the file anew and empty its log. Returns False if that has to be done later."""
        return self.rewrite(later_if=(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL))

    def damage(self) -> list[str]:
        """Return what SQLite finds wrong with the file, its tables and its indexes."""
        with self.reading() as db:
            return integrity_faults(db)
