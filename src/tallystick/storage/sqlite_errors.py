"""Translate errors of SQLite and the system about a store's file into the store's errors.

Each becomes one line that says what to do. A store names its family of errors once, as
`StoreErrors`; they are translated by the class that opens its file, and nowhere else.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import Protocol

import msgspec

# Errors of one statement that leave the transaction around it as it was.
_OF_ONE_STATEMENT = (
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_MISUSE,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_TOOBIG,
)
_FAULTS_MAX = 20


class _OfPath(Protocol):
    def __call__(self, *, where: str) -> Exception: ...


class _OfWait(Protocol):
    def __call__(self, *, where: str, waited_seconds: float) -> Exception: ...


class _OfReason(Protocol):
    def __call__(self, *, where: str, why: str) -> Exception: ...


class StoreErrors(msgspec.Struct, frozen=True, kw_only=True):
    """The errors of one store."""

    full: _OfPath
    locked: _OfWait
    read_only: _OfPath
    foreign: _OfPath
    unavailable: _OfReason
    corrupt: _OfReason

    def of(self, error: BaseException, path: Path, *, waited_seconds: float) -> BaseException:
        """Return the store's error for one of SQLite or the system, or for undecodable text.

        Any other is returned as it is, and so is a `TimeoutError` that is not the system's.
        `waited_seconds` is for the message of `locked`.
        """
        match error:
            case sqlite3.Error():
                return self._of_sqlite(error, str(path), waited_seconds)
            case UnicodeDecodeError():
                # SQLite quotes the damaged schema in its message, which then is no text.
                return self.corrupt(where=str(path), why="it holds no readable text")
            case TimeoutError() if error.errno is None:
                return error  # Not of the system: the caller's work was ended.
            case OSError():
                return self._of_system(error, str(path))
            case _:
                return error

    def _of_sqlite(self, error: sqlite3.Error, path: str, waited_seconds: float) -> Exception:
        match (code_of(error) or 0) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return self.locked(where=path, waited_seconds=waited_seconds)
            case sqlite3.SQLITE_FULL:
                return self.full(where=path)
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return self.read_only(where=path)
            case sqlite3.SQLITE_NOTADB:
                return self.foreign(where=path)
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
                return self.unavailable(where=path, why=str(error))
            case _:
                # Our statements are fixed, so an error in one of them is caused by the file.
                return self.corrupt(where=path, why=str(error))

    def _of_system(self, error: OSError, path: str) -> Exception:
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                return self.full(where=path)
            case errno.EACCES | errno.EPERM | errno.EROFS:
                return self.read_only(where=path)
            case errno.EEXIST | errno.ENOTDIR:
                return self.unavailable(where=path, why="what should be a directory is none")
            case _:
                return self.unavailable(where=path, why=error.strerror or str(error))


class Translates(Protocol):
    """The part of a store's errors that its file needs: `StoreErrors`, or a store's own.

    Each method returns an error, and raises none.
    """

    def of(self, error: BaseException, path: Path, *, waited_seconds: float) -> BaseException: ...

    def foreign(self, *, where: str) -> Exception: ...

    def unavailable(self, *, where: str, why: str) -> Exception: ...


def code_of(error: BaseException) -> int | None:
    """Return SQLite's extended code of an error, None if it is none of SQLite's.

    An error of Python's module that has no code counts as `SQLITE_ERROR`.
    """
    if isinstance(error, sqlite3.Error):
        return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR))
    return None


def fails_alone(error: BaseException) -> bool:
    """Return True if an error concerns one statement alone, or is not SQLite's.

    False for a damaged file, and for what may meet any statement: a lock, a full disk, a read-only
    file, an interrupt. Some statements that fail alone roll the transaction back even so: check
    `in_transaction` too.
    """
    code = code_of(error)
    return code is None or code & 0xFF in _OF_ONE_STATEMENT


def integrity_faults(db: sqlite3.Connection) -> list[str]:
    """Return the first 20 faults that SQLite finds in a file, its tables and its indexes.

    The list is empty if there are none. Raise `sqlite3.Error` if the check cannot be made.
    """
    found = [str(each) for (each,) in db.execute(f"PRAGMA integrity_check({_FAULTS_MAX})")]
    return [] if found == ["ok"] else found
