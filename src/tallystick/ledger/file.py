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
from tallystick.ledger.columns import SCHEMA as ADDED_COLUMNS
from tallystick.ledger.columns import add_columns
from tallystick.storage.sqlite_connection import FileKind
from tallystick.storage.sqlite_errors import StoreErrors

# Rows of runs that say who began a run and where it stands. Versions before that refuse the file:
# what they write would leave those columns as they were.
FORMAT = 3
# A ledger that an earlier version made: it gets the present format with the first write, see
# `ledger/columns.py`. Of those, the second kind has a total: versions that do not know that it
# binds them refuse to open the file, so they cannot spend without it.
FORMAT_WITHOUT_COLUMNS = 1
FORMAT_WITH_TOTAL = 2
_FORMATS = (FORMAT, FORMAT_WITHOUT_COLUMNS, FORMAT_WITH_TOTAL)
# "TLLY": tells a ledger from every other SQLite file, whose `user_version` may well be 1 too.
APPLICATION_ID = 0x544C4C59
# A commit writes whole pages, one of each table and index that it touches. Entries are small, so
# small pages halve what a turn writes, and the file is no larger for it.
_PAGE_BYTES = 1_024
# The log is copied into the file when it has come to so many pages: 4 MB.
_LOG_PAGES = 4_096
_SCHEMA = (
    """CREATE TABLE run (
        id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, count INTEGER NOT NULL,
        hash BLOB NOT NULL, fence INTEGER NOT NULL, moved INTEGER NOT NULL,
        imported INTEGER NOT NULL
    ) WITHOUT ROWID""",
    # Both have a rowid. Bodies are large: in the tree of their key they cost 25 % more to read. A
    # header does not fit a small page of such a tree, and would take a second one.
    """CREATE TABLE entry (
        run TEXT NOT NULL, seq INTEGER NOT NULL, header BLOB NOT NULL, hash BLOB NOT NULL,
        PRIMARY KEY (run, seq)
    )""",
    # Salt and body are NULL once they were erased. A row that is missing is damage, not erasure.
    """CREATE TABLE body (
        run TEXT NOT NULL, seq INTEGER NOT NULL, salt BLOB, body BLOB, PRIMARY KEY (run, seq)
    )""",
    *ADDED_COLUMNS,
)


def _newer(path: str, version: int) -> LedgerFormatUnknown:
    *first, last = sorted(_FORMATS)
    known = f"{', '.join(map(str, first))} and {last}"
    return LedgerFormatUnknown(where=path, found=version, known=known)


LEDGER = FileKind(
    name="a ledger in a file",
    instead="use MemoryLedger() for runs in memory",
    application_id=APPLICATION_ID,
    versions=_FORMATS,
    schema=_SCHEMA,
    upgrade=add_columns,
    page_bytes=_PAGE_BYTES,
    log_pages=_LOG_PAGES,
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
