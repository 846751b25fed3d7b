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

# The format with the columns of `ledger/columns.py`. Earlier versions refuse such a file: their
# writes would not update those columns.
FORMAT = 3
# Formats of earlier versions: such a file gets the present format with the first write, see
# `ledger/columns.py`. A file of the second one has a total, a limit of the whole ledger. Versions
# that do not know totals refuse to open it, so they cannot spend beyond it.
FORMAT_WITHOUT_COLUMNS = 1
FORMAT_WITH_TOTAL = 2
_FORMATS = (FORMAT, FORMAT_WITHOUT_COLUMNS, FORMAT_WITH_TOTAL)
# "TLLY" distinguishes a ledger from other SQLite files, whose `user_version` may well be 1 too.
APPLICATION_ID = 0x544C4C59
# A commit writes whole pages, one of each table and index that it touches. Entries are small, so
# small pages halve what a turn writes, and the file is no larger for it.
_PAGE_BYTES = 1_024
# The write-ahead log is copied into the file when it has this many pages: 4 MB.
_LOG_PAGES = 4_096
_SCHEMA = (
    """CREATE TABLE run (
        id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, count INTEGER NOT NULL,
        hash BLOB NOT NULL, fence INTEGER NOT NULL, moved INTEGER NOT NULL,
        imported INTEGER NOT NULL
    ) WITHOUT ROWID""",
    # `entry` and `body` have a rowid. Without it, rows are stored in the tree of their key: large
    # bodies cost 25 % more to read there, and a header would not fit one small page.
    """CREATE TABLE entry (
        run TEXT NOT NULL, seq INTEGER NOT NULL, header BLOB NOT NULL, hash BLOB NOT NULL,
        PRIMARY KEY (run, seq)
    )""",
    # Salt and body are NULL after an erasure. A missing row is damage, not erasure.
    """CREATE TABLE body (
        run TEXT NOT NULL, seq INTEGER NOT NULL, salt BLOB, body BLOB, PRIMARY KEY (run, seq)
    )""",
    *ADDED_COLUMNS,
)


def _format_error(path: str, version: int) -> LedgerFormatUnknown:
    """Return the error for a file of an unknown format."""
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
    newer=_format_error,
)
