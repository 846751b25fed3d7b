"""The format of a ledger's file: its tables, how it is recognised, and its errors."""

from __future__ import annotations

from tallystick.core.errors import (
    LedgerCorrupt,
    LedgerFormatUnknown,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
    LedgerUnavailable,
    NotALedger,
)
from tallystick.storage.sqlite_connection import FileKind
from tallystick.storage.sqlite_errors import StoreErrors

FORMAT = 1
# A ledger that has a total. Versions that do not know that it binds them refuse to open the file,
# so they cannot spend without it. A ledger gets this format when its total is recorded.
FORMAT_WITH_TOTAL = 2
_FORMATS = (FORMAT, FORMAT_WITH_TOTAL)
# "TLLY": tells a ledger from every other SQLite file, whose `user_version` may well be 1 too.
APPLICATION_ID = 0x544C4C59
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
)


def _newer(path: str, version: int) -> LedgerFormatUnknown:
    known = " and ".join(str(each) for each in _FORMATS)
    return LedgerFormatUnknown(path=path, found=version, known=known)


LEDGER = FileKind(
    name="a ledger in a file",
    instead="use MemoryLedger() for runs in memory",
    application_id=APPLICATION_ID,
    versions=_FORMATS,
    schema=_SCHEMA,
    errors=StoreErrors(
        full=LedgerFull,
        locked=LedgerLocked,
        read_only=LedgerReadOnly,
        foreign=NotALedger,
        unavailable=LedgerUnavailable,
        corrupt=LedgerCorrupt,
    ),
    newer=_newer,
)
