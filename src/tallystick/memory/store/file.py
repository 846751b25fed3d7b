"""The format of a memory's file: how it is recognised and set up, and its errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from tallystick.memory.errors import (
    MemoryCorrupt,
    MemoryFormatUnknown,
    MemoryFull,
    MemoryLocked,
    MemoryReadOnly,
    MemoryUnavailable,
    NotAMemory,
)
from tallystick.storage.sqlite_connection import FileKind
from tallystick.storage.sqlite_errors import StoreErrors

FORMAT = 1
# "TLMM": tells a memory from a ledger and from every other SQLite file.
APPLICATION_ID = 0x544C4D4D
_CACHE_KIB = 16_384
_ERRORS = StoreErrors(
    full=MemoryFull,
    locked=MemoryLocked,
    read_only=MemoryReadOnly,
    foreign=NotAMemory,
    unavailable=MemoryUnavailable,
    corrupt=MemoryCorrupt,
)


def memory_kind(*, schema: Sequence[str], fill: Callable[[sqlite3.Connection], None]) -> FileKind:
    """Return the kind of file that a memory with these tables is.

    `fill` is called once for a file, in the transaction that makes its tables.
    """
    return FileKind(
        name="a memory in a file",
        application_id=APPLICATION_ID,
        versions=(FORMAT,),
        schema=schema,
        errors=_ERRORS,
        newer=_newer,
        prepare=_prepare,
        fill=fill,
    )


def _prepare(db: sqlite3.Connection) -> None:
    # Sorting and rewriting leave no temporary file with the text of notes.
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


def _newer(path: str, version: int) -> MemoryFormatUnknown:
    return MemoryFormatUnknown(where=path, found=version, known=FORMAT)
