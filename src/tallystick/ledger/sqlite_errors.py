"""What SQLite and the system say is wrong with a ledger's file, in the package's own errors.

They are translated here and nowhere else, each into one line that says what to do.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tallystick.core.errors import (
    LedgerCorrupt,
    LedgerError,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
    LedgerUnavailable,
    NotALedger,
)

__all__ = ["code_of", "fails_alone", "translated", "translation"]

# What is wrong with one statement and leaves the transaction around it as it was.
_OF_ONE_STATEMENT = (
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_MISUSE,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_TOOBIG,
)


@contextlib.contextmanager
def translated(path: Path, *, waited_seconds: float) -> Iterator[None]:
    """Raise what is raised inside as an error of the ledger at `path`."""
    try:
        yield
    except Exception as error:
        ours = translation(error, path, waited_seconds=waited_seconds)
        if ours is error:
            raise
        raise ours from error


def translation(error: BaseException, path: Path, *, waited_seconds: float) -> BaseException:
    """The ledger's error for a foreign one. Any other is returned as it is."""
    match error:
        case sqlite3.Error():
            return _of_sqlite(error, str(path), waited_seconds)
        case UnicodeDecodeError():
            # SQLite quotes the damaged schema in its message, which then is no text.
            return LedgerCorrupt(path=str(path), why="it holds no readable text")
        case OSError():
            return _of_system(error, str(path))
        case _:
            return error


def code_of(error: BaseException) -> int | None:
    """SQLite's extended code of an error, None if it is none of SQLite's."""
    if isinstance(error, sqlite3.Error):
        return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR))
    return None


def fails_alone(error: BaseException) -> bool:
    """Whether others in the same transaction can go on: neither file nor disk is to blame."""
    code = code_of(error)
    return code is None or code & 0xFF in _OF_ONE_STATEMENT


def _of_sqlite(error: sqlite3.Error, path: str, waited_seconds: float) -> LedgerError:
    match (code_of(error) or 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return LedgerLocked(path=path, waited_seconds=waited_seconds)
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


def _of_system(error: OSError, path: str) -> LedgerError:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return LedgerFull(path=path)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return LedgerReadOnly(path=path)
        case errno.EEXIST | errno.ENOTDIR:
            return LedgerUnavailable(path=path, why="what should be a directory is none")
        case _:
            return LedgerUnavailable(path=path, why=error.strerror or str(error))
