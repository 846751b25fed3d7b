"""Blocks: the index of recall, kept in the memory's file, each for a range of positions.

A block has the notes that were remembered in its range, as they were at the position `seq`. It
follows from the log alone, so it may be missing: then it is made again. Its parts are bytes to this
module; `recall.index` makes and reads them.

Rule 1: nothing of a block is used that was not checked. Each part has a code (HMAC-SHA256, keyed
with the store's secret) over its bytes, its range, the log's hash at `seq` and the versions. A part
that was changed, cut, exchanged or left from another log is treated as missing.
Rule 2: a block has terms of its notes. In the transaction that erases or redacts a note, the block
with that note is deleted, of whatever format it is.
Rule 3: ranges are fixed: 8,192 positions, and 512 each after the last whole 8,192. The positions
after the last whole 512 have none. So a new note rewrites nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tallystick.memory.store.sqlite import HeadRow

# The version of the parts. Blocks of an older one are made again, those of a newer one left alone.
BLOCK_FORMAT = 2
SMALL, LARGE = 512, 8_192
# A part of this name is in every block.
NOTES = "notes"

BLOCK_SCHEMA = (
    """CREATE TABLE block (
        first INTEGER NOT NULL, last INTEGER NOT NULL, part TEXT NOT NULL, seq INTEGER NOT NULL,
        format INTEGER NOT NULL, code BLOB NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (first, last, part)
    )""",
)


class Span(NamedTuple):
    """A range of positions, both ends included."""

    first: int
    last: int


class Block(NamedTuple):
    """A block that is in the file. It has the state of its notes at position `seq`."""

    first: int
    last: int
    seq: int
    format: int

    @property
    def span(self) -> Span:
        """The range of positions of the block."""
        return Span(self.first, self.last)


def spans(count: int) -> Iterator[Span]:
    """Yield the ranges of the blocks that a log of `count` entries should have, ascending."""
    first = 1
    for size in (LARGE, SMALL):
        while first + size - 1 <= count:
            yield Span(first, first + size - 1)
            first += size


def stored_blocks(db: sqlite3.Connection) -> list[Block]:
    """Return the blocks that are in the file. Nothing of them is checked."""
    if not has_blocks(db):
        return []
    rows = db.execute("SELECT first, last, seq, format FROM block WHERE part = ?", (NOTES,))
    return [Block(*row) for row in rows]


def has_blocks(db: sqlite3.Connection) -> bool:
    """Return True if the file has the table of blocks. Files of earlier versions have none."""
    found = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'block'")
    return found.fetchone() is not None


def read_part(db: sqlite3.Connection, row: HeadRow, block: Block, part: str) -> bytes | None:
    """Return a part of a block, or None if it is missing or is not what was written.

    `row` is the head of the same state of the file.
    """
    found = db.execute(
        "SELECT seq, format, code, data FROM block WHERE first = ? AND last = ? AND part = ?",
        (block.first, block.last, part),
    ).fetchone()
    if found is None:
        return None
    seq, format, code, data = found
    if (seq, format) != (block.seq, block.format) or not isinstance(data, bytes):
        return None
    expected = _code(db, row, block, part, data)
    return data if expected is not None and code == expected else None


def write_block(
    db: sqlite3.Connection, row: HeadRow, span: Span, parts: Mapping[str, bytes]
) -> None:
    """Store a block as of the head `row`, instead of those inside its range.

    The table is made first if this is a file of an earlier version.
    """
    if not has_blocks(db):
        for statement in BLOCK_SCHEMA:
            db.execute(statement)
    db.execute("DELETE FROM block WHERE first >= ? AND last <= ?", span)
    block = Block(*span, row.head.count, BLOCK_FORMAT)
    for part, data in parts.items():
        code = _code(db, row, block, part, data)
        db.execute(
            "INSERT INTO block VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*span, part, block.seq, block.format, code, data),
        )


def delete_blocks_of(db: sqlite3.Connection, number: int) -> None:
    """Delete the blocks that have a note, of any format."""
    if has_blocks(db):
        db.execute("DELETE FROM block WHERE first <= ? AND last >= ?", (number, number))


def touched_numbers(db: sqlite3.Connection, block: Block) -> list[int]:
    """Return the numbers of notes of a block that entries after it are about."""
    rows = db.execute(
        "SELECT DISTINCT number FROM later WHERE number BETWEEN ? AND ? AND seq > ?",
        (block.first, block.last, block.seq),
    )
    return [number for (number,) in rows]


def _code(
    db: sqlite3.Connection, row: HeadRow, block: Block, part: str, data: bytes
) -> bytes | None:
    """Return the code of a part, or None if the log has no entry at the block's position."""
    found = db.execute("SELECT hash FROM log WHERE seq = ?", (block.seq,)).fetchone()
    if found is None or not isinstance(found[0], bytes):
        return None
    bound = f"tallystick.memory.block|{row.projection}|{row.store}|{block}|{found[0].hex()}|{part}|"
    return hmac.digest(row.secret, bound.encode() + hashlib.sha256(data).digest(), "sha256")
